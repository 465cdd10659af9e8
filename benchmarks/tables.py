"""What a run measured, as tables: every table is a title, rows and columns of figures' names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

from rich.table import Table

from benchmarks.common import Result, console


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


def print_figures(
    result: Result,
    title: str,
    rows: Mapping[str, str],
    columns: Mapping[str, str],
    *,
    head: str = "",
    medians: Collection[str] = (),
) -> None:
    """Print figures named ``ROW.COLUMN``; rows and columns without any are left out.

    Parameters
    ----------
    rows, columns
        What a reader sees, to what the names of figures begin and end with.
    head
        Above the rows.
    medians
        Ends of names whose spread is not shown, so that a line fits a terminal.
    """

    def cell(row: str, column: str) -> str | None:
        figure = result.figures.get(f"{row}.{column}")
        if figure is not None and column in medians:
            figure = replace(figure, values=(figure.median,))
        return None if figure is None else str(figure)

    cells = {text: [cell(row, column) for column in columns.values()] for text, row in rows.items()}
    shown = [any(values) for values in zip(*cells.values(), strict=True)]
    lines = [
        [text, *(value or "-" for value in compress(values, shown))]
        for text, values in cells.items()
        if any(values)
    ]
    if lines:
        print_table(title, (head, *compress(columns, shown)), lines)


def print_noted(result: Result, title: str, names: Iterable[str]) -> None:
    """Print figures one below the other, with their notes; those not measured are left out."""
    there = [name for name in names if name in result.figures]
    rows = [(name, f"{result[name]} {result[name].unit}", result[name].note) for name in there]
    if rows:
        print_table(title, ("", "median (range)", ""), rows)


def print_promises(result: Result) -> None:
    """Print the figures that something was promised of."""
    promised = {name: figure for name, figure in result.figures.items() if figure.met is not None}
    if promised:
        rows = [(name, f"{f} {f.unit}".strip(), f.promise) for name, f in promised.items()]
        print_table("Promised", ("figure", "measured", ""), rows)
    for note in result.notes:
        console.print(f"[yellow]{note}[/]", highlight=False)


def conclude(
    result: Result,
    given: argparse.Namespace,
    print_tables: Callable[[Result], None],
    draw: Callable[[Result, Path], None],
) -> int:
    """Print, write and draw what was measured, as the options say; return the exit status."""
    print_tables(result)
    print_promises(result)
    if given.json:
        result.write(given.json)
    if given.plot:
        draw(result, given.plot)
    return 0
