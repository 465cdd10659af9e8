"""Batches from a store larger than memory: tiles come and go while batches are filled.

Every tile is read and decoded once per epoch, so ``crops_per_tile`` divides that work; in any
further epoch it is done again. The order of samples is that of :mod:`loaders.stream.window`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from loaders.ahead import Ahead
from loaders.batch import Batch, put_windows
from loaders.feed import Request, copy_windows
from loaders.gather import as_items
from loaders.limits import amount
from loaders.sampling import Windows
from loaders.schedule import Step
from loaders.stream.readahead import ReadAhead
from loaders.stream.room import Room
from loaders.stream.window import ReadPlan, WindowSampling, WindowShape, plan_reads


class Source(Protocol):
    """Tiles in a store, as far as a feed of them needs to know.

    Attributes
    ----------
    side
        Side of a tile in pixels.
    rows
        int64 (tile,), row of each tile in its store.
    shape
        Of the window.
    room
        Memory.
    threads
        Runs read at a time.
    """

    side: int
    rows: NDArray[np.int64]
    shape: WindowShape
    room: Room
    threads: int

    def __len__(self) -> int: ...

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile and its mask."""

    def reading_bytes(self, run: int) -> int:
        """Return the bytes that threads hold while they read runs of so many tiles."""

    def shape_within(self, limit: int) -> WindowShape:
        """Return the shape of the window under a memory limit in bytes."""

    def read(
        self, first: int, count: int, at: int, image: NDArray[np.uint8], speed: NDArray[np.uint8]
    ) -> None:
        """Read tiles that are neighbours in one shard to row ``at`` of image and speed."""


