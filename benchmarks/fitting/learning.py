"""Accuracy of training runs on a synthetic city, trained and evaluated with the commands."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import GEOPREP, ROOT, ChildError, run
from benchmarks.common import Result, announce
from benchmarks.fitting.runs import Rows, fit
from geoprep.speed import BIN_COUNT, BIN_TABLE
from geoprep.store import StoreReader
from loaders import RamTiles

SCENES, SIZE = 48, 1300
DEMO = "demo"
"""Name of the recipe of `make demo`, whose figures have bounds."""
BUILD, FIT = "--source $(DEMO)/data", "-m training.fit $(DEMO)/moscow.zarr"
"""Text before the options of its commands in the Makefile."""

MINUTES = 5.0
ROAD_IOU, BIN_IOU = 0.70, 0.40
OVER_PRIOR = 2.0
"""Lower bound of the mean IoU of speed bins over that of the prior."""


def demo_options(after: str = FIT, makefile: Path = ROOT / "Makefile") -> list[str]:
    """Return the options that `make demo` gives a command, up to ``--out``.

    Parameters
    ----------
    after
        Text before the options: `FIT` or `BUILD`.

    Raises
    ------
    ChildError
        The Makefile has no such command.
    """
    text = makefile.read_text(encoding="utf-8")
    variables = dict(re.findall(r"^(\w+) \??= (.*)$", text, re.MULTILINE))
    line = re.search(rf"{re.escape(after)} (.*)--out", text)
    if line is None:
        raise ChildError(f"{makefile}: no {after} with --out; give --recipe")
    return re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], line[1]).split()


def parse_recipe(text: str) -> tuple[str, list[str]]:
    """Return name and options of ``NAME=--batch-size 4 --ema 0.99``; options may be empty.

    Raises
    ------
    ValueError
        The text has no name.
    """
    name, equals, options = text.partition("=")
    if not equals or not re.fullmatch(r"[\w-]+", name):
        raise ValueError(f"{text!r}: write NAME=OPTIONS, such as ema='--batch-size 4 --ema 0.99'")
    return name, options.split()


def build_city(folder: Path, scenes: int, size: int) -> Path:
    """Create the demo's city and its store with the commands; return the store.

    Parameters
    ----------
    scenes, size
        Number of scenes, and their side in pixels.
    """
    announce("creating a city")
    source, store = str(folder / "city"), folder / "moscow.zarr"
    drawn = ["--city", "moscow", "--scenes", str(scenes), "--size", str(size), "--out", source]
    run([*GEOPREP, "synth", *drawn])
    built = ["--city", "moscow", "--source", source, *demo_options(BUILD), "--out", str(store)]
    run([*GEOPREP, "build-zarr", *built])
    return store


def measure_city(
    result: Result, store: Path, work: Path, recipes: Mapping[str, Sequence[str]]
) -> None:
    """Record the validation accuracy of recipes, with one run per seed.

    Parameters
    ----------
    recipes
        Name to options of `training.fit` except the seed.
    """

    def learnt(name: str, seeds: count[int]) -> dict[str, Any]:
        options = [*recipes[name], "--seed", str(next(seeds))]
        return learn(store, work / name, options)

    cases = {name: partial(learnt, name, count()) for name in recipes}
    found = result.turns(cases, result.settings["seeds"])
    reader = StoreReader.open(store)
    prior = prior_bin_iou(reader) if reader.has_speeds else 0.0
    note = "all roads found, all in the most frequent speed bin of training"
    result.add("city.prior", "", [prior], note=note)
    for name, runs in found.items():
        _record(result, name, runs, prior)


def _record(result: Result, recipe: str, runs: Sequence[dict[str, Any]], prior: float) -> None:
    """Record the runs of a recipe, one per seed, and the metrics of every validated epoch."""
    road, bins, error = (
        [one["metrics"].get(name, math.nan) for one in runs]
        for name in ("road_iou", "bin_iou", "speed_mae_mph")
    )

    def add(name: str, unit: str, values: Sequence[float], **bounds: float) -> None:
        used = bounds if recipe == DEMO else {}
        result.add(f"city.{recipe}.{name}", unit, values, **used)  # type: ignore[arg-type]  # bounds alone

    add("minutes", "min", [one["minutes"] for one in runs], at_most=MINUTES)
    add("road_iou", "", road, at_least=ROAD_IOU)
    add("bin_iou", "", bins, at_least=BIN_IOU)
    over = [value / prior if prior else math.nan for value in bins]
    add("over_prior", "", over, at_least=OVER_PRIOR)
    add("speed_error", "mph", error)
    for epochs in zip(*(one["course"] for one in runs), strict=False):
        for name, unit in (("minutes", "min"), ("road_iou", ""), ("bin_iou", "")):
            add(f"epoch {epochs[0]['epoch']}.{name}", unit, [one[name] for one in epochs])


def learn(store: Path, out: Path, options: Sequence[str]) -> dict[str, Any]:
    """Train and evaluate with the commands.

    Returns
    -------
    dict
        ``metrics`` of the best checkpoint, ``minutes`` of training, and ``course``: see `course`.
    """
    start = time.perf_counter()
    rows = fit(store, out, options)
    minutes = (time.perf_counter() - start) / 60
    weights = next(out / name for name in ("best.pt", "last.pt") if (out / name).exists())
    figures = out / "figures.json"
    evaluation = ["-m", "training.evaluate", str(weights), str(store), "--split", "val"]
    run([sys.executable, *evaluation, "--json", str(figures), "--quiet"])
    metrics = json.loads(figures.read_text(encoding="utf-8"))["metrics"]
    metrics = {name: math.nan if value is None else value for name, value in metrics.items()}
    return {"metrics": metrics, "minutes": minutes, "course": course(rows)}


def course(rows: Rows) -> list[dict[str, Any]]:
    """Return epoch, minutes of training, road IoU and bin IoU of every epoch with validation.

    Road IoU is at the best threshold found by validation; bin IoU at 0.5.
    """
    validated = [row for row in rows if row.get("best_road_iou")]
    return [
        {
            "epoch": int(row["epoch"]),
            "minutes": float(row["seconds"]) / 60,
            "road_iou": float(row["best_road_iou"]),
            "bin_iou": float(row.get("bin_iou") or "nan"),
        }
        for row in validated
    ]


def prior_bin_iou(store: StoreReader) -> float:
    """Return the mean bin IoU of the most frequent speed bin of the train split, for all roads.

    The road mask is assumed to be correct; with a worse mask the score would be lower. The IoU of
    that bin is then its share of the road pixels, and 0 for all other bins.

    Parameters
    ----------
    store
        Store whose validation scenes are used.
    """
    speeds = RamTiles.load(store, split="val", progress=False).speed
    common = int(np.argmax(_bin_counts(np.asarray(store.histogram_speed))))
    counts = _bin_counts(np.bincount(speeds.reshape(-1), minlength=256))
    return float(counts[common] / max(counts.sum(), 1) / max((counts > 0).sum(), 1))


def _bin_counts(histogram: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the number of pixels per speed bin from the number per mph."""
    return np.bincount(BIN_TABLE, weights=histogram, minlength=BIN_COUNT + 1)[1:]
