"""SPDL: a pipeline of thread stages over one .npy file per tile, as its guide advises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import spdl.io
import torch
from numpy.typing import NDArray
from spdl.pipeline import PipelineBuilder
from torch import Tensor

from benchmarks.peers.base import Loader, Task

PACKAGES = ("spdl",)
GREY = 1.0
_AHEAD = 3
"""Batches in its buffer, as with FFCV."""

Pair = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def prepare(task: Task, out: Path) -> None:
    """Write two uncompressed arrays per tile."""
    for kind, pixels in (("image", task.image), ("speed", task.speed)):
        for tile, values in enumerate(pixels):
            np.save(out / f"{tile:06d}.{kind}.npy", values)


def _load(stem: str) -> Pair:
    """Read one tile; its parser takes bytes and copies nothing."""
    image, speed = (
        spdl.io.load_npy(Path(f"{stem}.{kind}.npy").read_bytes()) for kind in ("image", "speed")
    )
    return image, speed


def _collate(rows: list[Pair]) -> tuple[Tensor, Tensor]:
    images, speeds = zip(*rows, strict=True)
    return torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(speeds))


class _Epochs:
    """A new pipeline each epoch, over newly shuffled names."""

    def __init__(self, task: Task, source: Path) -> None:
        self.task = task
        self.stems = [str(p).removesuffix(".image.npy") for p in sorted(source.glob("*.image.npy"))]
        self.random = np.random.default_rng(0)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        workers = max(1, self.task.workers)
        order = self.random.permutation(len(self.stems))
        pipeline = (
            PipelineBuilder()
            .add_source([self.stems[i] for i in order])
            .pipe(_load, concurrency=workers)
            .aggregate(self.task.batch_size)
            .pipe(_collate, concurrency=workers)
            .add_sink(_AHEAD)
            .build(num_threads=workers)
        )
        with pipeline.auto_stop():
            yield from pipeline


def open_loader(task: Task, source: Path) -> Loader:
    """Return the epochs."""
    return _Epochs(task, source)
