"""What all benchmarks share: options, parts, turns, the record of figures."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from benchmarks.child import ChildError
from benchmarks.machine import machine

T = TypeVar("T")

# Of a file or a pipe rich assumes 80 columns, too few for figures with their spread.
console = Console(width=None if sys.stdout.isatty() else 120)
status = console.status("")
"""Shows in a terminal what is going on, as `announce` says it."""


def announce(text: str) -> None:
    """Say what runs next."""
    status.update(text)


def parser(description: str, *, repeats: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = result.add_argument
    add("--quick", action="store_true", help="small sizes, to see that it runs")
    add("--json", type=Path, metavar="FILE", help="write every figure here")
    add("--plot", type=Path, metavar="FILE", help="draw the figures (.png, .svg)")
    add("--work", type=Path, help="folder for scratch files (default: TMPDIR)")
    text = f"rounds; the median counts (default: {repeats})"
    add("--repeats", type=_positive, default=repeats, help=text)
    return result


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def run_parts(
    result: Result, parts: Mapping[str, Callable[[], object]], only: Sequence[str]
) -> None:
    """Measure the parts asked for; one that fails leaves a note, and the others their figures."""
    for name, measure in parts.items():
        if name in only:
            try:
                measure()
            except ChildError as error:
                result.notes.append(f"{name} failed: {error}")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity.

    Attributes
    ----------
    unit
        Such as ``chips/s``; empty for ratios.
    values
        One per round, at least one.
    at_least, at_most
        What it should be, where something was promised.
    note
        What a reader must know to judge it.
    """

    unit: str
    values: tuple[float, ...]
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest round."""
        return min(self.values), max(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the median keeps the promise; None where there is none."""
        if self.at_least is None and self.at_most is None:
            return None
        low = float("-inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return low <= self.median <= high

    def __str__(self) -> str:
        """Return the median and the spread, ``36.1 (34.0-38.2)``, or one value alone."""
        low, high = (rounded(value) for value in self.spread)
        if low == high:
            return low
        return f"{rounded(self.median)} ({low}-{high})"

    @property
    def promise(self) -> str:
        """The bound and whether it was kept, for a table; empty where there is none."""
        if self.met is None:
            return ""
        bounds = [("at least", self.at_least), ("at most", self.at_most)]
        text = ", ".join(f"{word} {rounded(b)}" for word, b in bounds if b is not None)
        return f"{text}: {'[green]met[/]' if self.met else '[red]missed[/]'}"

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        low, high = self.spread
        derived = {"median": self.median, "min": low, "max": high, "met": self.met}
        return {**asdict(self), **derived, "values": list(self.values)}


def rounded(value: float) -> str:
    """Return three digits or all before the point, as people write measurements."""
    for limit, digits in ((100, 0), (10, 1), (0.1, 2)):
        if abs(value) >= limit:
            return f"{value:,.{digits}f}"
    return f"{value:.3g}"


@dataclass
class Result:
    """Every figure of one run, and what it ran on; a quick look promises nothing."""

    benchmark: str
    settings: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=machine)
    figures: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))

    def add(
        self,
        name: str,
        unit: str,
        values: Iterable[float],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        note: str = "",
    ) -> Figure:
        """Record a figure under a dotted name, ``uint8.build.rate``, and return it."""
        if name in self.figures:
            raise ValueError(f"{name} is measured twice")
        if self.settings.get("quick"):
            at_least = at_most = None
        figure = Figure(unit, tuple(float(v) for v in values), at_least, at_most, note)
        self.figures[name] = figure
        return figure

    def __getitem__(self, name: str) -> Figure:
        return self.figures[name]

    def turns(
        self, cases: Mapping[str, Callable[[], T]], repeats: int | None = None
    ) -> dict[str, list[T]]:
        """Run every case once per round; every second round backwards, so that drift cancels out.

        Parameters
        ----------
        cases
            Name to what is run; it measures itself. One whose child fails leaves a note and is left
            out, and the others go on.
        repeats
            Rounds; those of the settings by default.

        Returns
        -------
        dict
            Name to results, one per round, in the order of the rounds.
        """
        repeats = repeats or self.settings["repeats"]
        results: dict[str, list[T]] = {name: [] for name in cases}
        for number in range(repeats):
            for name in list(results)[:: -1 if number % 2 else 1]:
                announce(f"round {number + 1} of {repeats}: {name}")
                try:
                    results[name].append(cases[name]())
                except ChildError as error:
                    self.notes.append(f"{name} is left out: {error}")
                    del results[name]
        return results

    def write(self, path: Path) -> None:
        """Write the record as JSON."""
        figures = {name: figure.to_json() for name, figure in self.figures.items()}
        record = {**vars(self), "figures": figures}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2, default=str) + "\n", encoding="utf-8")


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratio of every round: both sides of each were measured in the same minute."""
    return [a / b for a, b in zip(over, under, strict=True)]
