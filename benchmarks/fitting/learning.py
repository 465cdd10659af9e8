"""What a run learns, with the commands themselves: recipes on a synthetic city, a chip by heart."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import ROOT, ChildError, run
from benchmarks.chips import real
from benchmarks.common import Result, announce
from benchmarks.fitting.runs import column, fit
from geoprep.speed import BIN_COUNT, BIN_TABLE
from geoprep.store import Store
from loaders import RamTiles
from training.config import Config

SCENES, SEED = 48, 0
DEMO = "demo"
"""Name of the recipe of `make demo`, of which something is promised."""
BUILD, FIT = "--source $(DEMO)/data", "-m training.fit $(DEMO)/moscow.zarr"
"""What the options of its commands follow in the Makefile."""

MINUTES = 5.0
REACH = (0.70, 0.40)
"""Road IoU and mean IoU of speed bins that the demo is to reach, and whose minutes are told."""
OVER_PRIOR = 2.0
"""What "well above the prior" means for the mean IoU of speed bins."""

CHIP_IOU = 0.5

GEOPREP = (sys.executable, "-c", "from geoprep.cli import main; main()")


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
    """Draw the demo's city and build its store with the commands that a user has, once per folder.

    Parameters
    ----------
    folder
        Where the store is afterwards, or was before.
    scenes, size
        Of the city, and their side in pixels.
    """
    store = folder / f"moscow-{scenes}-{size}.zarr"
    if store.exists():
        return store
    drawing = folder / "drawing"
    shutil.rmtree(drawing, ignore_errors=True)
    source, made = str(drawing / "city"), drawing / "moscow.zarr"
    drawn = ["--scenes", str(scenes), "--seed", str(SEED), "--size", str(size)]
    run([*GEOPREP, "synth", "--city", "moscow", *drawn, "--out", source])
    built = ["--city", "moscow", "--source", source, *demo_options(BUILD), "--out", str(made)]
    run([*GEOPREP, "build-zarr", *built])
    made.rename(store)
    shutil.rmtree(drawing)
    return store


def measure_city(
    result: Result,
    store: Path,
    folder: Path,
    *,
    recipes: Mapping[str, Sequence[str]],
    seeds: int,
    reach: tuple[float, float] = REACH,
) -> None:
    """Record how well recipes do on the validation scenes, in turns, and in how many minutes.

    Parameters
    ----------
    folder
        Of the runs, by recipe and seed. A run that is finished there is not done again.
    recipes
        Name to options of `training.fit` beside its defaults and the seed.
    seeds
        How many, from 0 on; every second one takes the recipes backwards.
    reach
        Road IoU and mean IoU of speed bins whose minutes are wanted.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in recipes}
    for seed in range(seeds):
        for name in list(recipes)[:: -1 if seed % 2 else 1]:
            announce(f"seed {seed} of {name}")
            options = [*recipes[name], "--seed", str(seed)]
            try:
                found[name].append(learn(store, folder / name / f"seed{seed}", options, "val"))
            except ChildError as error:
                result.notes.append(f"{name}, seed {seed}: {error}")
    prior = prior_bin_iou(Store.open(store))
    note = "all roads known, all in the commonest bin of training"
    result.add("city.prior", "", [prior], note=note)
    for name, runs in found.items():
        if runs:
            _record(result, name, runs, prior, reach)
    result.settings["city"] = {"recipes": {n: list(o) for n, o in recipes.items()}, "seeds": seeds}
    result.settings["curves"] = {
        name: [run["curve"] for run in runs] for name, runs in found.items()
    }


def _record(
    result: Result,
    recipe: str,
    runs: Sequence[dict[str, Any]],
    prior: float,
    reach: tuple[float, float],
) -> None:
    """Record the runs of a recipe, one per seed."""
    road, bins, error = (
        [run["metrics"][name] for run in runs] for name in ("road_iou", "bin_iou", "speed_mae_mph")
    )
    over = [value / prior for value in bins]

    def add(name: str, unit: str, values: Sequence[float], **promise: float) -> None:
        bound = promise if recipe == DEMO else {}
        result.add(f"city.{recipe}.{name}", unit, values, **bound)  # type: ignore[arg-type]  # bounds alone

    add("minutes", "min", [run["seconds"] / 60 for run in runs], at_most=MINUTES)
    add("road_iou", "", road, at_least=REACH[0])
    add("bin_iou", "", bins, at_least=REACH[1])
    add("over_prior", "", over, at_least=OVER_PRIOR)
    add("speed_error", "mph", error)
    for what, (least_road, least_bins) in {
        "to_road": (reach[0], 0.0),
        "to_bins": (0.0, reach[1]),
        "to_both": reach,
    }.items():
        took = [minutes_to(run["curve"], least_road, least_bins) for run in runs]
        there = [minutes for minutes in took if minutes is not None]
        if len(there) == len(runs):
            add(what, "min", there)
        else:
            result.notes.append(f"{recipe}: {what} by {len(there)} of {len(runs)} seeds, {there}")


