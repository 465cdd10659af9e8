"""What a run learns, with the commands themselves: recipes on a synthetic city."""

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
"""Name of the recipe of `make demo`, of which something is promised."""
BUILD, FIT = "--source $(DEMO)/data", "-m training.fit $(DEMO)/moscow.zarr"
"""What the options of its commands follow in the Makefile."""

MINUTES = 5.0
ROAD_IOU, BIN_IOU = 0.70, 0.40
OVER_PRIOR = 2.0
"""What "well above the prior" means for the mean IoU of speed bins."""


def demo_options(after: str = FIT, makefile: Path = ROOT / "Makefile") -> list[str]:
    """Return the options that `make demo` gives a command, up to ``--out``.

    Parameters
    ----------
    after
        Words of the command that they follow: `FIT` or `BUILD`.

    Raises
    ------
    ChildError
        The file has no such command.
    """
    text = makefile.read_text(encoding="utf-8")
    variables = dict(re.findall(r"^(\w+) \??= (.*)$", text, re.MULTILINE))
    line = re.search(rf"{re.escape(after)} (.*)--out", text)
    if line is None:
        raise ChildError(f"{makefile}: no {after} with --out; give --recipe")
    return re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], line[1]).split()


def parse_recipe(text: str) -> tuple[str, list[str]]:
    """Return name and options of ``NAME=--batch-size 4 --ema 0.99``; no options are the defaults.

    Raises
    ------
    ValueError
        It has no such name.
    """
    name, equals, options = text.partition("=")
    if not equals or not re.fullmatch(r"[\w-]+", name):
        raise ValueError(f"{text!r}: write NAME=OPTIONS, such as ema='--batch-size 4 --ema 0.99'")
    return name, options.split()


def build_city(folder: Path, scenes: int, size: int) -> Path:
    """Draw the demo's city and build its store with the commands that a user has.

    Parameters
    ----------
    scenes, size
        Of the city, and their side in pixels.
    """
    announce("drawing a city")
    source, store = str(folder / "city"), folder / "moscow.zarr"
    drawn = ["--city", "moscow", "--scenes", str(scenes), "--size", str(size), "--out", source]
    run([*GEOPREP, "synth", *drawn])
    built = ["--city", "moscow", "--source", source, *demo_options(BUILD), "--out", str(store)]
    run([*GEOPREP, "build-zarr", *built])
    return store


def measure_city(
    result: Result, store: Path, work: Path, recipes: Mapping[str, Sequence[str]]
) -> None:
    """Record how well recipes do on the validation scenes, in turns, one run per seed.

    Parameters
    ----------
    recipes
        Name to options of `training.fit` beside its defaults and the seed.
    """

    def learnt(name: str, seeds: count[int]) -> dict[str, Any]:
        options = [*recipes[name], "--seed", str(next(seeds))]
        return learn(store, work / name, options)

    cases = {name: partial(learnt, name, count()) for name in recipes}
    found = result.turns(cases, result.settings["seeds"])
    prior = prior_bin_iou(StoreReader.open(store))
    note = "all roads known, all in the commonest bin of training"
    result.add("city.prior", "", [prior], note=note)
    for name, runs in found.items():
        _record(result, name, runs, prior)


def _record(result: Result, recipe: str, runs: Sequence[dict[str, Any]], prior: float) -> None:
    """Record the runs of a recipe, one per seed; and the course of each that was validated."""
    road, bins, error = (
        [one["metrics"][name] for one in runs] for name in ("road_iou", "bin_iou", "speed_mae_mph")
    )

    def add(name: str, unit: str, values: Sequence[float], **promise: float) -> None:
        bound = promise if recipe == DEMO else {}
        result.add(f"city.{recipe}.{name}", unit, values, **bound)  # type: ignore[arg-type]  # bounds alone

    add("minutes", "min", [one["minutes"] for one in runs], at_most=MINUTES)
    add("road_iou", "", road, at_least=ROAD_IOU)
    add("bin_iou", "", bins, at_least=BIN_IOU)
    add(
        "over_prior",
        "",
        [value / prior if prior else math.nan for value in bins],
        at_least=OVER_PRIOR,
    )
    add("speed_error", "mph", error)
    for epochs in zip(*(one["course"] for one in runs), strict=False):
        for name, unit in (("minutes", "min"), ("road_iou", ""), ("bin_iou", "")):
            add(f"epoch {epochs[0]['epoch']}.{name}", unit, [one[name] for one in epochs])


def learn(store: Path, out: Path, options: Sequence[str]) -> dict[str, Any]:
    """Train and evaluate with the commands themselves.

    Returns
    -------
    dict
        ``metrics`` of the best checkpoint, ``minutes`` of the whole training, and its ``course``.
    """
    start = time.perf_counter()
    rows = fit(store, out, options)
    minutes = (time.perf_counter() - start) / 60
    weights = next(out / name for name in ("best.pt", "last.pt") if (out / name).exists())
    figures = out / "figures.json"
    judged = ["-m", "training.evaluate", str(weights), str(store), "--split", "val"]
    run([sys.executable, *judged, "--json", str(figures), "--quiet"])
    metrics = json.loads(figures.read_text(encoding="utf-8"))["metrics"]
    metrics = {name: math.nan if value is None else value for name, value in metrics.items()}
    return {"metrics": metrics, "minutes": minutes, "course": course(rows)}


def course(rows: Rows) -> list[dict[str, Any]]:
    """Return epoch, minutes of training, road IoU and bin IoU of every epoch with validation.

    Roads are as a map has them, from the threshold on that validation finds best; bins from 0.5.
    """
    validated = [row for row in rows if row.get("best_road_iou")]
    return [
        {
            "epoch": int(row["epoch"]),
            "minutes": float(row["seconds"]) / 60,
            "road_iou": float(row["best_road_iou"]),
            "bin_iou": float(row["bin_iou"] or "nan"),
        }
        for row in validated
    ]


def prior_bin_iou(store: StoreReader) -> float:
    """Return the mean bin IoU of one guess for all: the commonest speed bin of the train split.

    Every road of the validation scenes is taken as found, and nothing else as road: with a worse
    mask the guess would score less. Its IoU is then the share of that bin, and 0 for all others.

    Parameters
    ----------
    store
        Whose validation scenes are judged.
    """
    speeds = RamTiles.load(store, split="val", progress=False).speed
    common = int(np.argmax(_bin_counts(np.asarray(store.histogram_speed))))
    counts = _bin_counts(np.bincount(speeds.reshape(-1), minlength=256))
    return float(counts[common] / max(counts.sum(), 1) / max((counts > 0).sum(), 1))


def _bin_counts(histogram: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return pixels in each speed bin, of pixels of each mph."""
    return np.bincount(BIN_TABLE, weights=histogram, minlength=BIN_COUNT + 1)[1:]
