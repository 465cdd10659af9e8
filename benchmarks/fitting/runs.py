"""Run `training.fit` as a command, or in a process that reports its peak memory."""

from __future__ import annotations

import csv
import importlib
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT, run

IPEX_PYTHON = ROOT / ".venv-ipex" / "bin" / "python"

Rows = list[dict[str, str]]


def command_line(store: Path, out: Path, options: Sequence[str]) -> list[str]:
    """Return the arguments of `training.fit` for a run."""
    return [str(store), "--out", str(out), "--overwrite", "--quiet", *options]


def fit(store: Path, out: Path, options: Sequence[str], launcher: Sequence[str] = ()) -> Rows:
    """Train with the command; return the rows of metrics.csv, one per epoch."""
    run([sys.executable, *launcher, "-m", "training.fit", *command_line(store, out, options)])
    return read_rows(out)


def read_rows(out: Path) -> Rows:
    """Return the rows of a run's metrics.csv."""
    with (out / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def fit_here(words: Sequence[str], *, keep_memory: bool) -> dict[str, Any]:
    """Train in this process; return its peak memory in bytes.

    Parameters
    ----------
    words
        Arguments of `training.fit`.
    keep_memory
        True to make the allocator keep freed memory, as `training.fit` does.
    """
    from benchmarks.machine import resident
    from training.fit import main

    if not keep_memory:
        start = importlib.import_module("training.run.start")
        setattr(start, "keep_memory", lambda: "system default")  # noqa: B010 - for mypy
    if status := main(words):
        raise SystemExit(status)
    return {"peak": resident()}


def column(rows: Rows, name: str) -> list[float]:
    """Return a column as floats, one per epoch; NaN where it is empty."""
    return [float(row[name] or "nan") for row in rows]


def steady(rows: Rows, name: str) -> float:
    """Return the median of a column over all epochs except the first, which compiles."""
    return statistics.median(column(rows, name)[1:])
