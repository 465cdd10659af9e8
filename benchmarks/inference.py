"""Compare speed, memory and accuracy of a trained model in all forms: checkpoint and exports.

    python -m benchmarks.inference [CHECKPOINT STORE] [--exports FOLDER] [--only FORM,...] [--quick]

Every form runs in a separate process: the checkpoint, plain and compiled, and the model files of
`training.export`. Each is timed alone and in `training.predict`, and evaluated on the store's
validation tiles. Without a checkpoint, a model is trained for a few steps: rates are the same, and
accuracy is not measured.

All forms together take 12 GiB and, on two quiet cores, about 12 minutes. Exporting takes another 5
minutes; ``--exports`` keeps the files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import ChildError, ChildProcess, run
from benchmarks.common import (
    Result,
    announce,
    local_path,
    parser,
    ratios,
    reports_errors,
)
from benchmarks.fitting.runs import IPEX_PYTHON, fit
from benchmarks.loading.data import LoadingSizes, synthetic_store
from benchmarks.tables import Table, conclude, measured
from geoprep.cpus import usable_cpus
from geoprep.sources import get_city
from geoprep.synth import synthesise
from training.cli import limit_spinning
from training.prediction import PredictOptions
from training.runners import export_files

GAIN = 2.0
SHARE = 0.9
GSD_M = 0.3
"""Pixel size for which areas are reported, in metres."""
LARGEST_DROP = 0.01
OVERLAP = PredictOptions.overlap
"""Overlap of windows of `training.predict` in pixels."""


@dataclass(frozen=True, slots=True)
class Form:
    """A way to run a trained model.

    Attributes
    ----------
    title
        Title in tables.
    file
        Name of the model file; empty for the checkpoint.
    export
        Options of `training.export` that write the file.
    runs
        Options of `training.predict` that choose the runner.
    """

    title: str
    file: str = ""
    export: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[str, ...] = ()

    @property
    def python(self) -> str:
        """Python interpreter to use: Intel's extension has its own environment."""
        return str(IPEX_PYTHON) if self.file.endswith(".ipex") else sys.executable

    @property
    def whole(self) -> bool:
        """True if it computes with integers (INT8)."""
        return self.file.startswith("int8")


_PLAIN, _COMPILED = ("--compile", "off"), ("--compile", "on")
_BF16 = ("--precision", "bf16")

FORMS: dict[str, Form] = {
    "fp32": Form("checkpoint, fp32", runs=("--precision", "fp32", *_PLAIN)),
    "bf16": Form("checkpoint, bf16 autocast", runs=(*_BF16, *_PLAIN)),
    "bf16-compiled": Form("checkpoint, bf16 compiled", runs=(*_BF16, *_COMPILED)),
    "pt2-bf16": Form("torch.export bf16", "bf16.pt2", {"format": "bf16"}, _COMPILED),
    "onnx-fp32": Form("ONNX Runtime fp32", "fp32.onnx", {"format": "onnx"}),
    "openvino-bf16": Form("OpenVINO bf16", "bf16.xml", {"format": "openvino"}),
    "openvino-int8": Form("OpenVINO INT8 (NNCF)", "int8.xml", {"format": "openvino", "int8": ""}),
    "ipex-bf16": Form("IPEX bf16", "bf16.ipex", {"format": "ipex-bf16"}),
    "ipex-int8": Form("IPEX INT8", "int8.ipex", {"format": "ipex-int8"}),
}
BASE = "bf16-compiled"
"""Form that INT8 of OpenVINO should be `GAIN` times as fast as."""


def export_form(form: Form, checkpoint: Path, store: str, exports: Path, tiles: int) -> Path:
    """Return the file of a form, newly written by `training.export`.

    Parameters
    ----------
    exports
        Folder to write to.
    tiles
        Number of tiles that INT8 is calibrated on.

    Raises
    ------
    ChildError
        The form cannot be exported on this machine.
    """
    if not Path(form.python).exists():
        raise ChildError("`make ipex` creates its environment")
    if not form.file:
        return checkpoint
    file = exports / form.file
    words = [w for name, value in form.export.items() for w in (f"--{name}", value) if w]
    command = [form.python, "-m", "training.export", str(checkpoint), *words]
    run([*command, "--calibrate", store, "--tiles", str(tiles), "--out", str(file), "--overwrite"])
    return file


