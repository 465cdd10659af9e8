"""Ways to feed a training step: our threads, DataLoader's processes, one batch over and over."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils.data import DataLoader

from benchmarks.fitting.stepper import LONG, close, loader_of
from loaders import Batch, RamTiles, TileDataset


@contextmanager
def feed_ways(
    tiles: RamTiles, batch_size: int, crop: int, counts: list[int]
) -> Iterator[dict[str, Iterator[Batch]]]:
    """Return batches by the way they come, and end all threads and processes in the end.

    Parameters
    ----------
    tiles
        In memory, one copy for all.
    batch_size, crop
        Of the batches.
    counts
        Numbers of threads of our loader; the same numbers of processes of DataLoader's, and its
        loading without any.
    """
    with ExitStack() as stack:
        own = {f"threads.{n}": iter(loader_of(tiles, batch_size, crop, threads=n)) for n in counts}
        theirs = {
            f"workers.{n}": iter(_data_loader(tiles, batch_size, crop, n)) for n in (0, *counts)
        }
        for batches in (*own.values(), *theirs.values()):
            stack.callback(close, batches)
        cached = next(next(iter(own.values())))
        yield {"cached": itertools.repeat(cached), **own, **theirs}


def _data_loader(tiles: RamTiles, batch_size: int, crop: int, workers: int) -> Iterator[Batch]:
    """Yield batches of torch's DataLoader over the same tiles."""
    dataset = TileDataset(tiles, crop=crop, augment="d4", crops_per_tile=LONG)
    loader: DataLoader[dict[str, torch.Tensor]] = DataLoader(
        dataset,
        batch_size,
        sampler=torch.utils.data.RandomSampler(dataset, replacement=True),
        num_workers=workers,
        multiprocessing_context="forkserver" if workers else None,
    )
    for found in loader:
        nowhere = torch.empty(0, 3, dtype=torch.int32)
        yield Batch(found["image"], found["speed"], found["index"], nowhere, found["key"])
