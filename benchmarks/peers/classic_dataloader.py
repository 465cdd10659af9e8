"""torch's DataLoader as most training code has it: float32 images, int64 masks.

The pixels are bytes in memory, shared by fork, but widened in ``__getitem__``: four and eight times
the bytes go through collation and ``/dev/shm``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.peers import uint8_dataloader
from benchmarks.peers.base import Loader, Task

PACKAGES = ()
GREY = 255.0


class Tiles(uint8_dataloader.Tiles):
    """Images float32 (band, y, x) of 0..1 and masks int64 (y, x)."""

    def __getitem__(self, tile: int) -> tuple[Tensor, Tensor]:
        image, speed = super().__getitem__(tile)
        return image.permute(2, 0, 1).to(torch.float32).div_(255.0), speed.to(torch.int64)


def prepare(task: Task, out: Path) -> None:
    """Nothing: it reads the arrays as they are."""


def open_loader(task: Task, source: Path) -> Loader:
    """Return a DataLoader whose workers live on between epochs."""
    return uint8_dataloader.loader_over(Tiles(task), task)
