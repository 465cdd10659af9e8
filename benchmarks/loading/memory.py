"""Memory per worker: ours by every way of starting, the usual Dataset, and plain arithmetic.

Every way of loading gets a process of its own, and is looked at while its loop holds a batch and
everybody else waits. Each worker is allowed one batch ahead.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.child import ask
from benchmarks.common import Result, announce
from benchmarks.loading.held import settled
from benchmarks.peers.plain import widened
from loaders import BatchLoader, RamTiles, TileDataset

MODES: dict[str, tuple[str, str, str]] = {
    "threads": ("threads", "", "ours: BatchLoader, threads"),
    "fork": ("tiles", "fork", "ours: TileDataset, fork"),
    "forkserver": ("tiles", "forkserver", "ours: TileDataset, forkserver, preloaded"),
    "spawn": ("tiles", "spawn", "ours: TileDataset, spawn"),
    "uint8": ("uint8", "fork", "(b) the same Dataset in uint8, fork"),
    "classic": ("classic", "fork", "(a) float32 + int64 Dataset, fork"),
}
"""Name to kind and start method, see `held_by`, and what it is called."""

WORKERS = (0, 1, 2, 4, 8)
QUICK_WORKERS = (0, 1)
MANY = 64
"""Workers of a large machine: expected only, from the arithmetic."""

_LONG = 64
"""Samples per tile and epoch: a loader is to be held in the middle of one, never at its end, where
workers have nothing left to get ready."""


def batch_bytes(kind: str, batch_size: int, side: int, bands: int) -> int:
    """Return the bytes of a batch of whole tiles.

    Parameters
    ----------
    kind
        ``classic``: float32 images and int64 masks, four and eight bytes. Else bytes.
    batch_size, side, bands
        Tiles, their side in pixels, their bands.
    """
    pixel = 4 * bands + 8 if kind == "classic" else bands + 1
    return batch_size * side * side * pixel


def expected_bytes(kind: str, workers: int, batch_size: int, side: int, bands: int) -> int:
    """Return the bytes of all batches while a loop holds one and each worker has one ready.

    Our threads keep one more: while the loop goes from one batch to the next it has both.
    """
    spare = 1 if kind == "threads" else 0
    return (workers + 1 + spare) * batch_bytes(kind, batch_size, side, bands)


def measure_memory(result: Result, store: Path, tiles: RamTiles) -> None:
    """Record what every way of loading holds, for every number of workers.

    Parameters
    ----------
    tiles
        Of the store.
    """
    batch_size = result.settings["batch_size"]
    shape = batch_size, tiles.side, len(tiles.bands)
    for mode, (kind, start, title) in MODES.items():
        for workers in QUICK_WORKERS if result.settings["quick"] else WORKERS:
            if workers == 0 and start in ("forkserver", "spawn"):
                continue  # there is nothing to start: the same as fork
            announce(f"{title}, {workers} workers")
            task = {"kind": kind, "start": start, "workers": workers, "batch_size": batch_size}
            found = ask("benchmarks.loading.memory:held_by", task | {"store": str(store)})
            at = f"memory.{mode}.{workers}"
            result.add(f"{at}.total", "MB", [found["held"] / 1e6])
            expected = expected_bytes(kind, workers, *shape)
            result.add(f"{at}.expected", "MB", [expected / 1e6])
    for kind in ("classic", "uint8"):
        expected = MANY * batch_bytes(kind, *shape)
        result.add(f"memory.{kind}.{MANY}.expected", "MB", [expected / 1e6])


class Plain(Dataset[tuple[Tensor, Tensor]]):
    """The usual Dataset, over the same memory as ours: its batches are what differs.

    Parameters
    ----------
    tiles
        In memory.
    widen
        Whether images become float32 (band, y, x) and masks int64.
    """

    def __init__(self, tiles: RamTiles, *, widen: bool) -> None:
        self.tiles = tiles
        self.widen = widen

    def __len__(self) -> int:
        return len(self.tiles) * _LONG

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        tile = item % len(self.tiles)
        # A copy, since these pages are read-only and torch has no such tensors.
        image = torch.from_numpy(self.tiles.image[tile].copy())
        speed = torch.from_numpy(self.tiles.speed[tile].copy())
        return widened(image, speed) if self.widen else (image, speed)


def make_loader(
    kind: str, start: str, workers: int, batch_size: int, tiles: RamTiles
) -> Iterable[Any]:
    """Return a loader; the parameters are those of `held_by`."""
    if kind == "threads":
        threads = max(1, workers)
        return BatchLoader(
            tiles, batch_size, crops_per_tile=_LONG, threads=threads, prefetch=workers
        )
    dataset: Dataset[Any] = (
        TileDataset(tiles, crops_per_tile=_LONG)
        if kind == "tiles"
        else Plain(tiles, widen=kind == "classic")
    )
    return DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        # One batch per worker, as the arithmetic has it; torch's default of 2 doubles it.
        prefetch_factor=1 if workers else None,
        multiprocessing_context=start if workers else None,
    )


def held_by(kind: str, start: str, workers: int, batch_size: int, store: str) -> dict[str, int]:
    """Load in this process, take some batches, hold one, and return the bytes that were added.

    Parameters
    ----------
    kind
        ``threads``: BatchLoader; ``tiles``: TileDataset in a DataLoader; ``uint8``, ``classic``:
        the usual Dataset over the same bytes in memory.
    start
        How worker processes start: ``fork``, ``spawn``, ``forkserver``.
    workers
        Processes or threads.
    batch_size
        Tiles per batch.
    store
        Where they are.
    """
    torch.set_num_threads(1)  # its pool of threads is nobody's loader
    if start == "forkserver":
        multiprocessing.set_forkserver_preload(["torch", "loaders"])
    tiles = RamTiles.load(store, split="all", progress=False)
    loader = make_loader(kind, start, workers, batch_size, tiles)
    before = settled()
    batches = iter(loader)
    for _ in range(2 * workers + 2):
        batch = next(batches)
    after = settled()
    del batch
    return {"held": after - before}
