"""Stores larger than memory: tiles read ahead within a limit, shuffled over a window.

The batches, the loop and the state are those of :mod:`loaders.batches`; only the order of samples
is another, see :mod:`loaders.stream.window`. Every tile is read and decoded once an epoch, so
``crops_per_tile`` divides that work; on any further epoch it is done again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.store import Store
from loaders.chunks import ChunkReader
from loaders.limits import available_memory
from loaders.loading import Plan, plan_load
from loaders.ram import open_stores
from loaders.ranks import is_distributed
from loaders.reading import Piece
from loaders.selection import Folds, Split
from loaders.stream.window import LEAST_LANE, WindowShape
from loaders.table import TileFacts, plan_table

LANES = 8
"""Lanes by default: 2, 4 or 8 ranks then read disjoint parts of the store."""

READ_THREADS, REMOTE_THREADS = 4, 16
"""Runs read at a time: of files, and of objects, where most threads wait for an answer."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def memory_limit(limit: str | int | float) -> int:
    """Return a limit of memory in bytes.

    Parameters
    ----------
    limit
        ``"4GiB"``, ``"500MB"``, a number of bytes, or a share of the memory that is available
        now, as a float up to 1.0. Ranks agree on the least share: then a collective.

    Raises
    ------
    UsageError
        It is none of these.
    """
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        return limit
    if isinstance(limit, float) and 0 < limit <= 1:
        return _agreed(int(limit * available_memory().nbytes))
    if isinstance(limit, str):
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?))?b", limit.strip().lower())
        if match and float(match[1]) > 0:
            return int(float(match[1]) * (_BINARY if match[3] else _UNITS)[match[2] or ""])
    raise UsageError(
        f"ram_limit={limit!r} is not an amount of memory: give '4GiB', '500MB', a number of "
        "bytes, or a share of what is available as a float such as 0.25"
    )


def amount(nbytes: int) -> str:
    """Return bytes as a person reads them."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"


def _agreed(nbytes: int) -> int:
    """Return the least of all ranks' figures."""
    if not is_distributed():
        return nbytes
    figures: list[Any] = [nbytes] * dist.get_world_size()
    dist.all_gather_object(figures, nbytes)
    return int(min(figures))


