"""Run the fault injection tests and write their table to docs/performance/reliability.md."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPORT = Path(__file__).resolve().parents[2] / "docs" / "performance" / "reliability.md"
SCENES = 6
PARTS = {"killed": 50, "places": 50, "mutated": 2000, "flipped": 1000, "objects": 20}
PARTS |= {"together": 10}
"""Part to the number of trials of each of its faults in a complete run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts; return 1 if a trial failed, else 0."""
    given = _options().parse_args(arguments)
    # Set before importing libraries that start threads.
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
    from importlib import import_module

    from benchmarks.common import console
    from benchmarks.faults.jobs import FaultInputs
    from benchmarks.faults.report import FaultRow, write_report

    scale = 0.1 if given.quick else given.scale
    rows: list[FaultRow] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        inputs = FaultInputs.make(Path(folder), SCENES)
        for name in given.only or PARTS:
            tries = max(1, round(PARTS[name] * scale))
            for row in import_module(f"benchmarks.faults.{name}").rows(inputs, given.seed, tries):
                rows.append(row)
                outcome = row.skipped or f"{row.survived:,} of {row.tried:,}"
                console.print(
                    f"{row.what}: {outcome} ({row.seconds:.0f} s) {row.note}", markup=False
                )
                for one in row.found:
                    console.print(f"  {one}", highlight=False, markup=False)
    write_report(given.out, rows, given.seed, scale)
    console.print(f"wrote {given.out}")
    return 1 if any(row.found for row in rows) else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="run a tenth of the trials")
    add("--scale", type=float, default=1.0, help="factor on the number of trials (default: 1)")
    add("--seed", type=int, default=0, help="random seed (default: 0)")
    add(
        "--only",
        nargs="*",
        choices=PARTS,
        metavar="PART",
        help="run these parts (default: all): " + ", ".join(PARTS),
    )
    add(
        "--out",
        type=Path,
        default=REPORT,
        help="file to write the table to (default: docs/performance/reliability.md)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