@dataclass(frozen=True, slots=True)
class InferenceScale:
    """Sizes of the benchmark.

    Attributes
    ----------
    side
        Side of a tile in pixels.
    count
        Tiles per batch.
    across
        Batches per row of windows of the predicted image.
    times
        Single tiles whose latency is measured, per round.
    seconds
        Shortest time to measure batches, per round.
    tiles
        Number of tiles that INT8 is calibrated on.
    """

    side: int = 512
    count: int = 4
    across: int = 2
    times: int = 20
    seconds: float = 3.0
    tiles: int = 100

    @property
    def image(self) -> int:
        """Side in pixels of an image whose windows fill complete batches of one size."""
        return OVERLAP + self.across * self.count * (self.side - OVERLAP)


QUICK = InferenceScale(side=128, count=2, across=1, times=3, seconds=0.1, tiles=4)


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 if it ran, even if bounds were missed."""
    given = _arguments(arguments)
    scale = QUICK if given.quick else InferenceScale()
    limit_spinning()
    with measured("inference", given) as (result, work), ExitStack() as stack:
        store, checkpoint = given.store, given.checkpoint
        if checkpoint is None:
            announce("training for a few steps")
            sizes = LoadingSizes(scenes=6, scene_side=256)
            store = str(synthetic_store(work, sizes, usable_cpus()))
            options = ["--epochs", "1", "--crops-per-tile", "1", "--crop", "64", "--pictures", "0"]
            fit(Path(store), work / "run", options)
            checkpoint = work / "run" / "best.pt"
        exports = given.exports or work
        exports.mkdir(parents=True, exist_ok=True)
        announce("creating an image")
        size = scale.image
        city = synthesise(work / "scene", get_city("moscow"), scenes=1, seed=3, size=size)
        image = next(city.glob("**/PS-RGB/*.tif"))
        children: dict[str, ChildProcess] = {}
        for name in given.only:
            try:
                announce(f"exporting {FORMS[name].title}")
                file = export_form(FORMS[name], checkpoint, store, exports, scale.tiles)
                announce(f"loading {FORMS[name].title}")
                words = _words(name, file, image, work / name, scale)
                child = stack.enter_context(_load(result, name, words, scale))
            except ChildError as error:
                result.notes.append(f"{name} is left out: {error}")
            else:
                nbytes = sum(part.stat().st_size for part in export_files(file))
                result.add(f"{name}.size", "MB", [nbytes / 1e6])
                children[name] = child
        _measure(result, children, scale)
        if given.checkpoint is not None:
            _record_accuracy(result, children, store)
    return conclude(result, given, tables())


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, repeats=2)
    add = options.add_argument
    text = "checkpoint of a trained model (default: train for a few steps)"
    add("checkpoint", type=local_path, nargs="?", help=text)
    add("store", nargs="?", help="store it was trained on, for INT8 calibration and accuracy")
    text = f"run these forms (default: all): {', '.join(FORMS)}"
    add("--only", "--forms", action="append", metavar="FORM,...", help=text)
    add("--exports", type=local_path, metavar="FOLDER", help="keep exported files in this folder")
    given = options.parse_args(arguments)
    if given.checkpoint is not None and given.store is None:
        options.error("a checkpoint needs STORE too: the store it was trained on")
    asked = [name for names in given.only or () for name in names.split(",")]
    for name in asked:
        if name not in FORMS:
            options.error(f"--only {name}: choose from {', '.join(FORMS)}")
    given.only = [name for name in FORMS if name in asked or not asked]
    return given


def _words(name: str, file: Path, image: Path, out: Path, scale: InferenceScale) -> list[str]:
    """Return arguments of `training.predict` that predict an image with a form."""
    words = [str(file), str(image), "--out", str(out), "--gsd", "image", "--overwrite"]
    shape = ["--batch-size", str(scale.count), "--window", str(scale.side)]
    return [*words, *shape, *FORMS[name].runs]


def _load(result: Result, name: str, words: Sequence[str], scale: InferenceScale) -> ChildProcess:
    """Start the process of a form, and run it once per batch shape, which may compile."""
    target = "benchmarks.form_server:FormServer"
    child = ChildProcess(target, {"words": words}, FORMS[name].python)
    try:
        load = child.answer()["seconds"]
        for count in (1, scale.count):
            load += child.ask("latency", count=count, side=scale.side, times=1)["seconds"][0]
    except ChildError:
        child.__exit__()
        raise
    note = "with the first batch of each size, which may compile"
    result.add(f"{name}.load", "s", [load], note=note)
    return child


def _measure(result: Result, children: dict[str, ChildProcess], scale: InferenceScale) -> None:
    """Record latency, rates and memory of every form."""
    rounds_by_form = result.turns({n: partial(one_round, c, scale) for n, c in children.items()})
    for name, rounds in rounds_by_form.items():
        record(result, name, rounds, scale)
    for name in rounds_by_form:
        if BASE in rounds_by_form:
            gains = ratios(result[f"{name}.rate"].values, result[f"{BASE}.rate"].values)
            least = GAIN if name == "openvino-int8" else None
            result.add(f"{name}.gain", "", gains, at_least=least, note=f"times {FORMS[BASE].title}")


def one_round(child: ChildProcess, scale: InferenceScale) -> dict[str, Any]:
    """Return latencies in s, Mpx/s alone and in `training.predict`, and peak bytes of a form."""
    latency = child.ask("latency", count=1, side=scale.side, times=scale.times)
    rate = child.ask("rate", count=scale.count, side=scale.side, seconds=scale.seconds)
    return {"latency": latency["seconds"], **rate, **child.ask("predict")}


def record(
    result: Result, name: str, rounds: Sequence[dict[str, Any]], scale: InferenceScale
) -> None:
    """Record the results of `one_round` of a form."""
    for share in (50, 99):
        found = [float(np.percentile(one["latency"], share)) * 1e3 for one in rounds]
        result.add(f"{name}.p{share}", "ms", found, note=f"one tile of {scale.side}")
    rates = [one["mpx_s"] for one in rounds]
    result.add(f"{name}.rate", "Mpx/s", rates, note=f"batches of {scale.count}")
    area = [rate * GSD_M**2 * 3600 for rate in rates]
    result.add(f"{name}.area", "km2/h", area, note=f"at {GSD_M} m, without reading and writing")
    maps = [one["image_mpx_s"] * GSD_M**2 * 3600 for one in rounds]
    result.add(f"{name}.maps", "km2/h", maps, note=f"at {GSD_M} m, of training.predict")
    shares = ratios([one["network_mpx_s"] for one in rounds], rates)
    note = "rate of the model in training.predict, after a first window, over its rate alone"
    result.add(f"{name}.share", "", shares, at_least=SHARE, note=note)
    # Later rounds include the memory of predictions.
    result.add(f"{name}.memory", "GiB", [rounds[0]["peak"] / 2**30], note="before predictions")


def _record_accuracy(result: Result, children: dict[str, ChildProcess], store: str) -> None:
    """Record the validation accuracy of each form, and its drop from fp32."""
    cases = {name: partial(child.ask, "evaluate", store=store) for name, child in children.items()}
    found = {name: one for name, (one,) in result.turns(cases, 1).items()}
    for name, metrics in found.items():
        for metric, value in metrics.items():
            result.add(f"{name}.{metric}", "", [value])
            if "fp32" in found:
                most = LARGEST_DROP if FORMS[name].whole else None
                drop = found["fp32"][metric] - value
                result.add(f"{name}.{metric}_drop", "", [drop], at_most=most)


def tables() -> list[Table]:
    """Return the tables: one row per form."""
    rows = {form.title: name for name, form in FORMS.items()}
    columns = {"Mpx/s": "rate", "gain": "gain", "km2/h": "area", "p50 ms": "p50", "p99 ms": "p99"}
    columns |= {"share in predict": "share", "predict km2/h": "maps"}
    medians = ("area", "p50", "p99", "maps")
    costs = {"MB": "size", "load s": "load", "peak GiB": "memory", "road IoU": "road_iou"}
    costs |= {"road drop": "road_iou_drop", "bin IoU": "bin_iou", "bin drop": "bin_iou_drop"}
    return [
        Table("Speed", rows, columns, medians=medians, drawn="km2/h"),
        Table("Cost", rows, costs, medians=costs.values()),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
