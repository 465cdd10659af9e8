"""One way of loading in a fresh process, which looks at its own memory: the child of `memory`."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.loading.held import Held, settled
from loaders import BatchLoader, MemorySampler, RamTiles, TileDataset

_LONG = 64
"""Samples per tile and epoch: a loader is to be held in the middle of one, never at its end, where
workers have nothing left to get ready."""


@dataclass(frozen=True, slots=True)
class Case:
    """A way of loading.

    Attributes
    ----------
    kind
        ``threads``: BatchLoader; ``tiles``: TileDataset in a DataLoader; ``uint8``, ``classic``:
        the usual Dataset over the same bytes in memory; ``nothing``: a Dataset of single bytes,
        whose workers hold an interpreter and nothing else.
    start
        How worker processes start: ``fork``, ``spawn``, ``forkserver``.
    workers
        Processes or threads.
    batch_size
        Tiles per batch.
    store
        Where they are.
    """

    kind: str
    start: str
    workers: int
    batch_size: int
    store: str


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
        if self.widen:
            return image.permute(2, 0, 1).to(torch.float32).div_(255.0), speed.to(torch.int64)
        return image, speed


class Nothing(Dataset[Tensor]):
    """Single bytes."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, item: int) -> Tensor:
        return torch.zeros(1, dtype=torch.uint8)


def make_loader(case: Case, tiles: RamTiles) -> Iterable[Any]:
    """Return the loader of a case."""
    if case.kind == "threads":
        return BatchLoader(
            tiles,
            case.batch_size,
            crops_per_tile=_LONG,
            threads=max(1, case.workers),
            prefetch=case.workers,
        )
    datasets: dict[str, Dataset[Any]] = {
        "tiles": TileDataset(tiles, crops_per_tile=_LONG),
        "uint8": Plain(tiles, widen=False),
        "classic": Plain(tiles, widen=True),
        "nothing": Nothing(),
    }
    return DataLoader(
        datasets[case.kind],
        batch_size=case.batch_size,
        num_workers=case.workers,
        # One batch per worker, as the arithmetic has it; torch's default of 2 doubles it.
        prefetch_factor=1 if case.workers else None,
        multiprocessing_context=case.start if case.workers else None,
    )


def measure(case: Case) -> dict[str, Any]:
    """Load, take some batches, hold one, and look.

    Returns
    -------
    dict
        Bytes. ``base`` and ``held``: USS and PSS of this process and what its tree keeps, before
        there is a loader and while it waits; ``workers``: USS and PSS of each worker process,
        and ``others`` of helpers such as the fork server; ``peaks``: largest USS of each.
    """
    if case.start == "forkserver":
        multiprocessing.set_forkserver_preload(["torch", "loaders"])
    tiles = RamTiles.load(case.store, split="all", progress=False)
    loader = make_loader(case, tiles)
    base = settled()
    with MemorySampler(interval=0.1) as sampler:
        batches = iter(loader)
        for _ in range(2 * case.workers + 2):
            batch = next(batches)
        held = settled()
    pids = {process.pid for process in multiprocessing.active_children()}
    del batch
    return {
        "base": _usage(base),
        "held": _usage(held),
        "workers": [(u.uss, u.pss) for pid, u in held.processes.items() if pid in pids],
        "others": [
            (u.uss, u.pss) for pid, u in list(held.processes.items())[1:] if pid not in pids
        ],
        "pss": [sum(u.pss for u in h.processes.values()) for h in (base, held)],
        "peaks": [u.uss for pid, u in sampler.peaks.items() if pid in pids],
    }


def _usage(held: Held) -> dict[str, int]:
    return {"uss": held.root.uss, "pss": held.root.pss, "kept": held.kept}


if __name__ == "__main__":
    torch.set_num_threads(1)  # its pool of threads is nobody's loader
    print(json.dumps(measure(Case(**json.loads(sys.argv[1])))))
