"""Run the campaign and write its table."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPORT = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try everything that was asked for; return 1 where something did not survive."""
    given = _options().parse_args(arguments)
    # Before anything is imported that starts threads.
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
    from benchmarks.common import console
    from benchmarks.faults.campaign import PARTS, campaign
    from benchmarks.faults.report import write_report

    if unknown := set(given.only) - set(PARTS):
        raise SystemExit(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    scale = 0.1 if given.quick else given.scale
    rows = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        names = given.only or tuple(PARTS)
        for row in campaign(Path(folder), given.seed, scale, names, given.jobs):
            rows.append(row)
            said = row.skipped or f"{row.survived:,} of {row.tried:,}"
            console.print(f"{row.what}: {said} ({row.seconds:.0f} s) {row.note}", highlight=False)
            for one in row.found:
                console.print(f"  {one}", highlight=False, markup=False)
    if given.out:
        write_report(given.out, rows, {"seed": given.seed, "scale": scale})
        console.print(f"wrote {given.out}")
    return 1 if any(row.found for row in rows) else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--scale", type=float, default=1.0, help="that much of everything")
    parser.add_argument("--seed", type=int, default=0, help="decides everything that is random")
    parser.add_argument("--only", nargs="*", default=(), metavar="PART", help="parts to run")
    parser.add_argument("--jobs", type=int, default=1, help="parts to run at a time (1)")
    parser.add_argument("--out", type=Path, default=REPORT, help="where the table goes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
