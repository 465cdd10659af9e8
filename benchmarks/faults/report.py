"""The table of what was tried, what survived and what was found."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import machine
from geoprep.storage.files import replaced

PREFACE = """# Reliability

What `python -m benchmarks.faults` tried, and what became of it. That command writes this page: run
it again to see the same for another version or machine.
"""
MOST_SHOWN = 3


@dataclass(eq=False)
class Row:
    """One kind of fault.

    Attributes
    ----------
    part, what
        The file it is in, and what was done in words.
    held
        What had to hold each time.
    tried, survived
        Number of times.
    found
        What did not hold, in words; one per time.
    note
        Counts that a reader needs to judge it.
    skipped
        Why it could not be tried here; empty where it was.
    """

    part: str
    what: str
    held: str
    tried: int = 0
    survived: int = 0
    found: list[str] = field(default_factory=list)
    note: str = ""
    skipped: str = ""
    seconds: float = 0.0

    def count(self, problems: Sequence[str]) -> None:
        """Count one try and what is wrong with its outcome."""
        self.tried += 1
        self.survived += not problems
        if problems:
            self.found.append("; ".join(problems))


@contextmanager
def timed(row: Row) -> Iterator[Row]:
    """Count the seconds that a row takes."""
    start = time.monotonic()
    try:
        yield row
    finally:
        row.seconds += time.monotonic() - start


def write_report(path: Path, rows: Iterable[Row], settings: dict[str, object]) -> None:
    """Write the table as Markdown; it appears at once."""
    facts = machine()
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    rows = list(rows)
    told = ", ".join(f"{name} {value}" for name, value in settings.items())
    lines = [
        PREFACE,
        f"Run on {time.strftime('%Y-%m-%d')}, {told}: {sum(row.tried for row in rows):,} faults in "
        f"{sum(row.seconds for row in rows) / 60:.1f} minutes, "
        f"{sum(len(row.found) for row in rows)} of them not survived.",
        *_sizes(settings),
        f"{facts['processor']}, {facts['cores']} cores, {facts['system']}, Python "
        f"{facts['python']}; {libraries}.",
        "",
        "| what was done | what had to hold | tried | survived | |",
        "|---|---|---|---|---|",
        *(_line(row) for row in rows),
    ]
    found = [row for row in rows if row.found]
    if found:
        lines += ["", "## Found", ""]
        lines += [f"- **{row.what}**: {one}" for row in found for one in row.found[:MOST_SHOWN]]
    with replaced(path) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _sizes(settings: dict[str, object]) -> list[str]:
    """Return what a reader must know of a campaign that was not whole."""
    if settings.get("scale", 1.0) == 1.0:
        return []
    return [
        f"**Not a whole campaign**: about {settings['scale']:.0%} of its tries, and at least one "
        "of each kind; `--scale 1` tries all."
    ]


def _line(row: Row) -> str:
    last = f"not tried here: {row.skipped}" if row.skipped else row.note
    cells = (row.what, row.held, f"{row.tried:,}", f"{row.survived:,}", last)
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"
