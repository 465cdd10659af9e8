"""Tiles that stay in their store, and batches of them while tiles come and go.

Every tile is read and decoded once per epoch, so ``crops_per_tile`` divides that work; in any
further epoch it is done again. The order of samples is that of :mod:`loaders.window`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import gcd
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from loaders.ahead import Ahead
from loaders.batch import Batch, Request
from loaders.chunks import Arrays
from loaders.memory import amount, available_memory, memory_limit
from loaders.readahead import ReadAhead, Room
from loaders.sampling import Step
from loaders.selection import Plan, Split, Stores, plan_load
from loaders.tiles import Tiles
from loaders.window import LEAST_LANE, WindowSampling, WindowShape, plan_reads

LANES = 8
"""Lanes by default: 2, 4 or 8 ranks then read disjoint parts of the store."""

READ_THREADS, REMOTE_THREADS = 4, 16
"""Runs read at a time: of files, and of objects, where most threads wait for an answer."""


class StreamTiles(Tiles):
    """Tiles that stay in their store; a loader of them reads them while it goes.

    Every rank reads what it needs. A state goes on under another ``ram_limit`` too, with the
    window it was taken with, and reads again only what was in that window. ``min_road`` with
    ``crop``, and ``weights="speed"``, read all masks once when a loader is made. Loaders of the
    same tiles, and of tiles that share their memory, can run one epoch at a time.

    Parameters
    ----------
    plan
        Which tiles of which stores.
    room
        Memory for tiles and batches.
    lanes
        See `open`.
    threads
        Runs read at a time; None for `READ_THREADS`, or `REMOTE_THREADS`.
    """

    def __init__(self, plan: Plan, room: Room | int, lanes: int, threads: int | None) -> None:
        if lanes < 1 or (threads is not None and threads < 1):
            raise UsageError(f"lanes={lanes}, threads={threads}: at least 1 of each")
        super().__init__(plan.origin, plan.table, plan.stores)
        self.plan = plan
        self.room = Room(room) if isinstance(room, int) else room
        self.lanes = lanes
        self.remote = any("://" in store.location for store in plan.stores)
        self.threads = threads or (REMOTE_THREADS if self.remote else READ_THREADS)
        self.rows = self.table["tile"].astype(np.int64)
        per_shard = np.array([s.meta.shard_tiles for s in plan.stores])[self.table["store"]]
        self.shard = (self.table["store"].astype(np.int64) << 32) + self.rows // per_shard
        self.arrays = plan.arrays()
        self._check_limit(shared=self.room is room)
        self.shape = self.shape_within(self.ram_limit)

    @classmethod
    def open(
        cls,
        stores: Stores,
        split: Split = "train",
        level: int | None = None,
        ram_limit: str | int | float | StreamTiles = "4GiB",
        *,
        bands: Sequence[str] | None = None,
        folds: int | None = None,
        fold: int = 0,
        split_seed: int = 0,
        lanes: int = LANES,
        threads: int | None = None,
    ) -> StreamTiles:
        """Open a split, without reading a pixel.

        Parameters
        ----------
        stores, split, level, bands, folds, fold, split_seed
            As for `RamTiles.load`.
        ram_limit
            What loaders of these tiles may hold, tiles and batches together: an amount such as
            ``4GiB``, a share of the available memory such as 0.25, or other tiles, to share their
            memory with: validation, say, that of training. It decides the window over which
            samples are shuffled, and so their order. Ranks whose number divides ``lanes`` share
            it; no process ever holds more.
        lanes
            Parts of the store that are read side by side. Ranks whose number divides it read
            disjoint tiles; others read some tiles several times.
        threads
            Runs of tiles read at a time; None for `READ_THREADS`, or `REMOTE_THREADS`.

        Raises
        ------
        StoreError
            A store cannot be used, or lacks the level.
        UsageError
            The limit is too small for a window or larger than memory, no tile is usable, or the
            arguments do not fit together.
        """
        plan = plan_load(stores, split, level, bands, folds, fold, split_seed)
        room = ram_limit.room if isinstance(ram_limit, StreamTiles) else memory_limit(ram_limit)
        return cls(plan, room, lanes, threads)

    @property
    def ram_limit(self) -> int:
        """Bytes that loaders of these tiles may hold."""
        return self.room.limit

    def sampling(self, **options: Any) -> WindowSampling:  # noqa: ANN401 - its own fields
        """Return the samples of an epoch, in an order that a window of the tiles suffices for."""
        return WindowSampling(len(self), self.side, **options, shard=self.shard, shape=self.shape)

    def feed(self, request: Request) -> StreamFeed:
        """Return what reads tiles and fills batches from them.

        Raises
        ------
        UsageError
            Window and batches do not fit into the limit.
        """
        return StreamFeed(self, request)

    def shape_within(self, limit: int) -> WindowShape:
        """Return the shape of the window under a memory limit in bytes."""
        return WindowShape.fitting(limit // self.tile_bytes, self.lanes, len(self))

    def read(
        self, tiles: NDArray[np.int64], image: NDArray[np.uint8], speed: NDArray[np.uint8]
    ) -> None:
        """Read tiles of one shard.

        Parameters
        ----------
        tiles
            int64, ascending.
        image, speed
            uint8 (tile, y, x, band) and (tile, y, x), one place per tile; written.

        Raises
        ------
        StoreError
            A chunk is corrupted or missing; array and shard are named.
        """
        rows = self.rows[tiles].tolist()
        for pixels, out in zip(self._arrays_of(tiles[0]), (image, speed), strict=True):
            pixels.read(rows, out)

    def speed_of(self, tile: int) -> NDArray[np.uint8]:
        """Return the mask of a tile, uint8 (y, x), read from the store."""
        mask = np.empty((self.side, self.side), np.uint8)
        self._arrays_of(tile)[1].read([int(self.rows[tile])], mask[None])
        return mask

    def pixels(self, tile: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return image and mask, uint8 (y, x, band) and (y, x), read from the store."""
        image = np.empty((self.side, self.side, len(self.bands)), np.uint8)
        speed = np.empty((self.side, self.side), np.uint8)
        self.read(np.array([tile]), image[None], speed[None])
        return image, speed

    def _arrays_of(self, tile: int) -> Arrays:
        return self.arrays[int(self.table["store"][tile])]

    def _check_limit(self, *, shared: bool) -> None:
        least, left = LEAST_LANE * self.lanes * self.tile_bytes, available_memory()
        if self.ram_limit < least:
            raise UsageError(
                f"ram_limit of {amount(self.ram_limit)} is too small for {self.plan.name}: a "
                f"window takes {LEAST_LANE} tiles in each of {self.lanes} lanes, {amount(least)} "
                f"where a tile of {self.side} x {self.side} x {len(self.bands)} and its mask have "
                f"{amount(self.tile_bytes)}. Raise it, or take fewer lanes=, a coarser level= or "
                "fewer bands="
            )
        if not shared and min(self.ram_limit, self.nbytes) > left.nbytes:
            raise UsageError(
                f"ram_limit of {amount(self.ram_limit)} is more than the {amount(left.nbytes)} "
                f"that {left.limited_by} has left: lower it, or give a share of that such as 0.5"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamTiles, (self.plan, self.ram_limit, self.lanes, self.threads)

    def _held(self) -> str:
        return f"{amount(self.nbytes)} through {amount(self.ram_limit)} of memory"


class StreamFeed:
    """Reads tiles ahead, and fills batches from them.

    Parameters
    ----------
    tiles
        In their store.
    request
        What is wanted; its sampling is a `WindowSampling`.

    Raises
    ------
    UsageError
        Window and batches do not fit into the limit.
    """

    def __init__(self, tiles: StreamTiles, request: Request) -> None:
        self.tiles = tiles
        self.request = request
        self.sampling = cast(WindowSampling, request.sampling)
        self._ring = request.ring()
        shape = self.sampling.shape
        self._beside = self._beside_of(shape)
        self._slots = self._slots_within(tiles.room.limit, shape)
        if not self._slots:
            raise self._too_small(shape)
        self._held = self._slots * self._lanes_and_need(shape)[0]

    @property
    def nbytes(self) -> int:
        """Bytes held at most: tiles, batches, and what threads read."""
        return self._held * self.tiles.tile_bytes + self._beside

    def __call__(self, epoch: int, steps: Sequence[Step]) -> Iterator[Batch]:
        """Return an iterator over the batch of every step; tiles are read meanwhile.

        Raises
        ------
        UsageError
            Another epoch is running in the same memory.
        """
        if not steps:
            return iter(())
        tiles, request, sampling = self.tiles, self.request, self.sampling
        nbytes, ring = self._held * tiles.tile_bytes, self._ring
        memory = tiles.room.enter(ring, nbytes, self._beside)
        image, speed = np.split(memory, [nbytes - self._held * tiles.side**2])
        mask = (self._held, tiles.side, tiles.side)
        positions = np.concatenate([np.arange(s.first, s.last, s.stride) for s in steps])
        samples = sampling.order(epoch)[positions]
        plan = plan_reads(sampling, epoch, positions, samples, self._slots)
        reading = ReadAhead(
            plan, image.reshape(*mask, -1), speed.reshape(mask), tiles.read, tiles.threads
        )

        def fill(part: tuple[int, int]) -> Batch:
            rows = slice(*part)
            windows = sampling.windows(epoch, samples[rows])
            batch = request.batch(ring, windows)
            reading.fill(batch, windows, rows)
            return batch

        ends = accumulate((step.size for step in steps), initial=0)
        threads, ahead = request.threads, request.prefetch
        filled = Ahead(fill, pairwise(ends), threads=threads, ahead=ahead, beside=reading)
        tiles.room.leave_to(filled)
        return filled

    def _beside_of(self, shape: WindowShape) -> int:
        """Return the bytes of batches, and of compressed tiles and a whole one in each thread."""
        tiles, run = self.tiles, shape.run
        bands = max(len(store.meta.bands) for store in tiles.stores)
        # A server may send as much again that lies between two tiles.
        held = run * (1 + (tiles.remote and run > 1)) + any(
            image.decode.bands for image, _ in tiles.arrays
        )
        reading = tiles.threads * held * tiles.side**2 * bands
        return self._ring.nbytes * (self.request.prefetch + 3) + reading

    def _lanes_and_need(self, shape: WindowShape) -> tuple[int, int]:
        """Return the lanes of this rank, and the tiles that each of them must hold."""
        if self.sampling.shuffle:
            ranks = self.request.schedule.world_size
            return shape.lanes // gcd(shape.lanes, ranks), shape.lane_tiles
        return 1, 2 * shape.run

    def _slots_within(self, limit: int, shape: WindowShape) -> int:
        """Return the tiles that each lane of this rank can hold, 0 if those are too few."""
        lanes, need = self._lanes_and_need(shape)
        parts = shape.lanes if self.sampling.shuffle else self.request.schedule.world_size
        size, tiles = self.tiles.tile_bytes, len(self.tiles)
        room = (limit - self._beside_of(shape)) // size // lanes
        share = min(limit // size // parts, -(-tiles // lanes) + 1)
        return min(max(share, need), room) if room >= need else 0

    def _too_small(self, shape: WindowShape) -> UsageError:
        """Return the refusal of a limit, with figures, and with one that is enough."""
        tiles = self.tiles
        limit = enough = tiles.room.limit
        mine = shape == tiles.shape  # else that of a state, which stays as it is
        while not self._slots_within(enough, tiles.shape_within(enough) if mine else shape):
            enough += -(-limit // 20)
        lanes, need = self._lanes_and_need(shape)
        least = lanes * need * tiles.tile_bytes + self._beside
        return UsageError(
            f"ram_limit of {amount(limit)} is too small: {lanes * need} tiles of "
            f"{amount(tiles.tile_bytes)} must be held at a time, which with "
            f"{amount(self._beside)} of batches and reading makes {amount(least)}. Raise it in "
            f"StreamTiles.open to {-(-enough // 10**6)} MB, or take a smaller batch_size, crop or "
            "prefetch, or fewer lanes"
        )
