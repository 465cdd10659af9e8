"""What is measured with the command itself: a run, and two ranks beside one."""

from __future__ import annotations

import csv
import statistics
import sys
import time
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
        rates = [statistics.median(column(each, "images_per_s")[1:]) for each in runs]
        result.add(f"ranks.{name}.rate", "images/s", rates)
        result.settings[f"ranks.{name}.loss"] = column(runs[0], "loss")
    over = ratios(result["ranks.two.rate"].values, result["ranks.one.rate"].values)
    note = f"{RANKS} processes over one, on the same cores, for the same global batch"
    result.add("ranks.over_one", "", over, note=note)
    differences = [difference(*pair) for pair in zip(found["one"], found["two"], strict=True)]
    note = "largest relative difference of an epoch's loss"
    result.add("ranks.difference", "", differences, at_most=DIFFERENCE, note=note)


def column(rows: Rows, name: str) -> list[float]:
    return [float(row[name] or "nan") for row in rows]


def difference(one: Rows, two: Rows) -> float:
    """Return the largest relative difference of an epoch's loss."""
    pairs = zip(column(one, "loss"), column(two, "loss"), strict=True)
    return max(abs(b - a) / a for a, b in pairs)
