"""LitData: tiles packed into chunks, which it maps in place where they are local."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.peers.base import Loader, Pairs, Task
from benchmarks.peers.vision import import_torchvision

PACKAGES = ("litdata",)
GREY = 1.0

import_torchvision()
import litdata  # noqa: E402 - it imports torchvision


def _row(task: Task, tile: int) -> dict[str, Tensor]:
    return {
        "image": torch.from_numpy(task.image[tile].copy()),
        "speed": torch.from_numpy(task.speed[tile].copy()),
    }


def prepare(task: Task, out: Path) -> None:
    """Write chunks of 64 MB, the size its documentation uses."""
    litdata.optimize(
        partial(_row, task),
        list(range(len(task.image))),
        output_dir=str(out),
        chunk_bytes="64MB",
        num_workers=1,
        verbose=False,
    )


def open_loader(task: Task, source: Path) -> Loader:
    """Return its own DataLoader over its own dataset, shuffled."""
    dataset = litdata.StreamingDataset(str(source), shuffle=True, drop_last=False)
    loader = litdata.StreamingDataLoader(
        dataset,
        batch_size=task.batch_size,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )
    return Pairs(loader, itemgetter("image", "speed"))
