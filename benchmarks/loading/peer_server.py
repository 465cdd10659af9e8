"""The task of every loader, and a loader in a separate process, called by `benchmarks.child`.

It runs with the interpreter of ``.venv-peers`` (``make bench-peers``); files are in the page cache.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Pair = tuple[Tensor, Tensor]
Loader = Iterable[Pair]
"""Batches of images and masks in any order; iterated once per epoch, shuffled."""
Answer = dict[str, Any]
HOLD_AT = 3
"""Batches taken before memory is measured: all buffers are full by then."""


@dataclass(frozen=True, slots=True)
class Task:
    """The data to load, and the settings.

    ``folder`` has ``image.npy`` uint8 (tile, y, x, band), ``speed.npy`` uint8 (tile, y, x) and the
    same as GeoTIFFs ``tiff/image/00000.tif``; ``store`` has the same tiles. ``workers`` are
    processes or threads, 0 to load in the loop; ``crop`` is the side of random crops with random
    symmetries, one per tile and epoch, None for whole tiles.
    """

    folder: str
    batch_size: int
    workers: int
    store: str = ""
    crop: int | None = None

    @property
    def image(self) -> NDArray[np.uint8]:
        """The images, memory-mapped."""
        pixels: NDArray[np.uint8] = np.load(f"{self.folder}/image.npy", mmap_mode="r")
        return pixels

    @property
    def speed(self) -> NDArray[np.uint8]:
        """The masks, memory-mapped."""
        pixels: NDArray[np.uint8] = np.load(f"{self.folder}/speed.npy", mmap_mode="r")
        return pixels

    def in_memory(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return images and masks in memory, which workers share by fork."""
        return np.array(self.image), np.array(self.speed)

    def tiffs(self, kind: str) -> list[Path]:
        """Return the TIFF files of kind ``image`` or ``speed``, in order of tiles."""
        return sorted(Path(self.folder, "tiff", kind).iterdir())

    def rows(self) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
        """Yield image and mask of every tile."""
        return zip(self.image, self.speed, strict=True)

    @property
    def loading(self) -> dict[str, Any]:
        """Arguments of a DataLoader whose workers persist between epochs, as torch recommends."""
        processes = {"num_workers": self.workers, "persistent_workers": self.workers > 0}
        return {"batch_size": self.batch_size, **processes}


class Peer:
    """A loader: packages that it needs beside NumPy and torch, and grey values per image value."""

    packages: ClassVar[tuple[str, ...]] = ()
    grey: ClassVar[float] = 1.0

    @staticmethod
    def prepare(task: Task, out: Path) -> None:
        """Write the tiles in the loader's format to a new folder; not timed."""

    @staticmethod
    def open(task: Task, source: Path) -> Loader:
        """Return the loader of the folder that `prepare` wrote."""
        raise NotImplementedError


class Pairs:
    """(image, mask) pairs of batches of another type, which are not kept."""

    def __init__(self, loader: Iterable[Any], pair: Callable[[Any], Pair]) -> None:
        self.loader = loader
        self.pair = pair

    def __iter__(self) -> Iterator[Pair]:
        return map(self.pair, self.loader)


def import_torchvision() -> None:
    """Import torchvision with a torch that it was not built for.

    Some loaders import it without using its operators. With a CPU build of torch the import of a
    build for CUDA fails ("operator torchvision::nms does not exist") unless they are declared.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


class PeerServer:
    """A loader, named as in `benchmarks.loading.peers`, that answers requests about a task."""

    loader: Loader

    def __init__(self, peer: str, task: dict[str, Any]) -> None:
        from benchmarks.loading.peers import PEERS

        self.task = Task(**task)
        self.source = Path(self.task.folder, peer)
        self.peer = PEERS[peer]
        self._held: tuple[Iterator[Pair], Pair] | None = None

    def describe(self) -> Answer:
        """Return the versions of its packages; raise `PackageNotFoundError` if one is missing."""
        return {name: version(name) for name in ("torch", *self.peer.packages)}

    def prepare(self) -> Answer:
        """Write the loader's own format, unless its folder exists already."""
        if not self.source.exists():
            partial = self.source.with_name(f"{self.source.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self.peer.prepare(self.task, partial)
            partial.rename(self.source)
        return {}

    def open(self) -> Answer:
        """Create the loader; return the seconds this took, with importing its packages."""
        start = time.perf_counter()
        self.loader = self.peer.open(self.task, self.source)
        return {"seconds": time.perf_counter() - start}

    def first(self) -> Answer:
        """Run an epoch; return seconds to the first batch, number of tiles and sums of pixels."""
        start = time.perf_counter()
        batches = iter(self.loader)
        batch: Pair | None = next(batches)
        seconds = time.perf_counter() - start
        tiles, image_sum, speed_sum = 0, 0.0, 0
        while batch is not None:  # keeps one batch only, as a training loop does
            image, speed = batch
            tiles += len(image)
            image_sum += float(image.sum(dtype=torch.float64)) * self.peer.grey
            speed_sum += int(speed.sum(dtype=torch.int64))
            batch = next(batches, None)
        sums = {"tiles": tiles, "image_sum": image_sum, "speed_sum": speed_sum}
        return {"seconds": seconds, **sums}

    def rate(self, seconds: float) -> Answer:
        """Run complete epochs; return tiles, seconds, and seconds between batches."""
        tiles = 0
        times: list[float] = []
        start = now = time.perf_counter()
        while now - start < seconds:
            first = len(times)
            for image, _ in self.loader:
                before, now = now, time.perf_counter()
                tiles += len(image)
                times.append(now - before)
            now = time.perf_counter()
            del times[first]  # the first batch of an epoch includes starting the workers
        return {"tiles": tiles, "seconds": now - start, "batches": times}

    def hold(self) -> Answer:
        """Take some batches and keep the last one, while the buffers fill."""
        batches = iter(self.loader)
        for _ in range(HOLD_AT):
            batch = next(batches)
        self._held = batches, batch
        return {}

    def release(self) -> Answer:
        """Finish the epoch that `hold` interrupted."""
        assert self._held is not None, "asked to release before hold"
        batches, _ = self._held
        self._held = None
        for _ in batches:
            pass
        return {}
