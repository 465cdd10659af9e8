"""Printed tables of the figures of a benchmark."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress, product
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from benchmarks.common import CommonOptions, Result, console, rounded, status


@dataclass(frozen=True, slots=True)
class Table:
    """A table of figures named ``ROW.COLUMN``; rows and columns without figures are left out.

    Attributes
    ----------
    rows, columns
        Titles, to the start (rows) and the end (columns) of the names of figures.
    head
        Title of the first column.
    medians
        Columns that show the median without the range, so that a line fits a terminal.
    """

    title: str
    rows: Mapping[str, str]
    columns: Mapping[str, str]
    head: str = ""
    medians: Collection[str] = ()

    def lines(self, result: Result) -> tuple[list[str], list[list[str]]]:
        """Return the titles of the columns and the cells of each row that has figures."""
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
        return [self.head, *compress(self.columns, shown)], lines

    def show(self, result: Result) -> None:
        """Print the table with the measured figures."""
        titles, lines = self.lines(result)
        print_table(self.title, titles, lines)

    def markdown(self, result: Result) -> str:
        """Return the table as Markdown below its title; empty if nothing was measured."""
        titles, lines = self.lines(result)
        if not lines:
            return ""
        rows = [titles, ["---"] + ["---:"] * (len(titles) - 1), *lines]
        return f"### {self.title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)

    def _cell(self, result: Result, row: str, column: str) -> str:
        figure = result.figures.get(f"{row}.{column}")
        if figure is None:
            return ""
        return rounded(figure.median) if column in self.medians else str(figure)


def print_machine(result: Result) -> None:
    """Print the machine and the library versions as one paragraph."""
    m = result.machine
    versions = ", ".join(f"{name} {version}" for name, version in m["libraries"].items())
    console.print(
        f"[bold]{result.benchmark}[/] on {m['processor']}, {m['cores']} cores "
        f"({' '.join(m['isa']) or 'no vector extensions known'}), {m['memory_gib']} GiB, "
        f"load before {m['load_before']}; Python {m['python']}, {versions}",
        highlight=False,
    )
    if m["load_before"] > 0.5:
        console.print("[yellow]The machine is busy: ratios are reliable, rates are not.[/]")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table unless it is empty; the first column is text, others are figures."""
    if not rows:
        return
    console.print(f"\n[bold]{title}[/]")
    table = RichTable()
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=i == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_report(result: Result, tables: Iterable[Table]) -> None:
    """Print the tables, then figures with bounds, then all other figures and the notes."""
    shown: set[str] = set()
    for table in tables:
        table.show(result)
        names = product(table.rows.values(), table.columns.values())
        shown.update(map(".".join, names))
    figures = result.figures.items()
    promised = [
        (name, f"{figure} {figure.unit}".strip(), figure.promise, figure.note)
        for name, figure in figures
        if figure.met is not None
    ]
    print_table("Bounds", ("figure", "median (range)", "", ""), promised)
    others = [
        (name, f"{figure} {figure.unit}", figure.note)
        for name, figure in figures
        if figure.met is None and name not in shown
    ]
    print_table("Other figures", ("figure", "median (range)", ""), others)
    for note in result.notes:
        console.print(f"[yellow]{note}[/]", highlight=False)


def write_page(
    path: Path, result: Result, tables: Iterable[Table], mark: str, title: str, before: str
) -> None:
    """Write the tables to a section of a page, in place of those of an earlier run.

    Parameters
    ----------
    path
        The page, in Markdown.
    mark
        Text of the comment before the section, which is found by it.
    title
        Heading of the section.
    before
        Line before which a section is written that the page does not have yet.
    """
    m, of = result.machine, result.settings
    libraries = ", ".join(f"{name} {m['libraries'][name]}" for name in ("geoprep", "torch"))
    text = (
        f"## {title}\n\n{result.started[:10]}, {libraries}, Python {m['python']}. Host: "
        f"{m['processor']}, {m['cores']} cores, {m['memory_gib']} GiB. Medians of {of['repeats']} "
        "rounds, with the range in brackets.\n\n"
    )
    text += "Small sizes (`--quick`): these figures mean nothing.\n\n" if of["quick"] else ""
    text += "\n".join(filter(None, (table.markdown(result) for table in tables)))
    text += "".join(f"\n- {note}\n" for note in result.notes)
    start, end = f"<!-- {mark} -->\n", "<!-- end -->\n\n"
    above, found, rest = path.read_text(encoding="utf-8").partition(start)
    if found:
        rest = rest.partition(end)[2]
    else:
        above, line, rest = above.partition(before)
        rest = line + rest
    path.write_text(f"{above}{start}{text}{end}{rest}", encoding="utf-8")


@contextmanager
def measured(name: str, given: CommonOptions, **sizes: Any) -> Iterator[tuple[Result, Path]]:  # noqa: ANN401 - JSON values
    """Yield the empty result of a benchmark, after printing the machine, and a scratch folder."""
    result = Result(name, vars(given) | sizes)
    print_machine(result)
    if given.work is not None:
        given.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.work, prefix=f"{name}-") as folder, status:
        yield result, Path(folder)


def conclude(result: Result, given: CommonOptions, tables: Sequence[Table]) -> int:
    """Print the report, write it if the options say so; return the exit status."""
    print_report(result, tables)
    if given.json:
        result.write(given.json)
    return 0
