"""A training step runs code of eleven files, which a reader can follow in one sitting."""

import sys
import threading
from pathlib import Path

import torch

import training
from training import loop

ROOT = Path(training.__file__).resolve().parents[1]
"""Folder of the packages: this repository, or where a wheel is installed."""
PACKAGES = ("geoprep", "loaders", "training")
FILES = {
    "loaders/batch.py",  # parts of a batch and their buffers
    "loaders/copying.py",  # crops of tiles -> batch
    "loaders/loader.py",
    "loaders/prefetch.py",  # worker threads
    "loaders/prep.py",  # normalisation and target
    "loaders/tiles/ram.py",
    "training/loop.py",
    "training/model/losses.py",  # normalisation, model, loss
    "training/model/norm.py",  # BatchNorm and ReLU, views for the optimizer
    "training/model/unet.py",
    "training/monitor/console.py",  # progress bar
}
"""Once per 4,096 samples, before those traced, a thread runs loaders/sampling.py as well."""
FIRST, LAST = 4, 6
"""Steps that are traced, after a warm-up; losses are read every 10 steps."""


def test_a_step_runs_eleven_files(fit, out, monkeypatch):
    files, count = set(), 0

    def record(frame, event, argument):
        if FIRST <= count < LAST:
            files.add(frame.f_code.co_filename)

    step = loop.training_step

    def traced(run, batches, group):
        nonlocal count
        count += 1
        sys.setprofile(record if count < LAST else None)
        if count > LAST:
            raise KeyboardInterrupt
        return step(run, batches, group)

    monkeypatch.setattr(loop, "training_step", traced)
    # As with the default settings, but without the minute of compiling.
    monkeypatch.setattr("training.engine.native.missing_compiler", lambda _: None)
    monkeypatch.setattr(torch, "compile", lambda plain, **_: plain)
    small = ("--crop", "32", "--crops-per-tile", "1", "--batch-size", "2")
    options = ("--epochs", 1, "--ema", 0.9, "--pictures", 0, "--compile", "loss")
    threading.setprofile(record)  # in the threads of the loader
    try:
        fit("--out", out, *options, network=small, status=130)
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    paths = {Path(file) for file in files}
    inside = [path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT)]
    ours = {path.as_posix() for path in inside if path.parts[0] in PACKAGES}
    assert ours == FILES
