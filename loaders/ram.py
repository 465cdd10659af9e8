"""A split of one or more stores in memory: one copy on a machine, whoever reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.store import Store
from loaders.batch import Feed, Request, as_items, copy_windows
from loaders.batches import HostFeed
from loaders.chunks import Progress, progress_bar, read_all
from loaders.selection import Split, check_fits, plan_load
from loaders.shared import Handle, SharedArrays, load_once
from loaders.table import COLUMNS, Origin, Table, Tiles, read_table

LOAD_THREADS = 4
"""Pieces read at a time."""


class RamTiles(Tiles):
    """Tiles and their table in shared, read-only memory.

    It pickles as a handle of some hundred bytes, whatever its size: a worker under fork, spawn or
    forkserver, or any process of this machine that is sent the pickle, attaches to the same
    memory, and needs neither the store nor zarr.

    Parameters
    ----------
    arrays
        Pixels and table.
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
        self.image: NDArray[np.uint8] = arrays["image"]
        self.speed: NDArray[np.uint8] = arrays["speed"]
        origin = Origin(**json.loads(arrays["origin"].tobytes()))
        table = {name: arrays[name] for name in COLUMNS}
        super().__init__(int(self.speed.shape[1]), origin, table, stores)

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
            Where torch.distributed is initialised: load once per machine and attach in its other
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

        def load() -> RamTiles:
            plan = plan_load(stores, split, level, bands, folds, fold, split_seed)
            check_fits(plan)
            arrays = _share(plan.level, Origin.of(plan), read_table(plan))
            with progress_bar(progress, f"loading {plan.name}") as report:
                pixels = arrays["image"], arrays["speed"]
                read_all(list(plan.work()), *pixels, threads=threads, progress=report)
            arrays.freeze()
            return cls(arrays, plan.stores)

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
        known = (speed != 255).sum(axis=(1, 2))
        road = ((speed != 255) & (speed != 0)).sum(axis=(1, 2))
        table = {name: np.zeros((n, *shape), dtype) for name, (dtype, shape) in COLUMNS.items()}
        table["tile"][:] = table["scene"][:] = np.arange(n)
        table["transform"][:] = (1, 0, 0, 0, 1, 0) if transform is None else transform
        table["road_fraction"][:] = road / np.maximum(known, 1)
        table["valid_fraction"][:] = known / (side * side)
        names = [str(i + 1) for i in range(count)] if bands is None else list(bands)
        origin = Origin(names, {}, [], [side], [[str(i) for i in range(n)]], [[crs] * n])
        arrays = _share(side, origin, table)
        arrays["image"][:], arrays["speed"][:] = image, speed
        arrays.freeze()
        return cls(arrays, ())

    def feed(self, request: Request) -> Feed:
        """Return what fills batches from memory."""
        return HostFeed(partial(copy_windows, as_items(self.image), self.speed), request)

    def speed_of(self, tile: int) -> NDArray[np.uint8]:
        """Return the mask of a tile, uint8 (y, x)."""
        mask: NDArray[np.uint8] = self.speed[tile]
        return mask

    def pixels(self, tile: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return copies of image and mask, uint8 (y, x, band) and (y, x)."""
        return self.image[tile].copy(), self.speed[tile].copy()

    @property
    def handle(self) -> Handle:
        """Where other processes find the memory."""
        return self._arrays.handle

    def __reduce__(self) -> tuple[Any, ...]:
        return RamTiles, (self._arrays,)


def _share(side: int, origin: Origin, table: Table) -> SharedArrays:
    """Return new shared memory with everything but pixels in it."""
    told = np.frombuffer(json.dumps(asdict(origin)).encode(), np.uint8)
    n = len(table["tile"])
    layout: dict[str, tuple[Any, tuple[int, ...]]] = {
        "image": ("uint8", (n, side, side, len(origin.bands))),
        "speed": ("uint8", (n, side, side)),
    }
    small = {"origin": told, **table}
    arrays = SharedArrays.create(layout | {k: (v.dtype, v.shape) for k, v in small.items()})
    for name, values in small.items():
        arrays[name][:] = values
    return arrays
