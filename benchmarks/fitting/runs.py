"""Runs of `training.fit`: the command itself, or in a child that tells how much memory it took."""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT, run

IPEX_PYTHON = ROOT / ".venv-ipex" / "bin" / "python"

Rows = list[dict[str, str]]


def words_of(store: Path, out: Path, options: Sequence[str]) -> list[str]:
    """Return the command line of a run."""
    return [str(store), "--out", str(out), "--overwrite", "--quiet", *options]


def fit(store: Path, out: Path, options: Sequence[str], launcher: Sequence[str] = ()) -> Rows:
    """Train with the command; return the rows of metrics.csv, one per epoch."""
    run([sys.executable, *launcher, "-m", "training.fit", *words_of(store, out, options)])
    return read_rows(out)


def read_rows(out: Path) -> Rows:
    """Return the rows of a run's metrics.csv."""
    with (out / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def fit_here(words: Sequence[str], *, keep_memory: bool) -> dict[str, Any]:
    """Train in this process; return the peak of its memory in bytes.

    Parameters
    ----------
    words
        The command line.
    keep_memory
        Whether the allocator is told to keep what is freed, as `training.fit` has it.
    """
    from benchmarks.machine import resident
    from training import start
    from training.fit import main

    if not keep_memory:
        setattr(start, "keep_memory", lambda: "as the system has it")  # noqa: B010 - for mypy
    if status := main(words):
        raise SystemExit(status)
    return {"peak": resident()}


def column(rows: Rows, name: str) -> list[float]:
    """Return a figure of every epoch; not a number where it was not taken."""
    return [float(row[name] or "nan") for row in rows]


def steady(rows: Rows, name: str) -> float:
    """Return the median of a figure over all epochs but the first, which compiles."""
    return statistics.median(column(rows, name)[1:])
