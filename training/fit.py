"""Train a model of roads and speeds, or of classes, on the tiles of one or more stores.

  geoprep fit                                    on the only store in this folder
  geoprep fit moscow.zarr                        with defaults, into runs/moscow
  geoprep fit moscow.zarr mumbai.zarr --epochs 60 --out runs/both
  geoprep fit moscow.zarr --config run.yaml --lr 2e-4      options override the file
  geoprep fit --resume runs/moscow               continue a stopped run
  geoprep fit moscow.zarr --time 20m              for 20 minutes, whatever the machine
  geoprep fit moscow.zarr --stages 325@256:20,650@512:10   small crops first, then large
  geoprep fit moscow.zarr --plan                 memory, steps and time of a run, not started
  geoprep fit moscow.zarr --profile              time breakdown of a step
  torchrun --nproc-per-node 2 -m training.fit moscow.zarr   two processes or accelerators

Ctrl-C saves the run and prints how to resume it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geoprep.cli.running import run
from geoprep.cpus import started_rank
from geoprep.errors import UsageError
from training.cli import CONFIG, Command
from training.settings import SECTIONS

CLOSING = """\
The folder of a run holds last.pt, best.pt, log.txt, metrics.csv, curves.png, config.yaml (for
--config), tensorboard/ and pictures/ with one picture per epoch.
"""
_COMMON = (
    *("stores", "bands", "level", "batch_size", "crop", "model", "init_from", "targets", "loss"),
    *("epochs", "time", "lr", "seed", "device", "precision", "out", "resume", "overwrite"),
    *("plan", "config"),
)
COMMAND = Command(
    *("fit", SECTIONS, __doc__, CLOSING),
    action=lambda given: fit(given),
    common=_COMMON,
    more=[CONFIG],
)


def store_here() -> str:
    """Return the only store in the current folder; raise UsageError if there is none or more."""
    marked = (one for one in Path().glob("*/zarr.json") if b'"geoprep"' in one.read_bytes())
    found = sorted(one.parent.name for one in marked)
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"this folder has the stores {', '.join(found)}: name those to train on, such as "
            f"`geoprep fit {found[0]}`"
        )
    raise UsageError(
        "no store was given, and this folder has none. Make one: `geoprep synth --city moscow` (or "
        "`geoprep download --city moscow`), then `geoprep build-zarr --city moscow`. Or name one, "
        "such as `geoprep fit moscow.zarr`, or a run to resume: --resume runs/moscow"
    )


def fit(given: dict[str, Any]) -> int:
    """Start or resume a run with settings by name; return the exit status."""
    if not given.get("stores") and given.get("resume") is None:
        given["stores"] = (store_here(),)
        if (started := started_rank()) is None or not started.rank:
            print(f"training on {given['stores'][0]}, the only store in this folder")
    from training.run.start import start_run  # here: --help and usage errors do not need torch

    return start_run(given, COMMAND.spell)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m training.fit``; return the exit status, see `geoprep.cli.running.run`."""
    return run(COMMAND, arguments, "python -m training.fit")


if __name__ == "__main__":
    sys.exit(main())
