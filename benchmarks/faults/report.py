"""The table of trials in docs/performance/reliability.md."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.machine import machine
from geoprep.storage import replaced

PREFACE = """# Reliability

Results of the fault injection tests, `python -m benchmarks.faults`. The command writes this page:
run it again to test another version or machine.
"""
MOST_SHOWN = 3


@dataclass
class FaultRow:
    """The trials of one kind of fault; a with statement measures their seconds.

    Attributes
    ----------
    what
        Description of the fault.
    held
        Condition that must hold in every trial.
    tried
        Number of trials.
    found
        Descriptions of failures, one per failed trial.
    note
        Further counts.
    skipped
        Reason why it could not be tested; empty if it was.
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
        """Number of trials in which the condition held."""
        return self.tried - len(self.found)

    def count(self, problems: Sequence[str]) -> None:
        """Count a trial with its problems; an empty list means success."""
        self.tried += 1
        if problems:
            self.found.append("; ".join(problems))

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._start

    def __str__(self) -> str:
        last = f"not tested: {self.skipped}" if self.skipped else self.note
        cells = (self.what, self.held, f"{self.tried:,}", f"{self.survived:,}", last)
        return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def write_report(path: Path, rows: Iterable[FaultRow], seed: int, scale: float) -> None:
    """Write the table as Markdown, atomically."""
    facts, rows = machine(), list(rows)
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    lines = [
        PREFACE,
        f"Run on {time.strftime('%Y-%m-%d')}, seed {seed}, scale {scale}: "
        f"{sum(row.tried for row in rows):,} faults in "
        f"{sum(row.seconds for row in rows) / 60:.1f} minutes, "
        f"{sum(len(row.found) for row in rows)} of them failed.",
        f"{facts['processor']}, {facts['cores']} cores, {facts['system']}, Python "
        f"{facts['python']}; {libraries}.",
        "",
        "| fault | requirement | trials | passed | |",
        "|---|---|---|---|---|",
        *map(str, rows),
    ]
    if scale != 1.0:
        lines[2:2] = [
            f"**Not a complete run**: about {scale:.0%} of the trials, and at least one of each "
            "kind; `--scale 1` runs all."
        ]
    if any(row.found for row in rows):
        lines += ["", "## Failures", ""]
        lines += [f"- **{row.what}**: {one}" for row in rows for one in row.found[:MOST_SHOWN]]
    with replaced(path) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