class StreamTiles(TileFacts):
    """Tiles that stay in their store; a loader of them reads them while it goes.

    Parameters
    ----------
    plan
        Which tiles of which stores.
    ram_limit
        Bytes of pixels that a loader may hold.
    lanes
        See `open`.
    threads
        Runs read at a time.
    """

    def __init__(self, plan: Plan, ram_limit: int, *, lanes: int, threads: int) -> None:
        self.side, self.bands, self.left_out = plan.level, plan.bands, plan.left_out
        self.table = plan_table(plan)
        self._stores = plan.stores
        self.ram_limit = ram_limit
        self.threads = threads
        if lanes < 1 or threads < 1:
            raise UsageError(f"lanes={lanes}, threads={threads}: at least 1 of each")
        self._name = plan.name
        self.rows = self.table["tile"].astype(np.int64)
        per_shard = np.array([s.meta.shard_tiles for s in self.stores])[self.table["store"]]
        self.shard = (self.table["store"].astype(np.int64) << 32) + self.rows // per_shard
        self._readers = [
            ChunkReader(store, self.side, _band_indexes(store, self.bands)) for store in self.stores
        ]
        self._lanes = lanes
        self._check_limit()
        self.shape = self.shape_within(ram_limit)

    @classmethod
    def open(
        cls,
        stores: str | Path | Store | Sequence[str | Path | Store],
        split: Split = "train",
        level: int | None = None,
        ram_limit: str | int | float = "4GiB",
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
        stores
            A store or several: opened, a local path or an address. Several are one data set.
        split
            ``train``, ``val``, ``test`` or ``all``.
        level
            Tile side in pixels; None for the finest.
        ram_limit
            What a loader of these tiles may hold, tiles and batches together: an amount such as
            ``4GiB``, or a share of the available memory such as 0.25. It decides the window over
            which samples are shuffled, and so their order. Ranks whose number divides ``lanes``
            share it; no process ever holds more.
        bands
            Names of the bands to keep, in this order; None for all.
        folds, fold, split_seed
            Cut train and val anew as fold ``fold`` of ``folds``; the test split stays.
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
        cut = None if folds is None else Folds(folds, fold, split_seed)
        plan = plan_load(open_stores(stores), split, level, bands, cut)
        if threads is None:
            remote = any("://" in store.location for store in plan.stores)
            threads = REMOTE_THREADS if remote else READ_THREADS
        return cls(plan, memory_limit(ram_limit), lanes=lanes, threads=threads)

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores the tiles come from."""
        return self._stores

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile and its mask."""
        return self.side * self.side * (len(self.bands) + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all tiles and masks."""
        return len(self) * self.tile_bytes

    def reading_bytes(self, run: int) -> int:
        """Return the bytes that threads hold while they read: compressed tiles, and one whole.

        Parameters
        ----------
        run
            Tiles that a thread reads at a time.
        """
        bands = max(len(store.meta.bands) for store in self.stores)
        whole = any(reader.bands for reader in self._readers)
        return self.threads * (run + whole) * self.side * self.side * bands

    def shape_within(self, limit: int) -> WindowShape:
        """Return the shape of the window under a memory limit in bytes."""
        return WindowShape.fitting(limit // self.tile_bytes, self._lanes, len(self))

    def read(
        self, first: int, count: int, at: int, image: NDArray[np.uint8], speed: NDArray[np.uint8]
    ) -> None:
        """Read tiles that are neighbours in one shard to row ``at`` of image and speed.

        Raises
        ------
        StoreError
            A chunk is corrupted or missing; array and shard are named.
        """
        row = int(self.rows[first])
        self._reader(first).read(Piece(row, row + count, at), image, speed)

    def speed_of(self, tile: int) -> NDArray[np.uint8]:
        """Return the mask of a tile, uint8 (y, x), read from the store."""
        masks = np.empty((1, self.side, self.side), np.uint8)
        row = int(self.rows[tile])
        self._reader(tile).read_speed(Piece(row, row + 1, 0), masks)
        mask: NDArray[np.uint8] = masks[0]
        return mask

    def _reader(self, tile: int) -> ChunkReader:
        return self._readers[int(self.table["store"][tile])]

    def _scene_column(self, name: Literal["id", "crs"], store: int, scene: int) -> str:
        return str(getattr(self._stores[store].scenes, name)[scene])

    def _finest_side(self, store: int) -> int:
        return self._stores[store].meta.levels[0]

    def _check_limit(self) -> None:
        least, left = LEAST_LANE * self._lanes * self.tile_bytes, available_memory()
        if self.ram_limit < least:
            raise UsageError(
                f"ram_limit of {amount(self.ram_limit)} is too small for {self._name}: a window "
                f"takes {LEAST_LANE} tiles in each of {self._lanes} lanes, {amount(least)} where a "
                f"tile of {self.side} x {self.side} x {len(self.bands)} and its mask have "
                f"{amount(self.tile_bytes)}. Raise it, or take fewer lanes=, a coarser level= or "
                "fewer bands="
            )
        if min(self.ram_limit, self.nbytes) > left.nbytes:
            raise UsageError(
                f"ram_limit of {amount(self.ram_limit)} is more than the {amount(left.nbytes)} "
                f"that {left.limited_by} has left: lower it, or give a share of that such as 0.5"
            )

    def __repr__(self) -> str:
        return (
            f"StreamTiles({len(self)} tiles of {self.side} x {self.side} x {len(self.bands)}, "
            f"{amount(self.nbytes)} through {amount(self.ram_limit)} of memory, "
            f"left out {self.left_out or 'none'})"
        )


def _band_indexes(store: Store, bands: tuple[str, ...]) -> tuple[int, ...] | None:
    if store.meta.bands == bands:
        return None
    return tuple(store.meta.bands.index(band) for band in bands)
