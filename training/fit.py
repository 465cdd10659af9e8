"""``python -m training.fit``: tiles in, checkpoints out. What it does is in `training.loop`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from training.cli import Command, run_command
from training.config import SECTIONS

INTRODUCTION = """\
Train a road and speed network on the tiles of one or more stores.

  python -m training.fit moscow.zarr                        all defaults; the run is in runs/moscow
  python -m training.fit moscow.zarr mumbai.zarr --epochs 60 --out runs/both
  python -m training.fit moscow.zarr --config run.yaml --lr 2e-4      a file, then flags
  python -m training.fit --resume runs/moscow               after Ctrl-C, a kill, a power cut
  python -m training.fit moscow.zarr --stages 325@256:20,650@512:10   train small, finish large
  python -m training.fit moscow.zarr --profile              where does a step go?
  torchrun --nproc-per-node 2 -m training.fit moscow.zarr   several processes, or accelerators
"""
CLOSING = """\
A run's folder holds last.pt and best.pt, log.txt, metrics.csv, config.yaml (which --config takes),
tensorboard/, one picture per epoch in pictures/, and curves.png. Ctrl-C saves and says how to go
on.
"""
COMMAND = Command("python -m training.fit", SECTIONS, INTRODUCTION, CLOSING, takes_file=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit status, see `training.cli.Status`."""

    def fit() -> int:
        given = COMMAND.parse(arguments)
        from training.loop import start  # here: --help and typing errors need not wait for torch

        return start(given)

    return run_command(fit, COMMAND)


if __name__ == "__main__":
    sys.exit(main())
