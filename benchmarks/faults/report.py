"""The table of what was tried, what survived and what was found."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.machine import machine
from geoprep.storage import replaced

PREFACE = """# Reliability

What `python -m benchmarks.faults` tried, and what became of it. That command writes this page: run
it again to see the same for another version or machine.
"""
MOST_SHOWN = 3


@dataclass
class Row:
    """One kind of fault; in a with statement its seconds are counted.

    Attributes
    ----------
    what
        What was done in words.
    held
        What had to hold each time.
    tried
        Number of times.
    found
        What did not hold, in words; one per time.
    note
        Counts that a reader needs to judge it.
    skipped
        Why it could not be tried here; empty where it was.
    """

    what: str
    held: str
    tried: int = 0
    found: list[str] = field(default_factory=list)
    note: str = ""
    skipped: str = ""
    seconds: float = 0.0

    @property
    def survived(self) -> int:
        """Number of times that all held."""
        return self.tried - len(self.found)

    def count(self, problems: Sequence[str]) -> None:
        """Count one try and what is wrong with its outcome."""
        self.tried += 1
        if problems:
            self.found.append("; ".join(problems))

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._start

    def __str__(self) -> str:
        last = f"not tried here: {self.skipped}" if self.skipped else self.note
        cells = (self.what, self.held, f"{self.tried:,}", f"{self.survived:,}", last)
        return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def write_report(path: Path, rows: Iterable[Row], seed: int, scale: float) -> None:
    """Write the table as Markdown; it appears at once."""
    facts, rows = machine(), list(rows)
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    lines = [
        PREFACE,
        f"Run on {time.strftime('%Y-%m-%d')}, seed {seed}, scale {scale}: "
        f"{sum(row.tried for row in rows):,} faults in "
        f"{sum(row.seconds for row in rows) / 60:.1f} minutes, "
        f"{sum(len(row.found) for row in rows)} of them not survived.",
        f"{facts['processor']}, {facts['cores']} cores, {facts['system']}, Python "
        f"{facts['python']}; {libraries}.",
        "",
        "| what was done | what had to hold | tried | survived | |",
        "|---|---|---|---|---|",
        *map(str, rows),
    ]
    if scale != 1.0:
        lines[2:2] = [
            f"**Not a whole campaign**: about {scale:.0%} of its tries, and at least one of each "
            "kind; `--scale 1` tries all."
        ]
    if any(row.found for row in rows):
        lines += ["", "## Found", ""]
        lines += [f"- **{row.what}**: {one}" for row in rows for one in row.found[:MOST_SHOWN]]
    with replaced(path) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
