"""What is measured with the commands themselves: two ranks beside one, and what a run learns."""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import ROOT, ChildError, run
from benchmarks.chips import real
from benchmarks.common import Result, announce, interleave, ratios
from geoprep.speed import BIN_COUNT, BIN_TABLE
from geoprep.store import Store
from loaders import RamTiles
from training.config import Config

RANKS = 2
DIFFERENCE = 0.05
"""Most by which the loss of an epoch may differ: BatchNorm sees half the batch in each rank."""

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))

SCENES, SEED = 48, 0
MINUTES = 6.0
ROAD_IOU = 0.55
OVER_PRIOR = 2.0
"""What "well above the prior" means for the mean IoU of speed bins."""

CHIP_IOU = 0.5

GEOPREP = (sys.executable, "-c", "from geoprep.cli import main; main()")

Rows = list[dict[str, str]]


def fit(
    store: Path, out: Path, options: Sequence[str], launcher: Sequence[str] = ()
) -> tuple[Rows, float]:
    """Train with the command itself; return the rows of metrics.csv, one per epoch, and seconds."""
    given = ["-m", "training.fit", str(store), "--out", str(out), "--overwrite", "--quiet"]
    start = time.perf_counter()
    run([sys.executable, *launcher, *given, *options])
    seconds = time.perf_counter() - start
    with (out / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)), seconds


def measure_ranks(result: Result, store: Path, work: Path, *, epochs: int) -> None:
    """Record the rates of one process and of two, and by how much their losses differ.

    Parameters
    ----------
    work
        Folder for the runs.
    epochs
        Of one window per tile. The first is not timed, since it compiles.
    """
    of = result.settings
    options = ["--crop", str(of["crop"]), "--crops-per-tile", "1", "--epochs", str(epochs)]
    options += ["--val-every", str(epochs), "--pictures", "0", "--save-every", "1h"]
    # Learning slowly, or rounding alone would soon have led the two apart.
    options += ["--schedule", "constant", "--lr", "1e-4", "--engine", "native"]

    def rows(ranks: int, launcher: Sequence[str] = ()) -> Rows:
        size = ["--batch-size", str(of["batch_size"] // ranks)]
        return fit(store, work / "run", [*size, *options], launcher)[0]

    cases: dict[str, Callable[[], Rows]] = {
        "one": partial(rows, 1),
        "two": partial(rows, RANKS, TORCHRUN),
    }
    found = interleave(cases, min(of["repeats"], 2))
    for name, runs in found.items():
        rates = [statistics.median(_column(each, "images_per_s")[1:]) for each in runs]
        result.add(f"ranks.{name}.rate", "images/s", rates)
        result.settings[f"ranks.{name}.loss"] = _column(runs[0], "loss")
    over = ratios(result["ranks.two.rate"].values, result["ranks.one.rate"].values)
    note = f"{RANKS} processes over one, on the same cores, for the same global batch"
    result.add("ranks.over_one", "", over, note=note)
    differences = [difference(*pair) for pair in zip(found["one"], found["two"], strict=True)]
    note = "largest relative difference of an epoch's loss"
    result.add("ranks.difference", "", differences, at_most=DIFFERENCE, note=note)


def _column(rows: Rows, name: str) -> list[float]:
    return [float(row[name] or "nan") for row in rows]


def difference(one: Rows, two: Rows) -> float:
    """Return the largest relative difference of an epoch's loss."""
    pairs = zip(_column(one, "loss"), _column(two, "loss"), strict=True)
    return max(abs(b - a) / a for a, b in pairs)


def demo_options(makefile: Path = ROOT / "Makefile") -> list[str]:
    """Return how `make demo` trains, beside the defaults.

    Raises
    ------
    ChildError
        The file has no such command.
    """
    text = makefile.read_text(encoding="utf-8")
    variables = dict(re.findall(r"^(\w+) \??= (.*)$", text, re.MULTILINE))
    line = re.search(r"-m training\.fit \S+ (.*)--out", text)
    if line is None:
        raise ChildError(f"{makefile}: no training.fit with --out; give --fit-options")
    return re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], line[1]).split()


def build_city(work: Path, scenes: int, size: int) -> Path:
    """Draw the demo's city and build its store with the commands that a user has."""
    source, store = work / "city", work / "moscow.zarr"
    drawn = ["--scenes", str(scenes), "--seed", str(SEED), "--size", str(size)]
    run([*GEOPREP, "synth", "--city", "moscow", *drawn, "--out", str(source)])
    run([*GEOPREP, "build-zarr", "--city", "moscow", "--source", str(source), "--out", str(store)])
    return store


