"""``torchrun --nproc-per-node 2 -m training.fit`` beside one process, for the same global batch."""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.child import run
from benchmarks.common import Result, interleave, ratios

RANKS = 2
DIFFERENCE = 0.05
"""Most by which the loss of an epoch may differ: BatchNorm sees half the batch in each rank."""

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))

Rows = list[dict[str, str]]


def measure_ranks(
    result: Result,
    store: Path,
    work: Path,
    *,
    batch_size: int,
    crop: int,
    epochs: int,
    repeats: int,
    announce: Callable[[str], None],
) -> None:
    """Record the rates of one process and of two, and by how much their losses differ.

    Parameters
    ----------
    result
        Gets the figures.
    store
        What is trained on.
    work
        Folder for the runs.
    batch_size, crop
        Of all ranks together; of the windows.
    epochs
        Of one window a tile. The first is not timed, since it compiles.
    repeats
        Rounds.
    announce
        Told what runs next.
    """
    options = ["--crop", str(crop), "--crops-per-tile", "1", "--epochs", str(epochs)]
    options += ["--val-every", str(epochs), "--pictures", "0", "--save-every", "1h"]
    # Learning slowly, or rounding alone would soon have led the two apart.
    options += ["--schedule", "constant", "--lr", "1e-4", "--engine", "native"]
    cases: dict[str, Callable[[], Rows]] = {
        "one": partial(fit, store, work, ["--batch-size", str(batch_size), *options]),
        "two": partial(
            fit, store, work, ["--batch-size", str(batch_size // RANKS), *options], TORCHRUN
        ),
    }
    found = interleave(cases, repeats, lambda text: announce(f"ranks, {text}"))
    for name, runs in found.items():
        rates = [statistics.median(_column(rows, "images_per_s")[1:]) for rows in runs]
        result.add(f"ranks.{name}.rate", "images/s", rates)
        result.settings[f"ranks.{name}.loss"] = _column(runs[0], "loss")
    result.add(
        "ranks.over_one",
        "",
        ratios(result["ranks.two.rate"].values, result["ranks.one.rate"].values),
        note=f"{RANKS} processes over one, on the same cores, for the same global batch",
    )
    result.add(
        "ranks.difference",
        "",
        [_difference(*pair) for pair in zip(found["one"], found["two"], strict=True)],
        at_most=None if result.settings["quick"] else DIFFERENCE,
        note="largest relative difference of an epoch's loss",
    )


def fit(store: Path, work: Path, options: Sequence[str], launcher: Sequence[str] = ()) -> Rows:
    """Train with the command itself; return the rows of metrics.csv, one an epoch."""
    out = work / "run"
    given = ["-m", "training.fit", str(store), "--out", str(out), "--overwrite", "--quiet"]
    run([sys.executable, *launcher, *given, *options])
    return read_rows(out)


def read_rows(out: Path) -> Rows:
    """Return the rows of a run's metrics.csv, one an epoch."""
    with (out / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _column(rows: Rows, name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def _difference(one: Rows, two: Rows) -> float:
    pairs = zip(_column(one, "loss"), _column(two, "loss"), strict=True)
    return max(abs(b - a) / a for a, b in pairs)