class StreamFeed:
    """Reads tiles ahead, and fills batches from them.

    Parameters
    ----------
    source
        The tiles.
    request
        What is wanted; its sampling is a `WindowSampling`.

    Raises
    ------
    UsageError
        Window and batches do not fit into the limit.
    """

    def __init__(self, source: Source, request: Request) -> None:
        self.source = source
        self.request = request
        self.sampling = cast(WindowSampling, request.sampling)
        self._ring = request.ring()
        shape = self.sampling.shape
        self._beside = self._beside_of(shape)
        self._slots = self._slots_within(source.room.limit, shape)
        if not self._slots:
            raise self._too_small(shape)
        self._held = self._slots * self._lanes_and_need(shape)[0]

    @property
    def nbytes(self) -> int:
        """Bytes held at most: tiles, batches, and what threads read."""
        return self._held * self.source.tile_bytes + self._beside

    def batches(self, epoch: int, steps: Sequence[Step]) -> Iterator[Batch]:
        """Return an iterator over the batch of every step; tiles are read meanwhile.

        Raises
        ------
        UsageError
            Another epoch is running in the same memory.
        """
        if not steps:
            return iter(())
        source, room = self.source, self.source.room
        memory = room.enter(self._ring, self._held * source.tile_bytes, self._beside)
        positions = np.arange(len(self.sampling), dtype=np.int64)
        each = [positions[step.positions] for step in steps]
        positions = np.concatenate(each)
        samples = self.sampling.order(epoch)[positions]
        plan = plan_reads(self.sampling, epoch, positions, samples, source.rows, self._slots)
        work = _Epoch(self, memory, epoch, samples, plan)
        bounds = np.cumsum([0, *map(len, each)]).tolist()
        filled: Ahead[tuple[int, int], Batch] = Ahead(
            work.fill,
            pairwise(bounds),
            threads=self.request.threads,
            ahead=self.request.prefetch,
            beside=work.tiles,
        )
        room.leave_to(filled)
        return filled

    def empty_batch(self, samples: int) -> Batch:
        """Return a batch with whatever its buffer held before."""
        return self.request.take(self._ring, samples)

    def _beside_of(self, shape: WindowShape) -> int:
        """Return the bytes of batches, and of what threads read."""
        batches = self._ring.nbytes * (self.request.prefetch + 3)
        return batches + self.source.reading_bytes(shape.run)

    def _lanes_and_need(self, shape: WindowShape) -> tuple[int, int]:
        """Return the lanes of this rank, and the tiles that each of them must hold."""
        if self.sampling.shuffle:
            return shape.lanes_of_rank(self.request.schedule.world_size), shape.lane_tiles
        return 1, 2 * shape.run

    def _slots_within(self, limit: int, shape: WindowShape) -> int:
        """Return the tiles that each lane of this rank can hold, 0 if those are too few."""
        lanes, need = self._lanes_and_need(shape)
        parts = shape.lanes if self.sampling.shuffle else self.request.schedule.world_size
        size, tiles = self.source.tile_bytes, len(self.source)
        room = (limit - self._beside_of(shape)) // size // lanes
        share = min(limit // size // parts, -(-tiles // lanes) + 1)
        return min(max(share, need), room) if room >= need else 0

    def _too_small(self, shape: WindowShape) -> UsageError:
        """Return the refusal of a limit, with figures, and with one that is enough."""
        source = self.source
        limit = enough = source.room.limit
        mine = shape == source.shape  # else that of a state, which stays as it is
        while not self._slots_within(enough, source.shape_within(enough) if mine else shape):
            enough += -(-limit // 20)
        lanes, need = self._lanes_and_need(shape)
        least = lanes * need * source.tile_bytes + self._beside
        return UsageError(
            f"ram_limit of {amount(limit)} is too small: {lanes * need} tiles of "
            f"{amount(source.tile_bytes)} must be held at a time, which with "
            f"{amount(self._beside)} of batches and reading makes {amount(least)}. Raise it in "
            f"StreamTiles.open to {-(-enough // 10**6)} MB, or take a smaller batch_size, crop or "
            "prefetch, or fewer lanes"
        )


class _Epoch:
    """The tiles of a part of an epoch in memory, and the batches filled from them.

    Parameters
    ----------
    feed
        What it is done for.
    memory
        uint8, room for the tiles.
    epoch
        Which.
    samples
        int64 (n,), in order.
    plan
        For the same samples.
    """

    def __init__(
        self,
        feed: StreamFeed,
        memory: NDArray[np.uint8],
        epoch: int,
        samples: NDArray[np.int64],
        plan: ReadPlan,
    ) -> None:
        self._feed = feed
        self._epoch = epoch
        self._samples = samples
        self._plan = plan
        side, bands = feed.source.side, feed.request.bands
        slots = len(memory) // feed.source.tile_bytes
        masks = slots * side * side * bands
        image = memory[:masks].reshape(slots, side, side, bands)
        speed = memory[masks:][: slots * side * side].reshape(slots, side, side)
        self._items, self._speed = as_items(image), speed
        source = feed.source

        def read(first: int, last: int) -> None:  # no method: a cycle would keep the memory
            tile, slot = int(plan.tile[first]), int(plan.slot[first])
            source.read(tile, last - first, slot, image, speed)

        self.tiles = ReadAhead(plan, read, source.threads)

    def fill(self, part: tuple[int, int]) -> Batch:
        """Return the batch of samples ``first`` up to ``last``."""
        rows, done = slice(*part), 0
        visits = self._plan.visit[rows]
        try:
            w = self._feed.sampling.windows(self._epoch, self._samples[rows])
            batch = self._feed.empty_batch(len(w))
            while done < len(visits):
                # As soon as tiles are there: the last may need the place of the first.
                now = slice(done, done + self.tiles.take(visits[done:]))
                slot = self._plan.slot[visits[now]]
                there = Windows(slot, w.y[now], w.x[now], w.op[now], w.key[now])
                copy_windows(self._items, self._speed, there, batch, now)
                self.tiles.give_back(visits[now])
                done = now.stop
        finally:  # after an error, or others would wait for these places for ever
            self.tiles.give_back(visits[done:])
        put_windows(batch, w)
        return batch
