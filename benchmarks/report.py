"""What a run measured, for people: tables of figures' names, and the same as one picture."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table as Drawn

from benchmarks.common import Figure, Result, console, rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[str, Any] = {
    "font.size": 8.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True, slots=True)
class Table:
    """Figures named ``ROW.COLUMN``; rows and columns without any are left out.

    Attributes
    ----------
    rows, columns
        What a reader sees, to what the names of figures begin and end with.
    head
        Above the rows.
    medians
        Ends of names whose spread is not shown, so that a line fits a terminal.
    drawn
        Title of the column that the picture shows as bars; empty for none.
    """

    title: str
    rows: Mapping[str, str]
    columns: Mapping[str, str]
    head: str = ""
    medians: Collection[str] = ()
    drawn: str = ""

    def names(self) -> Iterator[str]:
        """Yield the names that its figures have."""
        for row in self.rows.values():
            for column in self.columns.values():
                yield f"{row}.{column}"

    def show(self, result: Result) -> None:
        """Print what was measured of it."""
        cells = {
            text: [self._cell(result, row, column) for column in self.columns.values()]
            for text, row in self.rows.items()
        }
        shown = [any(values) for values in zip(*cells.values(), strict=True)]
        lines = [
            [text, *(value or "-" for value in compress(values, shown))]
            for text, values in cells.items()
            if any(values)
        ]
        print_table(self.title, (self.head, *compress(self.columns, shown)), lines)

    def _cell(self, result: Result, row: str, column: str) -> str:
        figure = result.figures.get(f"{row}.{column}")
        if figure is None:
            return ""
        return rounded(figure.median) if column in self.medians else str(figure)

    def bars(self, result: Result) -> dict[str, Figure]:
        """Return row to the figure that is drawn, of those measured."""
        column = self.columns.get(self.drawn)
        names = {text: f"{row}.{column}" for text, row in self.rows.items()}
        return {text: result[name] for text, name in names.items() if name in result.figures}


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


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, unless it is empty; the first column is text, the others are figures."""
    if not rows:
        return
    console.print(f"\n[bold]{title}[/]")
    table = Drawn()
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_report(result: Result, tables: Iterable[Table]) -> None:
    """Print the tables, then what was promised, then all that stands in neither."""
    told: set[str] = set()
    for table in tables:
        table.show(result)
        told.update(table.names())
    figures = result.figures.items()
    promised = [
        (name, f"{figure} {figure.unit}".strip(), figure.promise, figure.note)
        for name, figure in figures
        if figure.met is not None
    ]
    print_table("Promised", ("figure", "median (range)", "", ""), promised)
    others = [
        (name, f"{figure} {figure.unit}", figure.note)
        for name, figure in figures
        if figure.met is None and name not in told
    ]
    print_table("Also", ("figure", "median (range)", ""), others)
    for note in result.notes:
        console.print(f"[yellow]{note}[/]", highlight=False)


def draw(result: Result, path: Path, tables: Iterable[Table]) -> None:
    """Draw a panel of bars for every table that names a column to draw, two in a row.

    Parameters
    ----------
    path
        Written in the format that its suffix names.
    """
    from matplotlib import style
    from matplotlib.figure import Figure as Canvas

    panels = {f"{table.title}: {table.drawn}": table.bars(result) for table in tables}
    shown = {title: bars for title, bars in panels.items() if bars}
    rows, columns = max(1, -(-len(shown) // 2)), 2
    with style.context(STYLE):
        canvas = Canvas(figsize=(6.0 * columns, 3.2 * rows), dpi=120, layout="constrained")
        m = result.machine
        canvas.suptitle(f"{result.benchmark}: {m['cores']} cores of {m['processor']}")
        axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for axis, (title, bars) in zip(axes, shown.items(), strict=False):
            _draw_bars(axis, title, bars)
        for axis in axes[len(shown) :]:
            axis.set_axis_off()
        path.parent.mkdir(parents=True, exist_ok=True)
        canvas.savefig(path)


def _draw_bars(axis: Axes, title: str, figures: Mapping[str, Figure]) -> None:
    """Draw medians from the top down, the spread as whiskers, the number beside them."""
    medians = [figure.median for figure in figures.values()]
    spreads = [figure.spread for figure in figures.values()]
    low = [median - spread[0] for median, spread in zip(medians, spreads, strict=True)]
    high = [spread[1] - median for median, spread in zip(medians, spreads, strict=True)]
    bars = axis.barh(list(figures), medians, xerr=[low, high], color="#56B4E9", height=0.7)
    axis.bar_label(bars, [rounded(median) for median in medians], padding=3, fontsize=7)
    axis.margins(x=0.15)
    axis.invert_yaxis()
    axis.set_title(title)


def conclude(result: Result, given: argparse.Namespace, tables: Sequence[Table]) -> int:
    """Print, write and draw what was measured, as the options say; return the exit status."""
    print_report(result, tables)
    if given.json:
        result.write(given.json)
    if given.plot:
        draw(result, given.plot, tables)
    return 0
