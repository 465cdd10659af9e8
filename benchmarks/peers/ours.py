"""Our own loader, under the same rules: a store to batches filled by threads."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

from benchmarks.peers.base import Loader, Pairs, Task
from loaders import BatchLoader, RamTiles

PACKAGES = ("geoprep",)
GREY = 1.0


def prepare(task: Task, out: Path) -> None:
    """Nothing: it reads the store as it is."""


def open_loader(task: Task, source: Path) -> Loader:
    """Load every tile of the store, and return batches of whole tiles or of windows.

    An epoch of windows has as many bytes as one of whole tiles.
    """
    tiles = RamTiles.load(task.store, split="all", progress=False)
    area = 1 if task.crop is None else max(1, (tiles.side // task.crop) ** 2)
    loader = BatchLoader(
        tiles,
        task.batch_size,
        crop=task.crop,
        augment=None if task.crop is None else "d4",
        crops_per_tile=area,
        threads=max(1, task.workers),
        drop_last=False,
    )
    return Pairs(loader, attrgetter("image", "speed"))
