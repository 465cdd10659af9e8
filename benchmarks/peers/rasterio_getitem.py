"""TIFFs decoded in ``__getitem__``, every epoch again: what CRESI and most projects do.

LZW files, as SpaceNet publishes them and as `geoprep synth` writes them; they are opened in the
worker that reads them, since a dataset handle does not survive a fork.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rasterio
import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.peers.base import Loader, Task
from benchmarks.peers.uint8_dataloader import loader_over

PACKAGES = ("rasterio",)
GREY = 1.0


class Files(Dataset[tuple[Tensor, Tensor]]):
    """Images uint8 (band, y, x) and masks uint8 (y, x), straight from their files."""

    def __init__(self, task: Task) -> None:
        images, speeds = task.tiffs()
        # Arrays of strings: a list of paths is copied by every worker that counts references.
        self.images = np.array([str(path) for path in images])
        self.speeds = np.array([str(path) for path in speeds])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, tile: int) -> tuple[Tensor, Tensor]:
        with rasterio.open(self.images[tile]) as file:
            image = file.read()
        with rasterio.open(self.speeds[tile]) as file:
            speed = file.read(1)
        return torch.from_numpy(image), torch.from_numpy(speed)


def prepare(task: Task, out: Path) -> None:
    """Nothing: it reads the TIFFs as they are."""


def open_loader(task: Task, source: Path) -> Loader:
    """Return a DataLoader over the files."""
    return loader_over(Files(task), task)
