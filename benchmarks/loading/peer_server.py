"""A loader in a separate process, called by `benchmarks.child`; files are in the page cache.

It runs with the interpreter of ``.venv-peers`` (``make bench-peers``).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.loading.peer_task import Loader, Pair, Task
from benchmarks.loading.peers import PEERS

Answer = dict[str, Any]
HOLD_AT = 3
"""Batches taken before memory is measured: all buffers are full by then."""


class PeerServer:
    """A loader, named as in `benchmarks.loading.peers`, that answers requests about a task."""

    loader: Loader

    def __init__(self, peer: str, task: dict[str, Any]) -> None:
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
