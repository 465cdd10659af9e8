"""A split of one or more stores in memory: one copy on a machine, whoever reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.store import Store
from loaders.loading import TABLE_COLUMNS, load_plan, plan_load
from loaders.progress import progress_bar
from loaders.ranks import load_once
from loaders.reading import Progress
from loaders.selection import Folds, Split
from loaders.shared import Handle, SharedArrays
from loaders.table import TileFacts

LOAD_THREADS = 4
"""Pieces read at a time."""


class RamTiles(TileFacts):
    """Tiles and their table in shared, read-only memory.

    It pickles as a handle of some hundred bytes, whatever its size: a worker under fork, spawn or
    forkserver, or any process of this machine that is sent the pickle, attaches to the same
    memory, and needs neither the store nor zarr.

    Parameters
    ----------
    arrays
        Pixels and table, as :func:`loaders.loading.load_plan` leaves them.
    stores
        The opened stores where there are any; opened again when they are asked for.

    Attributes
    ----------
    image
        uint8 (tile, y, x, band).
    speed
        uint8 (tile, y, x), mph; 0 no road, 255 no data.
    """

    def __init__(self, arrays: SharedArrays, stores: Sequence[Store] | None = None) -> None:
        self._arrays = arrays
        self._stores = None if stores is None else tuple(stores)
        self._meta: dict[str, Any] = json.loads(arrays["meta"].tobytes())
        self.table = {name: arrays[name] for name in TABLE_COLUMNS}
        self.bands = tuple(self._meta["bands"])
        self.left_out = dict(self._meta["left_out"])
        self.image: NDArray[np.uint8] = arrays["image"]
        self.speed: NDArray[np.uint8] = arrays["speed"]
        self.side = int(self.speed.shape[1])

    @classmethod
    def load(
        cls,
        stores: str | Path | Store | Sequence[str | Path | Store],
        split: Split = "train",
        level: int | None = None,
        *,
        bands: Sequence[str] | None = None,
        folds: int | None = None,
        fold: int = 0,
        split_seed: int = 0,
        threads: int = LOAD_THREADS,
        share: bool = True,
        progress: bool | Progress | None = None,
    ) -> RamTiles:
        """Load a split into memory.

        Parameters
        ----------
        stores
            A store or several: opened, a local path or an address. Several are one data set.
        split
            ``train``, ``val``, ``test`` or ``all``.
        level
            Tile side in pixels; None for the finest.
        bands
            Names of the bands to keep, in this order; None for all.
        folds, fold, split_seed
            Cut train and val anew as fold ``fold`` of ``folds``; the test split stays.
        threads
            Pieces read at a time.
        share
            Where torch.distributed is initialised: load once a machine and attach in its other
            ranks. That is a collective; False lets every rank load for itself.
        progress
            True for a bar, None for one where somebody is at a terminal, or a function that is
            called with (tiles read, tiles in all).

        Raises
        ------
        StoreError
            A store cannot be used, lacks the level, or is corrupted; array and shard are named.
        UsageError
            It does not fit into memory, no tile is usable, or the arguments do not fit together.
        """
        cut = None if folds is None else Folds(folds, fold, split_seed)

        def load() -> RamTiles:
            opened = open_stores(stores)
            plan = plan_load(opened, split, level, bands, cut)
            with progress_bar(progress, f"loading {plan.name}") as report:
                return cls(load_plan(plan, threads=threads, progress=report), opened)

        return load_once(load) if share else load()

    @classmethod
    def from_arrays(
        cls,
        image: NDArray[np.uint8],
        speed: NDArray[np.uint8],
        *,
        bands: Sequence[str] | None = None,
        transform: NDArray[np.float64] | None = None,
        crs: str = "EPSG:4326",
    ) -> RamTiles:
        """Copy arrays into shared memory: tiles that never were in a store.

        Parameters
        ----------
        image
            uint8 (tile, side, side, band).
        speed
            uint8 (tile, side, side).
        bands
            Names of the bands; numbers from 1 by default.
        transform
            float64 (tile, 6), affine of each tile; pixel coordinates by default.
        crs
            Of the transform.
        """
        n, side, width, count = image.shape
        if speed.shape != (n, side, side) or width != side:
            raise UsageError(
                f"image {image.shape} and speed {speed.shape} do not match: (tile, side, side, "
                "band) and (tile, side, side) are needed"
            )
        names = [str(i + 1) for i in range(count)] if bands is None else list(bands)
        facts: dict[str, Any] = {"split": "all", "bands": names, "left_out": {}, "stores": []}
        facts |= {"finest": [side], "scenes": [[str(i) for i in range(n)]], "crs": [[crs] * n]}
        meta = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        layout: dict[str, tuple[Any, tuple[int, ...]]] = {
            name: (dtype, (n, *shape)) for name, (dtype, shape) in TABLE_COLUMNS.items()
        }
        layout |= {"image": ("uint8", image.shape), "speed": ("uint8", speed.shape)}
        arrays = SharedArrays.create(layout | {"meta": ("uint8", meta.shape)})
        arrays["image"][:], arrays["speed"][:], arrays["meta"][:] = image, speed, meta
        arrays["tile"][:] = arrays["scene"][:] = np.arange(n)
        arrays["transform"][:] = (1, 0, 0, 0, 1, 0) if transform is None else transform
        known = (speed != 255).sum(axis=(1, 2))
        road = ((speed != 255) & (speed != 0)).sum(axis=(1, 2))
        arrays["road_fraction"][:] = road / np.maximum(known, 1)
        arrays["valid_fraction"][:] = known / (side * side)
        arrays.freeze()
        return cls(arrays, ())

    @property
    def nbytes(self) -> int:
        """Bytes of the shared memory."""
        return self._arrays.nbytes

    @property
    def handle(self) -> Handle:
        """Where other processes find the memory."""
        return self._arrays.handle

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores the tiles came from."""
        if self._stores is None:
            self._stores = open_stores(self._meta["stores"]) if self._meta["stores"] else ()
        return self._stores

    def speed_of(self, tile: int) -> NDArray[np.uint8]:
        """Return the mask of a tile, uint8 (y, x)."""
        mask: NDArray[np.uint8] = self.speed[tile]
        return mask

    def _scene_column(self, name: Literal["id", "crs"], store: int, scene: int) -> str:
        return str(self._meta["scenes" if name == "id" else "crs"][store][scene])

    def _finest_side(self, store: int) -> int:
        return int(self._meta["finest"][store])

    def __reduce__(self) -> tuple[Any, ...]:
        return RamTiles, (self._arrays,)

    def __repr__(self) -> str:
        return (
            f"RamTiles({len(self)} tiles of {self.side} x {self.side} x {len(self.bands)}, "
            f"{self.nbytes / 1e9:.2f} GB, left out {self.left_out or 'none'})"
        )


def open_stores(
    stores: str | Path | Store | Sequence[str | Path | Store],
) -> tuple[Store, ...]:
    """Open a store or several.

    Raises
    ------
    StoreError
        One of them cannot be used.
    UsageError
        There is none.
    """
    several = [stores] if isinstance(stores, str | Path | Store) else list(stores)
    if not several:
        raise UsageError("no store given: name at least one")
    return tuple(s if isinstance(s, Store) else Store.open(s) for s in several)
