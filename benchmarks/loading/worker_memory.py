"""Memory per worker of our loaders and of a common Dataset, and the computed size of batches.

Every case runs in a separate process and is measured while the loop holds a batch and all workers
wait. Each worker prefetches one batch.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.child import ask
from benchmarks.common import Result, announce
from benchmarks.loading.data import load_tiles
from benchmarks.loading.peer_task import ByteTiles, FloatTiles
from benchmarks.memory import settled_memory
from loaders import BatchLoader, RamTiles, TileDataset

MODES: dict[str, tuple[str, str, str]] = {
    "threads": ("threads", "", "ours: BatchLoader, uint8, threads"),
    "fork": ("tiles", "fork", "ours: TileDataset, fork"),
    "forkserver": ("tiles", "forkserver", "ours: TileDataset, forkserver, preloaded"),
    "spawn": ("tiles", "spawn", "ours: TileDataset, spawn"),
    "uint8": ("uint8", "fork", "classic: Dataset, uint8, fork"),
    "classic": ("classic", "fork", "classic: Dataset, float32 + int64, fork"),
}
"""Name to kind, start method (see `loader_memory`) and title."""

WORKERS, QUICK_WORKERS = (0, 1, 2, 4, 8), (1, 2, 4)
"""Numbers of workers."""
QUICK_MODES = ("threads", "classic", "uint8")
_TOGETHER = 3
"""Processes that are measured at the same time."""

_LONG = 64
"""Samples per tile and epoch: enough to stop in mid-epoch, where workers still prefetch."""


def measure_memory(result: Result, store: Path) -> None:
    """Record the memory of every case for every number of workers."""
    batch_size, quick = result.settings["batch_size"], result.settings["quick"]
    tasks: list[tuple[str, dict[str, Any]]] = []
    for mode in QUICK_MODES if quick else MODES:
        kind, start, _ = MODES[mode]
        task = {"kind": kind, "start": start, "batch_size": batch_size, "store": str(store)}
        counts = [
            # Without a worker no process is started: the same as fork.
            count
            for count in (QUICK_WORKERS if quick else WORKERS)
            if count or start not in ("forkserver", "spawn")
        ]
        # A forkserver stays: its memory would be missing from all but the first count.
        alone = [[count] for count in counts]
        parts = [counts] if quick else alone
        tasks += [(mode, task | {"workers": part}) for part in parts]
    announce("memory of workers")
    measure = partial(ask, "benchmarks.loading.worker_memory:loader_memory")
    # Each process counts its own memory and that of its workers: they do not disturb each other.
    with ThreadPoolExecutor(_TOGETHER) as pool:
        answers = pool.map(measure, (task for _, task in tasks))
        for (mode, _), answer in zip(tasks, answers, strict=True):
            for workers, held in answer["held"].items():
                result.add(f"memory.{mode}.total.{workers}", "MB", [held / 1e6])


def make_loader(
    kind: str, start: str, workers: int, batch_size: int, tiles: RamTiles
) -> Iterable[Any]:
    """Return a loader; the parameters are those of `loader_memory`."""
    if kind == "threads":
        threads = max(1, workers)
        return BatchLoader(
            tiles, batch_size, crops_per_tile=_LONG, threads=threads, prefetch=workers
        )
    dataset: Dataset[Any] = (
        TileDataset(tiles, crops_per_tile=_LONG)
        if kind == "tiles"
        else (FloatTiles if kind == "classic" else ByteTiles)(tiles.image, tiles.speed, _LONG)
    )
    return DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        # One batch per worker, as computed; torch's default is 2.
        prefetch_factor=1 if workers else None,
        multiprocessing_context=start if workers else None,
    )


def loader_memory(
    kind: str, start: str, workers: Sequence[int], batch_size: int, store: str
) -> dict[str, dict[int, int]]:
    """Load in this process, take some batches, hold one, and return the added bytes per count.

    Parameters
    ----------
    kind
        ``threads``: BatchLoader; ``tiles``: TileDataset in a DataLoader; ``uint8``, ``classic``:
        a common Dataset over the same memory.
    start
        Start method of worker processes: ``fork``, ``spawn``, ``forkserver``.
    workers
        Numbers of processes or threads, one after another.
    batch_size
        Tiles per batch.
    store
        Path of the store, or of the arrays of its tiles.
    """
    torch.set_num_threads(1)  # threads of torch would add memory of their own
    if start == "forkserver":
        multiprocessing.set_forkserver_preload(["torch", "loaders"])
    tiles = load_tiles(store)
    next(iter(make_loader(kind, start, 0, batch_size, tiles)))  # imports and compiles
    _give_back()
    before = settled_memory()
    held = {}
    for count in workers:
        batches = iter(make_loader(kind, start, count, batch_size, tiles))
        for _ in range(2 * count + 2):
            batch = next(batches)
        held[count] = settled_memory() - before
        del batch, batches
        _give_back()
    return {"held": held}


def _give_back() -> None:
    """Return freed memory to the system: the C library keeps one batch, which would not count."""
    gc.collect()
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
