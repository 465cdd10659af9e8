"""Batches from a store larger than memory: `BatchLoader`, with tiles that come and go."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from loaders.ahead import run_ahead
from loaders.batch import Batch, batch_of, put_windows
from loaders.batches import BatchLoader
from loaders.gather import as_items, gather
from loaders.sampling import Windows
from loaders.schedule import Step
from loaders.stream.readahead import ReadAhead
from loaders.stream.tiles import StreamTiles, amount
from loaders.stream.window import (
    ReadPlan,
    TurnSchedule,
    WindowSampling,
    WindowShape,
    cut_runs,
    plan_reads,
)


class StreamLoader(BatchLoader):
    """Iterates over batches of tiles that are read from their store meanwhile.

    Arguments, attributes and state are those of `BatchLoader`. Every rank reads what it needs. A
    state goes on under another ``ram_limit`` too, with the window it was taken with, and reads
    again only what was in that window. ``min_road`` with ``crop``, and ``weights="speed"``, read
    all masks once when the loader is made. One iteration can run at a time.

    Parameters
    ----------
    tiles
        From `StreamTiles.open`.
    batch_size
        Samples per rank and batch.
    options
        As for `BatchLoader`; ``residency`` can only be ``stream``.

    Raises
    ------
    UsageError
        The arguments do not fit together, or window and batches not into ``ram_limit``.
    """

    sampling: WindowSampling

    def __init__(self, tiles: StreamTiles, batch_size: int, **options: Any) -> None:  # noqa: ANN401 - BatchLoader checks them
        if options.pop("residency", "stream") != "stream":
            raise UsageError("StreamTiles stay in their store: leave residency out")
        super().__init__(tiles, batch_size, **options)
        self.source = tiles
        self.sampling = WindowSampling.of(self.sampling, tiles.shard, tiles.shape)
        if self.sampling.shuffle:
            s = self.schedule
            self.schedule = TurnSchedule(
                s.samples, s.batch_size, s.rank, s.world_size, s.drop_last, s.equal
            )
        self._busy = False
        self.speed = np.empty((0, 0, 0), np.uint8)
        self._allocate()

    @property
    def nbytes(self) -> int:
        """Bytes that this loader holds at most: tiles, batches, and what threads read."""
        return self.image.nbytes + self.speed.nbytes + self._beside(self.sampling.shape)

    def identity(self) -> dict[str, Any]:
        """Return everything that decides which samples an epoch has, as plain values."""
        found, shape = super().identity(), self.sampling.shape
        if not self.sampling.shuffle:
            return found
        window = {"lanes": shape.lanes, "window": shape.window, "run": shape.run}
        return found | {"shuffle": "window"} | window

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, with this loader's own batch size, ranks and memory limit.

        Raises
        ------
        UsageError
            The state is of other samples, or its window does not fit into ``ram_limit``.
        """
        mine = self.sampling
        theirs = state.get("sampling", {})
        if mine.shuffle and theirs.get("shuffle") == "window":
            shape = WindowShape(theirs["lanes"], theirs["window"], theirs["run"])
            self.sampling = replace(mine, shape=shape, runs=cut_runs(self.source.shard, shape.run))
        try:
            self._allocate()
            super().load_state_dict(state)
        except UsageError:
            self.sampling = mine
            self._allocate()
            raise

    def batches(self, epoch: int, steps: Sequence[Step]) -> Generator[Batch, None, None]:
        """Yield the batch of every step of an epoch; tiles are read and batches filled ahead."""
        if self._busy:
            raise UsageError(
                "this loader is in the middle of an epoch: end that iteration, or make a second "
                "StreamTiles and loader, which hold memory of their own"
            )
        self._busy = True
        try:
            if steps:
                yield from self._batches(epoch, steps)
        finally:
            self._busy = False

    def _batches(self, epoch: int, steps: Sequence[Step]) -> Generator[Batch, None, None]:
        turns = self.schedule.world_size if self.sampling.shuffle else 1
        each = [np.arange(step.first, step.last, turns) for step in steps]
        positions = np.concatenate(each)
        samples = self.sampling.order(epoch)[positions]
        plan = plan_reads(self.sampling, epoch, positions, samples, self.source.rows, self._slots)
        bounds = np.cumsum([0, *map(len, each)]).tolist()
        work = _Epoch(self, epoch, samples, plan)
        filled = run_ahead(work.fill, pairwise(bounds), threads=self.threads, ahead=self.prefetch)
        try:
            for batch in filled:
                yield batch
                del batch  # or its buffer would stay taken while the next one is waited for
        finally:
            work.tiles.stop()  # first, or those who fill would wait for tiles to the end
            filled.close()
            work.tiles.join()

    def empty_batch(self, samples: int) -> Batch:
        """Return a batch with whatever its buffer held before."""
        return batch_of(self._ring.take(), samples, self.sampling.window, len(self.source.bands))

    def _beside(self, shape: WindowShape) -> int:
        """Return the bytes of batches, and of what threads read."""
        return self._ring.nbytes * (self.prefetch + 3) + self.source.reading_bytes(shape.run)

    def _lanes_and_need(self, shape: WindowShape) -> tuple[int, int]:
        """Return the lanes of this rank, and the tiles that each of them must hold."""
        if self.sampling.shuffle:
            return shape.lanes_of_rank(self.schedule.world_size), shape.lane_tiles
        return 1, 2 * shape.run

    def _slots_within(self, limit: int, shape: WindowShape) -> int:
        """Return the tiles that each lane of this rank can hold, 0 if those are too few."""
        lanes, need = self._lanes_and_need(shape)
        parts = shape.lanes if self.sampling.shuffle else self.schedule.world_size
        size, tiles = self.source.tile_bytes, len(self.source)
        room = (limit - self._beside(shape)) // size // lanes
        share = min(limit // size // parts, -(-tiles // lanes) + 1)
        return min(max(share, need), room) if room >= need else 0

    def _allocate(self) -> None:
        """Make room for the tiles that must be held at a time, unless it is there already."""
        tiles, shape = self.source, self.sampling.shape
        slots = self._slots_within(tiles.ram_limit, shape)
        if not slots:
            raise self._too_small(shape)
        self._slots = slots
        total = slots * self._lanes_and_need(shape)[0]
        if len(self.speed) != total:
            self.image = np.empty((total, tiles.side, tiles.side, len(tiles.bands)), np.uint8)
            self.speed = np.empty((total, tiles.side, tiles.side), np.uint8)

    def _too_small(self, shape: WindowShape) -> UsageError:
        """Return the refusal of a limit, with figures, and with one that is enough."""
        tiles, beside = self.source, self._beside(shape)
        limit = enough = tiles.ram_limit
        mine = shape == tiles.shape  # else that of a state, which stays as it is
        while not self._slots_within(enough, tiles.shape_within(enough) if mine else shape):
            enough += -(-limit // 20)
        lanes, need = self._lanes_and_need(shape)
        least = lanes * need * tiles.tile_bytes + beside
        return UsageError(
            f"ram_limit of {amount(limit)} is too small: {lanes * need} tiles of "
            f"{amount(tiles.tile_bytes)} must be held at a time, which with {amount(beside)} of "
            f"batches and reading makes {amount(least)}. Raise it in StreamTiles.open to "
            f"{-(-enough // 10**6)} MB, or take a smaller batch_size, crop or prefetch, or fewer "
            "lanes"
        )


class _Epoch:
    """Reads the tiles of a part of an epoch, and fills batches from them.

    Parameters
    ----------
    loader
        What it is done for.
    epoch
        Which.
    samples
        int64 (n,), in order.
    plan
        For the same samples.
    """

    def __init__(
        self, loader: StreamLoader, epoch: int, samples: NDArray[np.int64], plan: ReadPlan
    ) -> None:
        self._loader = loader
        self._epoch = epoch
        self._samples = samples
        self._plan = plan
        self._pixels = loader.image, loader.speed
        self.tiles = ReadAhead(plan, self._read, loader.source.threads)

    def fill(self, part: tuple[int, int]) -> Batch:
        """Return the batch of samples ``first`` up to ``last``."""
        rows, done = slice(*part), 0
        visits = self._plan.visit[rows]
        try:
            windows = self._loader.sampling.windows(self._epoch, self._samples[rows])
            batch = self._loader.empty_batch(len(windows))
            while done < len(visits):
                # As soon as tiles are there: the last may need the place of the first.
                now = slice(done, done + self.tiles.take(visits[done:]))
                self._copy(windows, now, self._plan.slot[visits[now]], batch)
                self.tiles.give_back(visits[now])
                done = now.stop
        finally:  # after an error, or others would wait for these places for ever
            self.tiles.give_back(visits[done:])
        put_windows(batch, windows)
        return batch

    def _copy(self, windows: Windows, now: slice, slot: NDArray[np.int64], batch: Batch) -> None:
        """Copy some of the windows of a batch out of the slots that hold their tiles."""
        image, speed = self._pixels
        w = windows
        part = Windows(slot, w.y[now], w.x[now], w.op[now], w.key[now])
        gather(as_items(image), part, as_items(batch.image.numpy().transpose(0, 2, 3, 1))[now])
        gather(speed, part, batch.speed.numpy()[now])

    def _read(self, first: int, last: int) -> None:
        tile, slot = int(self._plan.tile[first]), int(self._plan.slot[first])
        self._loader.source.read(tile, last - first, slot, *self._pixels)
