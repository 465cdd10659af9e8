"""``python -m training.evaluate``: how good a checkpoint is on the tiles of a store."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.command import run_command
from training.config import MachineConfig

if TYPE_CHECKING:
    from training.assess import Assessment

DESCRIPTION = """\
Judge a checkpoint on whole tiles: road IoU and F1, IoU of every speed bin, and the mean error of
speed on road pixels.

  python -m training.evaluate runs/moscow moscow.zarr                 the run's best.pt, on val
  python -m training.evaluate runs/moscow/last.pt moscow.zarr --split test --json figures.json
"""
SPLITS = ("val", "train", "test", "all")
TITLES = {
    "road_iou": "road IoU",
    "road_f1": "road F1",
    "bin_iou": "mean IoU of speed bins",
    "speed_mae_mph": "mean speed error on roads, mph",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate as the command line says; return the exit status."""
    given = _parser().parse_args(arguments)
    return run_command(lambda: _evaluate(given))


def _parser() -> argparse.ArgumentParser:
    usual = MachineConfig()
    parser = argparse.ArgumentParser(
        prog="python -m training.evaluate",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("checkpoint", help="a checkpoint, or the folder of a run: its best.pt")
    add("stores", nargs="+", metavar="STORE", help="one or more stores")
    add("--split", choices=SPLITS, default="val", help="which tiles (default: val)")
    add("--level", type=int, metavar="PIXELS", help="tile side (default: as trained on last)")
    text = "which weights (default: auto, the averaged ones where there are any)"
    add("--weights", choices=("auto", "ema", "raw"), default="auto", help=text)
    add("--json", type=Path, metavar="FILE", help="write every figure here")
    text = "tiles per batch (default: %(default)s)"
    add("--batch-size", type=int, default=usual.val_batch_size, metavar="N", help=text)
    add("--device", choices=("auto", "cpu", "cuda", "xpu"), default=usual.device)
    add("--precision", choices=("bf16", "fp32"), default=usual.precision)
    add("--threads", type=int, metavar="N", help="threads that compute")
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def _evaluate(given: argparse.Namespace) -> int:
    from training.assess import assess
    from training.distributed import is_first, joined, set_threads

    with joined(given.device):
        set_threads(given.threads)
        found = assess(
            given.checkpoint,
            given.stores,
            given.split,
            level=given.level,
            weights=given.weights,
            batch_size=given.batch_size,
            device=given.device,
            precision=given.precision,
            quiet=given.quiet,
        )
        if is_first():
            _print(found, given.split)
            if given.json is not None:
                _write(found, given)
    return 0


def _print(found: Assessment, split: str) -> None:
    from rich.console import Console
    from rich.table import Table

    facts = found.facts
    table = Table(f"{found.tiles} {split} tiles, {facts.level} x {facts.level} pixels", "")
    for name, title in TITLES.items():
        if name in found.metrics:
            table.add_row(title, _figure(found.metrics[name]))
    for name, value in found.metrics.items():
        if name.startswith("iou_"):
            table.add_row(f"  IoU {name.removeprefix('iou_')} mph", _figure(value))
    console = Console(highlight=False)
    console.print(table)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True, markup=False)


def _figure(value: float) -> str:
    return "none there" if math.isnan(value) else f"{value:.3f}"


def _write(found: Assessment, given: argparse.Namespace) -> None:
    from geoprep.storage import replaced

    figures: dict[str, Any] = {
        "checkpoint": given.checkpoint,
        "stores": given.stores,
        "split": given.split,
        "level": found.facts.level,
        "tiles": found.tiles,
        # JSON knows no "not a number".
        "metrics": {k: None if math.isnan(v) else v for k, v in found.metrics.items()},
    }
    with replaced(given.json) as partial:
        partial.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
