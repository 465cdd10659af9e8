"""The files that a predicted window goes through, so that a reader can follow it."""

import sys
import threading
from pathlib import Path

from helpers.predict_cases import (
    FACTS,
    ignore_progress,
    make_checkpoint,
    pixels,
    predict_options,
    write_image,
)

import training
from training.inference.model_files import open_model
from training.inference.runner import ModuleRunner
from training.prediction.images import inspect_image
from training.prediction.predictor import Predictor

ROOT = Path(training.__file__).resolve().parents[1]
"""Folder of the packages: this repository, or where a wheel is installed."""
PACKAGES = ("geoprep", "loaders", "training")

WINDOW = {
    "training/prediction/predictor.py",  # batches of windows, from reading to writing
    "training/prediction/windows.py",  # where they lie
    "training/inference/runner.py",  # through the model
    "loaders/prep.py",  # normalised
    "training/prediction/blend.py",  # blended, as bytes
}
"""Files that every window goes through, besides that of the model."""

ROW = {
    "training/prediction/window_rows.py",  # the pixels under a row of windows
    "training/prediction/cog/writer.py",  # finished rows of the prediction
}
"""Files that a row of windows goes through, besides geoprep.imagery, which decodes pixels."""


def executed(tmp_path, monkeypatch, first, last):
    """Return our files that run in any thread between two calls of the model."""
    make_checkpoint(tmp_path / "best.pt")
    image = write_image(tmp_path / "scene.tif", pixels(400, 400))
    options = predict_options(
        checkpoint=tmp_path / "best.pt",
        model=FACTS.model,
        window=96,
        overlap=32,
        device="cpu",
        precision="fp32",
    )
    runner, info = open_model(options)
    found, calls = set(), []

    def trace(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path()
        if first <= len(calls) < last and inside.parts[:1] and inside.parts[0] in PACKAGES:
            found.add(inside.as_posix())

    call = ModuleRunner.__call__

    def counted(self, batch):
        calls.append(1)
        return call(self, batch)

    monkeypatch.setattr(ModuleRunner, "__call__", counted)
    source = inspect_image(str(image), info, options)
    before = sys.gettrace(), threading.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        predictor = Predictor(info, options, 0.5, "none")
        predictor.run(source, tmp_path / "out.tif", runner, ignore_progress)
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])
    assert len(calls) == 36
    return {file for file in found if not file.startswith("tests/")}


def test_a_window_executes_few_files(tmp_path, monkeypatch):
    found = executed(tmp_path, monkeypatch, 8, 10)  # the second row has six windows, 7 to 12
    # Meanwhile a thread may read the next row.
    read = {file for file in found if file.startswith("geoprep/imagery/")}
    assert found - read - ROW == WINDOW
    assert len(WINDOW) + 1 <= 8


def test_a_row_of_windows_executes_few_files(tmp_path, monkeypatch):
    found = executed(tmp_path, monkeypatch, 7, 25)
    read = {file for file in found if file.startswith("geoprep/imagery/")}
    assert found - read == WINDOW | ROW
    assert len(WINDOW | ROW) + 1 <= 8
