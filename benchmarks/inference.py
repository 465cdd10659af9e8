"""Compare speed and memory of a model in all forms: checkpoint and exports.

    python -m benchmarks.inference [--model NAME] [--only FORM,...] [--quick]

Every form runs in a separate process, once per round: the checkpoint, plain and compiled, and the
model files of `training.export`. Each is timed alone and in `training.predict`. The model learns
for a few steps; ``geoprep evaluate --compare`` compares the accuracy of one of your own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.child import ChildError, ask, run
from benchmarks.common import CommonOptions, Result, announce, command, ratios, rounds, some_of
from benchmarks.loading.data import LoadingSizes, synthetic_store
from benchmarks.memory import resident
from benchmarks.tables import Table, conclude, measured
from benchmarks.training import IPEX_PYTHON, fit
from geoprep.options import option
from geoprep.sources.cities import get_city
from geoprep.synth import synthesise
from training.engine.host import keep_memory
from training.predict import COMMAND
from training.prediction.job import open_job
from training.prediction.predict_options import PredictOptions
from training.prediction.predictor import elapsed
from training.prediction.screen import Screen
from training.process import limit_spinning
from training.runners.model_files import export_files

GAIN = 2.0
SHARE = 0.9
GSD_M = 0.3
"""Pixel size for which areas are reported, in metres."""
OVERLAP = PredictOptions.overlap
"""Overlap of windows of `training.predict` in pixels."""
_ENOUGH = 10**12
"""Number of pixels that makes compiling worthwhile."""


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


@dataclass(frozen=True, kw_only=True)
class InferenceOptions(CommonOptions):
    """Options: of `benchmarks.inference`."""

    repeats: int = rounds(2)
    model: str = option("unet-small", "Model, as of `geoprep fit`.", "NAME")
    only: tuple[str, ...] | None = some_of(FORMS, "Run these forms")


@command(InferenceOptions)
def main(given: InferenceOptions) -> int:
    """Run the benchmark; return 0 if it ran, even if bounds were missed."""
    scale = QUICK if given.quick else InferenceScale()
    limit_spinning()
    with measured("inference", given) as (result, work):
        announce("training for a few steps")
        store = synthetic_store(work, LoadingSizes(scenes=6, scene_side=256))
        few = ["--epochs", "1", "--crops-per-tile", "1", "--crop", "64", "--pictures", "0"]
        fit(store, work / "run", [*few, "--model", given.model])
        announce("creating an image")
        city, size = get_city("moscow"), scale.image
        scenes = synthesise(work / "scene", city, scenes=1, seed=3, size=size)
        image = next(scenes.glob("**/PS-RGB/*.tif"))
        cases = {}
        for name in FORMS if given.only is None else given.only:
            announce(f"exporting {FORMS[name].title}")
            try:
                file = export_form(FORMS[name], work / "run" / "best.pt", store, scale.tiles)
            except ChildError as error:
                result.notes.append(f"{name} is left out: {error}")
                continue
            nbytes = sum(part.stat().st_size for part in export_files(file))
            result.add(f"{name}.size", "MB", [nbytes / 1e6])
            words = [str(file), str(image), "--out", str(work / name), *FORMS[name].runs]
            words += ["--window", str(scale.side), "--batch-size", str(scale.count)]
            task = {"words": [*words, "--gsd", "image", "--overwrite"]}
            task |= {part: getattr(scale, part) for part in ("side", "count", "times", "seconds")}
            target = "benchmarks.inference:measure_form"
            cases[name] = partial(ask, target, task, FORMS[name].python)
        record(result, result.turns(cases), scale)
    return conclude(result, given, tables())


def export_form(form: Form, checkpoint: Path, store: Path, tiles: int) -> Path:
    """Return the file of a form, newly written by `training.export` beside the checkpoint.

    INT8 is calibrated on so many ``tiles`` of the store.

    Raises
    ------
    ChildError
        The form cannot be exported on this machine.
    """
    if not Path(form.python).exists():
        raise ChildError("`make ipex` creates its environment")
    if not form.file:
        return checkpoint
    file = checkpoint.with_name(form.file)
    words = [w for name, value in form.export.items() for w in (f"--{name}", value) if w]
    command = [form.python, "-m", "training.export", str(checkpoint), *words]
    run([*command, "--calibrate", str(store), "--tiles", str(tiles), "--out", str(file)])
    return file


def measure_form(
    words: Sequence[str], side: int, count: int, times: int, seconds: float
) -> dict[str, Any]:
    """Measure a form in this process.

    Parameters
    ----------
    words
        Arguments of `training.predict`: model, image and options.
    side, count, times, seconds
        See `InferenceScale`.

    Returns
    -------
    dict
        ``load``: seconds of loading and of a first batch of each size, which may compile;
        ``latency``: seconds of each single tile; ``rate``: Mpx/s of batches, with as many threads
        as a prediction has; ``peak``: bytes of this process by then; ``model`` and ``image``:
        Mpx/s of a second prediction, through the model and of the output.
    """
    keep_memory(1 << 30, one_heap=True)
    start = time.perf_counter()
    options = PredictOptions(**COMMAND.parse(words))
    job, _ = open_job(options)
    single, (runner, _) = job.runner.for_pixels(0)[0], job.runner.for_pixels(_ENOUGH)
    shape = count, len(job.predictor.info.bands), side, side
    batch = torch.randint(0, 256, shape, dtype=torch.uint8)
    batch = batch.contiguous(memory_format=torch.channels_last)
    single(batch[:1])
    runner(batch)
    now = time.perf_counter()
    result: dict[str, Any] = {"load": now - start, "latency": []}
    for _ in range(times):
        single(batch[:1])
        before, now = now, time.perf_counter()
        result["latency"].append(now - before)

    def batches(_: int) -> int:
        done = 0
        while done < 2 or time.perf_counter() - now < seconds:
            runner(batch)
            done += 1
        return done

    with ThreadPoolExecutor(runner.at_once) as pool:
        pixels = sum(pool.map(batches, range(runner.at_once))) * count * side * side
    result |= {"rate": pixels / 1e6 / (time.perf_counter() - now), "peak": resident()}
    for _ in range(2):  # the first prediction loads compiled loops
        outcomes = job.run(Screen(quiet=True, send=lambda _: None))
    stats = [outcome.stats for outcome in outcomes if outcome.stats]
    took = elapsed(stats) * 1e6
    result["model"] = sum(part.network_pixels for part in stats) / took
    result["image"] = sum(part.image_pixels for part in stats) / took
    return result


def record(
    result: Result, rounds_by_form: Mapping[str, list[dict[str, Any]]], scale: InferenceScale
) -> None:
    """Record the results of `measure_form` of every form, and ratios of rates."""
    for name, answers in rounds_by_form.items():
        note = "with the first batch of each size, which may compile"
        result.add(f"{name}.load", "s", [measures["load"] for measures in answers], note=note)
        for share in (50, 99):
            latency = [
                float(np.percentile(measures["latency"], share)) * 1e3 for measures in answers
            ]
            result.add(f"{name}.p{share}", "ms", latency, note=f"one tile of {scale.side}")
        rates = [measures["rate"] for measures in answers]
        result.add(f"{name}.rate", "Mpx/s", rates, note=f"batches of {scale.count}")
        maps = [measures["image"] * GSD_M**2 * 3600 for measures in answers]
        result.add(f"{name}.maps", "km2/h", maps, note=f"at {GSD_M} m, of training.predict")
        shares = ratios([measures["model"] for measures in answers], rates)
        note = "rate of the model in training.predict over its rate alone"
        result.add(f"{name}.share", "", shares, at_least=SHARE, note=note)
        peaks = [measures["peak"] / 2**30 for measures in answers]
        result.add(f"{name}.memory", "GiB", peaks, note="before predictions")
    for name in rounds_by_form if BASE in rounds_by_form else ():
        gains = ratios(result[f"{name}.rate"].values, result[f"{BASE}.rate"].values)
        least = GAIN if name == "openvino-int8" else None
        result.add(f"{name}.gain", "", gains, at_least=least, note=f"times {FORMS[BASE].title}")


def tables() -> list[Table]:
    """Return the tables: one row per form."""
    rows = {form.title: name for name, form in FORMS.items()}
    columns = {"Mpx/s": "rate", "gain": "gain", "p50 ms": "p50", "p99 ms": "p99"}
    columns |= {"share in predict": "share", "predict km2/h": "maps"}
    medians = ("p50", "p99", "maps")
    costs = {"MB": "size", "load s": "load", "peak GiB": "memory"}
    return [
        Table("Speed", rows, columns, medians=medians),
        Table("Cost", rows, costs, medians=costs.values()),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
