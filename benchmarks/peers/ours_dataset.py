"""Our own tiles in torch's DataLoader, for those who want its worker processes."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path

from torch.utils.data import DataLoader

from benchmarks.peers.base import Loader, Pairs, Task
from loaders import RamTiles, TileDataset

PACKAGES = ("geoprep",)
GREY = 1.0


def prepare(task: Task, out: Path) -> None:
    """Nothing: it reads the store as it is."""


def open_loader(task: Task, source: Path) -> Loader:
    """Return a DataLoader with its defaults over the tiles."""
    tiles = RamTiles.load(task.store, split="all", progress=False)
    loader = DataLoader(
        TileDataset(tiles, crop=task.crop, augment=None if task.crop is None else "d4"),
        batch_size=task.batch_size,
        shuffle=True,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )
    return Pairs(loader, itemgetter("image", "speed"))
