"""Tiles that stay in their store and are read while a loader iterates.

Every tile is read and decoded once per epoch, so ``crops_per_tile`` divides that work; every epoch
does it again. The order of samples is that of :mod:`loaders.tiles.shuffle_order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, cast

import numpy as np

from geoprep.errors import UsageError
from loaders.batch import BufferPool, Crops, Ints, Pixels
from loaders.memory import available_memory, format_bytes, memory_limit
from loaders.prefetch import SideThreads
from loaders.sampling import Sampling, StepCrops
from loaders.selection import LoadPlan, Split, Stores, TileChoice, plan_load
from loaders.tiles.base import CropReader, Tiles
from loaders.tiles.reading import PlannedReading
from loaders.tiles.shuffle_order import LEAST_LANE, ShuffleWindow, StreamSampling, plan_reads

LANES = 8
"""Default number of lanes: 2, 4 or 8 ranks then read disjoint parts of the store."""

READ_THREADS, REMOTE_THREADS = 4, 16
"""Runs read at the same time: from files, and from objects, where most threads wait."""


class StreamTiles(Tiles):
    """Tiles that stay in their store; a loader reads them while it iterates.

    Every rank reads the tiles that it needs. A saved state can be resumed with another
    ``ram_limit``: it keeps its shuffle window, and only tiles in that window are read again.
    ``min_road`` and ``min_share``, and ``weights="speed"`` or ``"classes"``, read all labels once
    when a loader is created. Loaders of the same tiles, and of tiles that share their memory, can
    run only one epoch at a time.

    Parameters
    ----------
    plan
        Tiles to read.
    buffer
        Memory for tiles and batches, or its limit in bytes.
    lanes
        See `open`.
    threads
        Runs read at the same time; None for `READ_THREADS`, or `REMOTE_THREADS`.
    """

    def __init__(
        self, plan: LoadPlan, buffer: TileBuffer | int, lanes: int, threads: int | None
    ) -> None:
        if lanes < 1 or (threads is not None and threads < 1):
            raise UsageError(f"lanes={lanes}, threads={threads}: use at least 1 of each")
        super().__init__(plan.origin, plan.table, plan.stores)
        self.plan = plan
        self.buffer = TileBuffer(buffer) if isinstance(buffer, int) else buffer
        self.lanes = lanes
        self.remote = any("://" in store.location for store in plan.stores)
        self.threads = threads or (REMOTE_THREADS if self.remote else READ_THREADS)
        self.rows = self.table["tile"].astype(np.int64)
        per_shard = np.array([s.meta.shard_tiles for s in plan.stores])[self.table["store"]]
        self.shard = (self.table["store"].astype(np.int64) << 32) + self.rows // per_shard
        self.arrays = plan.arrays()
        self._check_limit(shared=self.buffer is buffer)
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
        classes: Sequence[str] | None = None,
        folds: int | None = None,
        fold: int = 0,
        split_seed: int = 0,
        lanes: int = LANES,
        threads: int | None = None,
    ) -> StreamTiles:
        """Open a split, without reading a pixel.

        Parameters
        ----------
        stores, split, level, bands, classes, folds, fold, split_seed
            As for `RamTiles.load`.
        ram_limit
            Memory for loaders of these tiles, tiles and batches together: an amount such as
            ``4GiB``, a share of the available memory such as 0.25, or other tiles to share their
            memory with, such as those of training for validation. It determines the window over
            which samples are shuffled, and so their order. Ranks whose number divides ``lanes``
            share it; no process uses more.
        lanes
            Parts of the store that are read in parallel. Ranks whose number divides it read
            disjoint tiles; others read some tiles several times.
        threads
            Runs of tiles read at the same time; None for `READ_THREADS`, or `REMOTE_THREADS`.

        Raises
        ------
        StoreError
            A store cannot be used, or lacks the level.
        UsageError
            The limit is too small for a shuffle window or larger than memory, no tile is usable,
            or the arguments do not fit together.
        """
        choice = TileChoice(split, level, bands, classes, folds, fold, split_seed)
        plan = plan_load(stores, choice)
        if isinstance(ram_limit, StreamTiles):
            return cls(plan, ram_limit.buffer, lanes, threads)
        return cls(plan, memory_limit(ram_limit), lanes, threads)

    @property
    def ram_limit(self) -> int:
        """Bytes that loaders of these tiles may use."""
        return self.buffer.limit

    def sampling(self, **options: Any) -> StreamSampling:  # noqa: ANN401 - the fields of Sampling
        """Return the samples of an epoch, in an order for streaming; options as `Sampling`."""
        return StreamSampling(len(self), self.side, **options, shard=self.shard, shape=self.shape)

    def reader(self, sampling: Sampling, world_size: int, buffers: BufferPool) -> StreamReader:
        """Return a reader that reads tiles ahead for one loader; see `Tiles.reader`."""
        return StreamReader(self, cast(StreamSampling, sampling), world_size, buffers)

    def shape_within(self, limit: int) -> ShuffleWindow:
        """Return the shuffle window for a memory limit in bytes."""
        return ShuffleWindow.fitting(limit // self.tile_bytes, self.lanes, len(self))

    def read(self, tiles: Ints, image: Pixels | None, label: Pixels | None) -> None:
        """Read tiles of one shard.

        Parameters
        ----------
        tiles
            int64, ascending indexes.
        image, label
            uint8 (tile, y, x, band) and (tile, y, x), one per tile; written. None leaves one out.

        Raises
        ------
        StoreError
            A chunk is corrupted or missing; array and shard are named.
        """
        arrays, rows = self.arrays[int(self.table["store"][tiles[0]])], self.rows[tiles].tolist()
        for array, target in zip(arrays, (image, label), strict=True):
            if target is not None:
                array.read(rows, target)

    def decode(self, tile: int, image: Pixels | None, label: Pixels | None) -> None:
        """Read one whole tile from the store; see `Tiles.decode`."""
        targets = (None if out is None else out[None] for out in (image, label))
        self.read(np.array([tile]), *targets)

    def _check_limit(self, *, shared: bool) -> None:
        least, left = LEAST_LANE * self.lanes * self.tile_bytes, available_memory()
        if self.ram_limit < least:
            raise UsageError(
                "ram_limit",
                f"of {format_bytes(self.ram_limit)} is too small for {self.plan.name}: "
                f"the shuffle window takes {LEAST_LANE} tiles in each of {self.lanes} lanes, "
                f"{format_bytes(least)} with {format_bytes(self.tile_bytes)} per tile of "
                f"{self.side} x {self.side} x {len(self.bands)} and its label. Raise it, or use "
                "fewer lanes=, a coarser level= or fewer bands=",
            )
        if not shared and min(self.ram_limit, self.nbytes) > left.nbytes:
            raise UsageError(
                "ram_limit",
                f"of {format_bytes(self.ram_limit)} is more than the "
                f"{format_bytes(left.nbytes)} that {left.limited_by} has left: lower it, or give a "
                "share of that such as 0.5",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamTiles, (self.plan, self.ram_limit, self.lanes, self.threads)

    def _size(self) -> str:
        return f"{format_bytes(self.nbytes)} through {format_bytes(self.ram_limit)} of memory"


class StreamReader(CropReader):
    """Reads tiles ahead for one loader, and copies crops of them.

    UsageError if tiles and batches do not fit into the memory limit.
    """

    def __init__(
        self, tiles: StreamTiles, sampling: StreamSampling, world_size: int, buffers: BufferPool
    ) -> None:
        self.tiles = tiles
        self.sampling = sampling
        self._ranks = world_size
        self._buffers = buffers
        shape = sampling.shape
        self._other = self._other_bytes(shape)
        self._slots = self._slots_within(tiles.buffer.limit, shape)
        if not self._slots:
            raise self._too_small(shape)
        self._tiles_held = self._slots * self._lanes_and_need(shape)[0]

    def announce(self, steps: StepCrops) -> SideThreads:
        """Plan the reads of an epoch; see `CropReader.announce`."""
        tiles, held = self.tiles, self._tiles_held
        nbytes = held * tiles.tile_bytes
        memory = tiles.buffer.enter(self._buffers, nbytes, self._other)
        pixels, mask = np.split(memory, [nbytes - held * tiles.side**2])
        shape = (held, tiles.side, tiles.side)
        arrays = pixels.reshape(*shape, -1), mask.reshape(shape)
        at = steps.epoch, steps.positions, steps.samples
        plan = plan_reads(self.sampling, *at, self._slots)
        reading = PlannedReading(plan, steps.samples, *arrays, tiles.read, tiles.threads)
        tiles.buffer.reading = reading
        return reading

    def copy(self, crops: Crops, image: Any, label: Any) -> None:  # noqa: ANN401 - see CropReader
        """Copy announced crops, waiting for their tiles; see `CropReader.copy`."""
        reading = self.tiles.buffer.reading
        assert reading is not None
        reading.copy(crops, np.asarray(image), np.asarray(label))

    def _other_bytes(self, shape: ShuffleWindow) -> int:
        """Return the bytes of batches, and of compressed and partly used tiles in each thread."""
        tiles, run = self.tiles, shape.run
        bands = max(len(store.meta.bands) for store in tiles.stores)
        # A server may send as many bytes again between two tiles.
        held = run * (1 + (tiles.remote and run > 1)) + any(
            image.decode.bands for image, _ in tiles.arrays
        )
        reading = tiles.threads * held * tiles.side**2 * bands
        return self._buffers.most_bytes + reading

    def _lanes_and_need(self, shape: ShuffleWindow) -> tuple[int, int]:
        """Return the lanes of this rank, and the tiles that each of them must hold."""
        if self.sampling.shuffle:
            return shape.lanes // gcd(shape.lanes, self._ranks), shape.lane_tiles
        return 1, 2 * shape.run

    def _slots_within(self, limit: int, shape: ShuffleWindow) -> int:
        """Return the tiles that fit into memory per lane of this rank; 0 if they are too few."""
        lanes, need = self._lanes_and_need(shape)
        parts = shape.lanes if self.sampling.shuffle else self._ranks
        size, tiles = self.tiles.tile_bytes, len(self.tiles)
        fitting = (limit - self._other_bytes(shape)) // size // lanes
        share = min(limit // size // parts, -(-tiles // lanes) + 1)
        return min(max(share, need), fitting) if fitting >= need else 0

    def _too_small(self, shape: ShuffleWindow) -> UsageError:
        """Return the error for a limit that is too small, with one that is large enough."""
        tiles = self.tiles
        limit = enough = tiles.buffer.limit
        own = shape == tiles.shape  # else that of a state, which does not change with the limit
        while not self._slots_within(enough, tiles.shape_within(enough) if own else shape):
            enough += -(-limit // 20)
        lanes, need = self._lanes_and_need(shape)
        least = lanes * need * tiles.tile_bytes + self._other
        return UsageError(
            "ram_limit",
            f"of {format_bytes(limit)} is too small: {lanes * need} tiles of "
            f"{format_bytes(tiles.tile_bytes)} must be in memory at a time, which with "
            f"{format_bytes(self._other)} for batches and reading makes {format_bytes(least)}. "
            f"Raise it to {-(-enough // 10**6)} MB, or use a smaller `batch_size`, `crop` or "
            "`prefetch`, or fewer `lanes`",
        )


class TileBuffer:
    """Memory for the tiles of one running epoch, within a limit that batches count towards."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._tiles = np.empty(0, np.uint8)
        self.reading: PlannedReading | None = None
        self._batches: BufferPool | None = None

    def enter(self, batches: BufferPool, nbytes: int, other: int) -> Pixels:
        """Return memory for the tiles of an epoch, after the previous epoch has ended.

        The buffers of the previous loader's batches are freed. UsageError if an epoch is
        running.
        """
        running = None if self.reading is None else self.reading.workers
        workers = None if running is None else running()
        if workers is not None and not workers.ended:
            if workers.owner() is not None and not workers.stopping:
                raise UsageError(
                    "these tiles are in the middle of an epoch: end that iteration, or open them a "
                    "second time, with their own memory"
                )
            workers.stopping = True
            workers.wait()
        self.reading = workers = None  # which refer to the memory
        if self._batches is not None and self._batches is not batches:
            self._batches.clear()
        self._batches = batches
        if not nbytes <= len(self._tiles) <= self.limit - other:
            self._tiles = np.empty(0, np.uint8)  # first, or both would be allocated
            self._tiles = np.empty(nbytes, np.uint8)
        return self._tiles[:nbytes]
