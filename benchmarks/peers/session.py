"""One peer in a process of its own, asked through `benchmarks.child`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers import packaged, plain
from benchmarks.peers.task import Loader, Task

HOLD_AT = 3
"""Batches taken before a loop is held: the buffers of any loader are full by then."""

Answer = dict[str, Any]


class Session:
    """A peer, and what has been done with it.

    Parameters
    ----------
    peer
        Its name in `plain` or `packaged`.
    task
        What it reads: the fields of a `Task`.
    """

    loader: Loader

    def __init__(self, peer: str, task: dict[str, Any]) -> None:
        self.task = Task(**task)
        self.source = Path(self.task.folder, peer)
        self.peer = (plain.PEERS | packaged.PEERS)[peer]
        self._held: tuple[Iterator[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]] | None = None

    def hello(self) -> Answer:
        """Return the versions of its packages; `PackageNotFoundError` where one is not there."""
        return {name: version(name) for name in ("torch", *self.peer.packages)}

    def prepare(self) -> Answer:
        """Write the peer's own format; a folder that is there was finished."""
        if not self.source.exists():
            partial = self.source.with_name(f"{self.source.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self.peer.prepare(self.task, partial)
            partial.rename(self.source)
        return {}

    def open(self) -> Answer:
        """Make the loader; return the seconds that took, with the import of what it needs."""
        start = time.perf_counter()
        self.loader = self.peer.open(self.task, self.source)
        return {"seconds": time.perf_counter() - start}

    def first(self) -> Answer:
        """Begin an epoch, and add up every pixel of it; return seconds to the first batch too."""
        start = time.perf_counter()
        batches = iter(self.loader)
        batch: tuple[Tensor, Tensor] | None = next(batches)
        seconds = time.perf_counter() - start
        tiles, image_sum, speed_sum = 0, 0.0, 0
        while batch is not None:  # no other batch is held, or buffers would be more than usual
            image, speed = batch
            tiles += len(image)
            image_sum += float(image.sum(dtype=torch.float64)) * self.peer.grey
            speed_sum += int(speed.sum(dtype=torch.int64))
            batch = next(batches, None)
        sums = {"tiles": tiles, "image_sum": image_sum, "speed_sum": speed_sum}
        return {"seconds": seconds, **sums}

    def rate(self, seconds: float) -> Answer:
        """Take whole epochs and drop them: tiles, seconds, and the times between their batches."""
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
            del times[first]  # an epoch's first batch waits for its workers: that is its start
        return {"tiles": tiles, "seconds": now - start, "batches": times}

    def hold(self) -> Answer:
        """Stop where a training loop would compute; buffers fill up meanwhile."""
        batches = iter(self.loader)
        for _ in range(HOLD_AT):
            batch = next(batches)
        self._held = batches, batch
        return {}

    def release(self) -> Answer:
        """Go on to the end of the epoch that was held."""
        assert self._held is not None, "asked to release before hold"
        batches, _ = self._held
        self._held = None
        for _ in batches:
            pass
        return {}
