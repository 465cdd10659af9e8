"""What is known of tiles beside their pixels: where they come from and where they lie."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError, UsageError
from geoprep.store import Store
from loaders.gather import window_affine
from loaders.loading import TABLE_COLUMNS, Plan


def plan_table(plan: Plan) -> dict[str, NDArray[Any]]:
    """Return the rows of a plan's tiles in the tables of their stores, `TABLE_COLUMNS`.

    Raises
    ------
    StoreError
        A table is damaged.
    """
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in TABLE_COLUMNS}
    for number, (store, selection) in enumerate(zip(plan.stores, plan.selections, strict=True)):
        if store.tiles.transform.shape[1:] != (6,):
            raise StoreError(
                f"{store.location}/transform is damaged: six numbers a tile are expected"
            )
        parts["store"].append(np.full(len(selection.tiles), number))
        parts["tile"].append(selection.tiles)
        for name in TABLE_COLUMNS.keys() - {"store", "tile"}:
            parts[name].append(getattr(store.tiles, name)[selection.tiles])
    return {
        name: np.concatenate(columns).astype(TABLE_COLUMNS[name][0])
        for name, columns in parts.items()
    }


class TileFacts(ABC):
    """Tiles that come from one or several stores, as far as their table goes.

    Attributes
    ----------
    side
        Side of a tile in pixels: its level.
    bands
        Names of the bands.
    left_out
        Tiles of the split that cannot be used, by reason: failed, skipped, unlabelled, empty.
    table
        One row a tile: store, tile, scene, row, col, transform (finest level), fractions.
    """

    side: int
    bands: tuple[str, ...]
    left_out: dict[str, int]
    table: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.table["tile"])

    @property
    @abstractmethod
    def stores(self) -> tuple[Store, ...]:
        """The stores the tiles come from."""

    @property
    def store(self) -> Store:
        """The store the tiles come from, where there is exactly one."""
        if len(self.stores) != 1:
            raise UsageError(
                f"these tiles come from {len(self.stores)} stores: use `tiles.stores`, which "
                "DevicePrep.from_store takes as it is"
            )
        return self.stores[0]

    @property
    def road_fraction(self) -> NDArray[np.float32]:
        """float32 (tile,), share of the labelled pixels that are road."""
        return self.table["road_fraction"]

    @property
    def fingerprint(self) -> str:
        """Number and checksum of the tiles: the same for the same tiles in the same order."""
        parts = (self.table[name].tobytes() for name in ("store", "tile", "transform"))
        return f"{len(self)}x{self.side}x{len(self.bands)}-{zlib.crc32(b''.join(parts)):08x}"

    def scene(self, tile: int) -> str:
        """Return the id of a tile's scene."""
        return self._scene_column("id", *self._scene_of(tile))

    def crs(self, tile: int) -> str:
        """Return the CRS of a tile's affine."""
        return self._scene_column("crs", *self._scene_of(tile))

    def affine(
        self, tile: int, window: tuple[int, int, int] = (0, 0, 0), side: int | None = None
    ) -> tuple[float, float, float, float, float, float]:
        """Return the affine of a tile, or of a window of it, at the level at hand.

        Parameters
        ----------
        tile
            Which.
        window
            Row, column and symmetry, a row of `Batch.where`.
        side
            Side of the window in pixels; the whole tile by default.

        Returns
        -------
        tuple of float
            ``a b c d e f`` of rasterio, pixel corner (column, row) -> CRS.
        """
        a, b, c, d, e, f = self.table["transform"][tile].tolist()
        scale = self._finest_side(self._scene_of(tile)[0]) / self.side
        level = (a * scale, b * scale, c, d * scale, e * scale, f)
        return window_affine(level, *window, self.side if side is None else side)

    def _scene_of(self, tile: int) -> tuple[int, int]:
        """Return the numbers of a tile's store, and of its scene there."""
        return int(self.table["store"][tile]), int(self.table["scene"][tile])

    @abstractmethod
    def _scene_column(self, name: Literal["id", "crs"], store: int, scene: int) -> str:
        """Return what a store's scene table says of a scene."""

    @abstractmethod
    def _finest_side(self, store: int) -> int:
        """Return the side of a store's tiles at its finest level, in pixels."""