def minutes_to(
    curve: Sequence[Mapping[str, float]], road_iou: float, bin_iou: float
) -> float | None:
    """Return the minutes after which an epoch was that good in both; None where none was.

    Parameters
    ----------
    curve
        ``minutes``, ``road_iou`` and ``bin_iou`` of every epoch that was validated.
    """
    good = (e for e in curve if e["road_iou"] >= road_iou and e["bin_iou"] >= bin_iou)
    return next((epoch["minutes"] for epoch in good), None)


def learn(store: Path, out: Path, options: Sequence[str], split: str) -> dict[str, Any]:
    """Train and evaluate with the commands themselves, unless that was done before.

    Returns
    -------
    dict
        ``metrics`` of the best checkpoint, ``seconds`` of the whole command, and ``curve``.

    Raises
    ------
    ChildError
        A command failed, or the folder has a run of other options.
    """
    done, figures = out / "learnt.json", out / "figures.json"
    asked = {"store": store.name, "options": list(options), "split": split}
    if done.exists():
        kept: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        if kept["asked"] != asked:
            raise ChildError(f"{out} is a run of {kept['asked']}: take another name or folder")
        return kept
    began = time.time()
    rows, seconds = fit(store, out, options)
    weights = next((out / name for name in ("best.pt", "last.pt") if (out / name).exists()), None)
    if weights is None:
        raise ChildError(f"{out}: training left no checkpoint")
    judged = ["-m", "training.evaluate", str(weights), str(store), "--split", split]
    run([sys.executable, *judged, "--json", str(figures), "--quiet"])
    metrics: Mapping[str, float] = json.loads(figures.read_text(encoding="utf-8"))["metrics"]
    # Roads as a map has them, from the threshold on that validation finds best; bins from 0.5.
    ious = zip(column(rows, "best_road_iou"), column(rows, "bin_iou"), strict=True)
    curve = [
        {"minutes": minutes, "road_iou": road, "bin_iou": bins}
        for minutes, (road, bins) in zip(epoch_minutes(out / "log.txt", began), ious, strict=True)
    ]
    found = {"asked": asked, "metrics": metrics, "seconds": seconds, "curve": curve}
    done.write_text(json.dumps(found), encoding="utf-8")
    return found


def epoch_minutes(log: Path, began: float) -> list[float]:
    """Return after how many minutes each epoch was trained and judged, by the run's log.

    Parameters
    ----------
    began
        When the command was started, in seconds of `time.time`.
    """
    ends = re.findall(r"^(\S+ \S+) epoch \d+/\d+ ", log.read_text(encoding="utf-8"), re.MULTILINE)
    return [(datetime.fromisoformat(end).timestamp() - began) / 60 for end in ends]


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
    config = Config()
    assert isinstance(config.batch_size, int)
    tiles = int(np.sum(Store.open(store).tiles.split == 0))
    windows = -(-steps * config.batch_size // tiles)
    options = ["--epochs", "1", "--crops-per-tile", str(windows), "--encoder-weights", "none"]
    options += ["--augment", "none", "--jitter", "0"]  # by heart: as it is, and no other way
    found = learn(store, work / "chip", options, "train")
    road, bins = ([found["metrics"][name]] for name in ("road_iou", "bin_iou"))
    note = f"{steps} steps of {config.batch_size} x {config.crop}, on the chip itself"
    result.add("chip.road_iou", "", road, at_least=CHIP_IOU, note=note)
    result.add("chip.bin_iou", "", bins)
    result.add("chip.minutes", "min", [found["seconds"] / 60], note="the whole command")
    result.settings["chip"] = {"options": options, "chips": chips.origin}