def measure_city(
    result: Result, store: Path, work: Path, *, options: Sequence[str], seeds: int
) -> None:
    """Record how well runs with several seeds do on the validation scenes.

    Parameters
    ----------
    work
        Folder for the runs.
    options
        Of `training.fit`, beside its defaults and the seed.
    seeds
        How many, from 0 on.
    """
    found = []
    for seed in range(seeds):
        announce(f"seed {seed}")
        found.append(_learn(store, work / f"seed{seed}", [*options, "--seed", str(seed)], "val"))
    prior = prior_bin_iou(Store.open(store))
    road, bins, error = (
        [f["metrics"][name] for f in found] for name in ("road_iou", "bin_iou", "speed_mae_mph")
    )

    def add(name: str, unit: str, values: list[float], note: str = "", **bound: float) -> None:
        result.add(f"city.{name}", unit, values, note=note, **bound)

    add("minutes", "min", [f["seconds"] / 60 for f in found], "the whole command", at_most=MINUTES)
    add("road_iou", "", road, "of the best checkpoint, on validation scenes", at_least=ROAD_IOU)
    add("bin_iou", "", bins, "mean over the speed bins that occur")
    add("prior", "", [prior], "all roads known, all in the commonest bin of training")
    over = [value / prior for value in bins]
    add("over_prior", "", over, "bin_iou over prior", at_least=OVER_PRIOR)
    add("speed_error", "mph", error, "on road pixels")
    result.settings["city"] = {"options": list(options), "seeds": seeds}
    result.settings["curves"] = [f["curve"] for f in found]


def prior_bin_iou(store: Store) -> float:
    """Return the mean bin IoU of one guess for all: the commonest speed bin of the train split.

    Every road of the validation scenes is taken as found, and nothing else as road: with a worse
    mask the guess would score less. Its IoU is then the share of that bin, and 0 for all others.

    Parameters
    ----------
    store
        Whose validation scenes are judged.
    """
    common = int(np.argmax(_bin_counts(np.asarray(store.histogram_speed))))
    counts = _bin_counts(_val_histogram(store))
    return float(counts[common] / max(counts.sum(), 1) / max((counts > 0).sum(), 1))


def _bin_counts(histogram: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return pixels in each speed bin, of pixels of each mph."""
    return np.bincount(BIN_TABLE, weights=histogram, minlength=BIN_COUNT + 1)[1:]


def _val_histogram(store: Store) -> np.ndarray[Any, Any]:
    tiles = RamTiles.load(store, split="val", progress=False)
    return np.bincount(tiles.speed.reshape(-1), minlength=256)


def measure_chip(result: Result, source: Path, work: Path, *, steps: int) -> None:
    """Record how well a network from random weights fits one real chip.

    Parameters
    ----------
    source
        Folder in SpaceNet's layout; the first city found in it counts.
    work
        Folder for store and run.
    steps
        Of batches with the default size.
    """
    chips = real(work, source, 1)
    if chips is None:
        result.notes.append(f"no real chip in {source}: nothing was learnt by heart")
        return
    announce("by heart")
    store = work / "chip.zarr"
    given = ["--city", chips.city.name, "--source", str(chips.folder), "--out", str(store)]
    run([*GEOPREP, "build-zarr", *given])
    sampling = Config().sampling
    assert isinstance(sampling.batch_size, int)
    tiles = int(np.sum(Store.open(store).tiles.split == 0))
    windows = -(-steps * sampling.batch_size // tiles)
    options = ["--epochs", "1", "--crops-per-tile", str(windows), "--encoder-weights", "none"]
    options += ["--augment", "none", "--jitter", "0"]  # by heart: as it is, and no other way
    found = _learn(store, work / "chip", options, "train")
    road, bins = ([found["metrics"][name]] for name in ("road_iou", "bin_iou"))
    note = f"{steps} steps of {sampling.batch_size} x {sampling.crop}, on the chip itself"
    result.add("chip.road_iou", "", road, at_least=CHIP_IOU, note=note)
    result.add("chip.bin_iou", "", bins)
    result.add("chip.minutes", "min", [found["seconds"] / 60], note="the whole command")
    result.settings["chip"] = {"options": options, "chips": chips.origin}


def _learn(store: Path, out: Path, options: Sequence[str], split: str) -> dict[str, Any]:
    """Train and evaluate with the commands themselves; return metrics, seconds, IoU by epoch."""
    rows, seconds = fit(store, out, options)
    figures = out / "figures.json"
    weights = next((out / name for name in ("best.pt", "last.pt") if (out / name).exists()), None)
    if weights is None:
        raise ChildError(f"{out}: training left no checkpoint")
    judged = ["-m", "training.evaluate", str(weights), str(store), "--split", split]
    run([sys.executable, *judged, "--json", str(figures), "--quiet"])
    metrics: Mapping[str, float] = json.loads(figures.read_text(encoding="utf-8"))["metrics"]
    return {"metrics": metrics, "seconds": seconds, "curve": _column(rows, "road_iou")}
