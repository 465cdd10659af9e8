"""Run the campaign and write its table."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPORT = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
SCENES = 6
PARTS = {"killed": 50, "places": 50, "mutated": 2000, "flipped": 1000, "objects": 20}
PARTS |= {"together": 10}
"""File to how often it tries each of its faults in a whole campaign."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try everything that was asked for; return 1 where something did not survive."""
    given = _options().parse_args(arguments)
    # Before anything is imported that starts threads.
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
    from importlib import import_module

    from benchmarks.common import console
    from benchmarks.faults.jobs import World
    from benchmarks.faults.report import Row, write_report

    scale = 0.1 if given.quick else given.scale
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        world = World.make(Path(folder), SCENES)
        for name in given.only or PARTS:
            tries = max(1, round(PARTS[name] * scale))
            for row in import_module(f"benchmarks.faults.{name}").rows(world, given.seed, tries):
                rows.append(row)
                said = row.skipped or f"{row.survived:,} of {row.tried:,}"
                console.print(f"{row.what}: {said} ({row.seconds:.0f} s) {row.note}", markup=False)
                for one in row.found:
                    console.print(f"  {one}", highlight=False, markup=False)
    write_report(given.out, rows, given.seed, scale)
    console.print(f"wrote {given.out}")
    return 1 if any(row.found for row in rows) else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a tenth of everything")
    add("--scale", type=float, default=1.0, help="that much of everything")
    add("--seed", type=int, default=0, help="decides everything that is random")
    add("--only", nargs="*", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    add("--out", type=Path, default=REPORT, help="where the table goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
