"""FFCV: one file mapped from the page cache, threads, compiled pipelines.

As its tuning guide advises where the data fit into memory: ``os_cache=True``, order ``RANDOM``, raw
arrays. (Its image field has three bands and JPEG; its array field takes any shape.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ffcv.fields import NDArrayField
from ffcv.fields.decoders import NDArrayDecoder
from ffcv.loader import Loader as FFCVLoader
from ffcv.loader import OrderOption
from ffcv.transforms import ToTensor
from ffcv.writer import DatasetWriter

from benchmarks.peers.base import Loader, Task

PACKAGES = ("ffcv",)
GREY = 1.0
_FILE = "tiles.beton"


class _Rows:
    """What the writer reads: a map-style dataset of arrays."""

    def __init__(self, task: Task) -> None:
        self.image, self.speed = task.image, task.speed

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, tile: int) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.image[tile]), np.array(self.speed[tile])


def prepare(task: Task, out: Path) -> None:
    """Write a .beton file; pages of 16 MiB hold several tiles of any size here."""
    image, speed = task.image, task.speed
    fields = {
        "image": NDArrayField(np.dtype("uint8"), image.shape[1:]),
        "speed": NDArrayField(np.dtype("uint8"), speed.shape[1:]),
    }
    writer = DatasetWriter(str(out / _FILE), fields, page_size=16 << 20, num_workers=1)
    writer.from_indexed_dataset(_Rows(task))


def open_loader(task: Task, source: Path) -> Loader:
    """Return FFCV's loader with its default of three batches ahead."""
    loader: Loader = FFCVLoader(
        str(source / _FILE),
        batch_size=task.batch_size,
        num_workers=max(1, task.workers),
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={name: [NDArrayDecoder(), ToTensor()] for name in ("image", "speed")},
    )
    return loader
