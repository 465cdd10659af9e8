"""What the trainer learns with its defaults: on a synthetic city, and on a real chip by heart."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import ROOT, ChildError, run
from benchmarks.common import Result
from geoprep.speed import BIN_COUNT, BIN_TABLE
from geoprep.store import Store
from training.config import Config

SCENES, SEED = 48, 0
MINUTES = 6.0
ROAD_IOU = 0.55
OVER_PRIOR = 2.0
"""What "well above the prior" means for the mean IoU of speed bins."""

CHIP_STEPS = 300
CHIP_IOU = 0.5

GEOPREP = (sys.executable, "-c", "from geoprep.cli import main; main()")


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
    result: Result,
    store: Path,
    work: Path,
    *,
    options: Sequence[str],
    seeds: int,
    announce: Callable[[str], None],
) -> None:
    """Record how well runs with several seeds do on the validation scenes.

    Parameters
    ----------
    result
        Gets the figures.
    store
        Of the city.
    work
        Folder for the runs.
    options
        Of `training.fit`, beside its defaults and the seed.
    seeds
        From 0 on.
    announce
        Told what runs next.
    """
    found = []
    for seed in range(seeds):
        announce(f"learning a city, seed {seed}")
        found.append(_learn(store, work / f"seed{seed}", [*options, "--seed", str(seed)], "val"))
    prior = prior_bin_iou(Store.open(store))
    promised = not result.settings["quick"]
    minutes = [f["seconds"] / 60 for f in found]
    road = [f["metrics"]["road_iou"] for f in found]
    bins = [f["metrics"]["bin_iou"] for f in found]

    def add(name: str, unit: str, values: list[float], note: str = "", **bound: float) -> None:
        result.add(f"city.{name}", unit, values, note=note, **(bound if promised else {}))

    add("minutes", "min", minutes, "the whole command", at_most=MINUTES)
    add("road_iou", "", road, "of the best checkpoint, on validation scenes", at_least=ROAD_IOU)
    add("bin_iou", "", bins, "mean over the speed bins that occur")
    add("prior", "", [prior], "all roads known, all in the commonest bin of training")
    over = [value / prior for value in bins]
    add("over_prior", "", over, "bin_iou over prior", at_least=OVER_PRIOR)
    add("speed_error", "mph", [f["metrics"]["speed_mae_mph"] for f in found], "on road pixels")
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
    from loaders import RamTiles

    tiles = RamTiles.load(store, split="val", progress=False)
    return np.bincount(tiles.speed.reshape(-1), minlength=256)


def measure_chip(
    result: Result, source: Path, work: Path, *, steps: int, announce: Callable[[str], None]
) -> None:
    """Record how well a network from random weights fits one real chip.

    Parameters
    ----------
    result
        Gets the figures, or a note where there is no chip.
    source
        Folder in SpaceNet's layout; the first city found in it counts.
    work
        Folder for store and run.
    steps
        Of batches with the default size.
    announce
        Told what runs next.
    """
    from benchmarks.chips import real

    chips = real(work, source, 1)
    if chips is None:
        result.notes.append(f"no real chip in {source}: nothing was learnt by heart")
        return
    announce("learning a real chip by heart")
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
    promised = not result.settings["quick"]
    result.add(
        "chip.road_iou",
        "",
        [found["metrics"]["road_iou"]],
        at_least=CHIP_IOU if promised else None,
        note=f"{steps} steps of {sampling.batch_size} x {sampling.crop}, on the chip itself",
    )
    result.add("chip.bin_iou", "", [found["metrics"]["bin_iou"]])
    result.add("chip.minutes", "min", [found["seconds"] / 60], note="the whole command")
    result.settings["chip"] = {"options": options, "chips": chips.origin}


def _learn(store: Path, out: Path, options: Sequence[str], split: str) -> dict[str, Any]:
    """Train and evaluate with the commands themselves; return metrics, seconds, IoU by epoch."""
    from benchmarks.fitting.ranks import read_rows

    given = [str(store), "--out", str(out), "--overwrite", "--quiet", *options]
    start = time.perf_counter()
    run([sys.executable, "-m", "training.fit", *given])
    seconds = time.perf_counter() - start
    figures = out / "figures.json"
    weights = next((out / name for name in ("best.pt", "last.pt") if (out / name).exists()), None)
    if weights is None:
        raise ChildError(f"{out}: training left no checkpoint")
    judged = ["-m", "training.evaluate", str(weights), str(store), "--split", split]
    run([sys.executable, *judged, "--json", str(figures), "--quiet"])
    metrics: Mapping[str, float] = json.loads(figures.read_text(encoding="utf-8"))["metrics"]
    curve = [float(row["road_iou"] or "nan") for row in read_rows(out)]
    return {"metrics": metrics, "seconds": seconds, "curve": curve}
