"""torch's DataLoader over bytes in memory: what careful people write by hand.

One array for all workers, shared by fork; nothing is widened; batches come through ``/dev/shm``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.peers.base import Loader, Task

PACKAGES = ()
GREY = 1.0


class Tiles(Dataset[tuple[Tensor, Tensor]]):
    """Images uint8 (y, x, band) and masks uint8 (y, x), without a copy."""

    def __init__(self, task: Task) -> None:
        self.image = torch.from_numpy(np.array(task.image))
        self.speed = torch.from_numpy(np.array(task.speed))

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, tile: int) -> tuple[Tensor, Tensor]:
        return self.image[tile], self.speed[tile]


def prepare(task: Task, out: Path) -> None:
    """Nothing: it reads the arrays as they are."""


def open_loader(task: Task, source: Path) -> Loader:
    """Return a DataLoader whose workers live on between epochs, as torch advises."""
    return loader_over(Tiles(task), task)


def loader_over(dataset: Dataset[tuple[Tensor, Tensor]], task: Task) -> Loader:
    """Return a DataLoader over any of these datasets."""
    return DataLoader(
        dataset,
        batch_size=task.batch_size,
        shuffle=True,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )
