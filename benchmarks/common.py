"""What all benchmarks share: options, turns, the record of figures, the table and the plots."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.table import Table

from geoprep.executors import usable_cores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")

LIBRARIES = ("geoprep", "numpy", "numba", "zarr", "zarrs", "numcodecs", "rasterio", "shapely")
ISA = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve")
"""Instruction sets that change what image code and training cost, as /proc/cpuinfo spells them."""

COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#999999", "#333333"),
)
"""Okabe and Ito's palette, told apart by people with any kind of colour blindness."""

STYLE: dict[str, Any] = {
    "figure.dpi": 120,
    "figure.facecolor": "white",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}

# Of a file or a pipe rich assumes 80 columns, too few for figures with their spread.
console = Console(width=None if sys.stdout.isatty() else 120)


def parser(description: str, *, repeats: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    result.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    result.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures (.png, .svg)")
    result.add_argument(
        "--repeats",
        type=_positive,
        default=repeats,
        help=f"rounds; the median counts (default: {repeats})",
    )
    return result


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def interleave(
    cases: Mapping[str, Callable[[], T]],
    repeats: int,
    announce: Callable[[str], None] = lambda text: None,
) -> dict[str, list[T]]:
    """Run every case once a round; every second round backwards, so that drift cancels out.

    Parameters
    ----------
    cases
        Name to what is run; it measures itself.
    repeats
        Rounds.
    announce
        Told what runs next.

    Returns
    -------
    dict
        Name to results, one a round, in the order of the rounds.
    """
    results: dict[str, list[T]] = {name: [] for name in cases}
    for number in range(repeats):
        names = list(cases) if number % 2 == 0 else list(cases)[::-1]
        for name in names:
            announce(f"round {number + 1} of {repeats}: {name}")
            results[name].append(cases[name]())
    return results


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity.

    Attributes
    ----------
    unit
        Such as ``chips/s``; empty for ratios.
    values
        One a round, at least one.
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
        low, high = (_rounded(value) for value in self.spread)
        if low == high:
            return low
        return f"{_rounded(self.median)} ({low}-{high})"

    @property
    def promise(self) -> str:
        """The bound and whether it was kept, for a table; empty where there is none."""
        if self.met is None:
            return ""
        bounds = [("at least", self.at_least), ("at most", self.at_most)]
        text = ", ".join(f"{word} {_rounded(b)}" for word, b in bounds if b is not None)
        return f"{text}: {'[green]met[/]' if self.met else '[red]missed[/]'}"

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        low, high = self.spread
        return {
            "unit": self.unit,
            "median": self.median,
            "min": low,
            "max": high,
            "values": list(self.values),
            "at_least": self.at_least,
            "at_most": self.at_most,
            "met": self.met,
            "note": self.note,
        }


def _rounded(value: float) -> str:
    """Return three digits or all before the point, as people write measurements."""
    for limit, digits in ((100, 0), (10, 1), (0.1, 2)):
        if abs(value) >= limit:
            return f"{value:,.{digits}f}"
    return f"{value:.3g}"


@dataclass
class Result:
    """Every figure of one run, and what it ran on."""

    benchmark: str
    settings: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=lambda: machine())
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
        figure = Figure(unit, tuple(float(v) for v in values), at_least, at_most, note)
        self.figures[name] = figure
        return figure

    def __getitem__(self, name: str) -> Figure:
        return self.figures[name]

    def get(self, name: str) -> str:
        """Return a figure as a table shows it; a dash for what was not measured."""
        return str(self.figures[name]) if name in self.figures else "-"

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        return {
            "benchmark": self.benchmark,
            "started": self.started,
            "machine": self.machine,
            "settings": self.settings,
            "notes": self.notes,
            "figures": {name: figure.to_json() for name, figure in self.figures.items()},
        }

    def write(self, path: Path) -> None:
        """Write the record."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratio of every round: both sides of each were measured in the same minute."""
    return [a / b for a, b in zip(over, under, strict=True)]


def machine(libraries: Sequence[str] = LIBRARIES) -> dict[str, Any]:
    """Return what the figures depend on: processor, memory, load, Python, libraries."""
    import psutil

    model, flags = _processor()
    return {
        "processor": model,
        "cores": usable_cores(),
        "isa": [name for name in ISA if name in flags],
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": {name: found for name in libraries if (found := _version(name))},
    }


def _processor() -> tuple[str, set[str]]:
    lines: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            lines.setdefault(name.strip().lower(), value.strip())
    except OSError:
        return platform.processor() or "unknown", set()
    flags = lines.get("flags") or lines.get("features") or ""
    return lines.get("model name") or platform.processor() or "unknown", set(flags.split())


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def print_machine(result: Result) -> None:
    """Print what the benchmark runs on, as one paragraph."""
    m = result.machine
    console.print(
        f"[bold]{result.benchmark}[/] on {m['processor']}, {m['cores']} cores "
        f"({' '.join(m['isa']) or 'no vector extensions known'}), {m['memory_gib']} GiB, "
        f"load before {m['load_before']}; Python {m['python']}, "
        + ", ".join(f"{name} {found}" for name, found in m["libraries"].items()),
        highlight=False,
    )
    if m["load_before"] > 0.5:
        console.print("[yellow]The machine is busy: trust ratios, not rates.[/]")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are figures."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_promises(result: Result) -> None:
    """Print the figures that something was promised of."""
    promised = {name: figure for name, figure in result.figures.items() if figure.met is not None}
    if promised:
        rows = [(name, f"{f} {f.unit}".strip(), f.promise) for name, f in promised.items()]
        print_table("Promised", ("figure", "measured", ""), rows)
    for note in result.notes:
        console.print(f"[yellow]{note}[/]", highlight=False)


@contextmanager
def plots(path: Path, rows: int, columns: int, title: str) -> Iterator[list[Axes]]:
    """Draw into a grid of axes, row by row, in the style of the project; written at the end."""
    from matplotlib import style
    from matplotlib.figure import Figure as Canvas

    with style.context(STYLE):
        canvas = Canvas(figsize=(5.2 * columns, 3.4 * rows), layout="constrained")
        canvas.suptitle(title, x=0.01, ha="left", fontsize=11)
        axes = canvas.subplots(rows, columns, squeeze=False)
        yield list(axes.flat)
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path)


def draw_bars(
    axis: Axes, groups: Sequence[str], series: Mapping[str, Sequence[Figure | None]]
) -> None:
    """Draw medians as grouped bars, the spread as whiskers, the number on top.

    Parameters
    ----------
    groups
        Names under the groups.
    series
        Name in the legend to one figure a group; None leaves a gap.
    """
    width = 0.8 / len(series)
    for k, (name, figures) in enumerate(series.items()):
        at = [g - 0.4 + width * (k + 0.5) for g, f in enumerate(figures) if f is not None]
        shown = [f for f in figures if f is not None]
        heights = [f.median for f in shown]
        whiskers = [
            [f.median - f.spread[0] for f in shown],
            [f.spread[1] - f.median for f in shown],
        ]
        bars = axis.bar(at, heights, width, label=name, color=COLOURS[k % len(COLOURS)])
        axis.errorbar(at, heights, whiskers, fmt="none", ecolor="#333333", elinewidth=0.8)
        axis.bar_label(bars, [_rounded(h) for h in heights], fontsize=7, padding=2)
    axis.set_xticks(range(len(groups)), groups)
    axis.grid(axis="x", visible=False)
    axis.margins(y=0.25)  # room for the legend
