"""What is known of tiles beside their pixels: where they come from and where they lie."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.store import Store
from loaders.batch import Feed, Request
from loaders.memory import amount
from loaders.sampling import FLIP_X, FLIP_Y, TRANSPOSE, Sampling
from loaders.selection import Origin, Table, open_stores


class Tiles(ABC):
    """Tiles that come from one or several stores, wherever their pixels are.

    Parameters
    ----------
    origin
        Where they come from.
    table
        One `ROW` per tile; the transform is that of the finest level.
    stores
        The opened stores where there are any; opened again when they are asked for.

    Attributes
    ----------
    side
        Side of a tile in pixels: its level.
    """

    def __init__(self, origin: Origin, table: Table, stores: Sequence[Store] | None = None) -> None:
        self.origin = origin
        self.side, self.bands, self.left_out = origin.side, tuple(origin.bands), origin.left_out
        self.table = table
        self.road_fraction: NDArray[np.float32] = table["road_fraction"]
        self._stores = None if stores is None else tuple(stores)

    @abstractmethod
    def feed(self, request: Request) -> Feed:
        """Return what gives a loader its batches."""

    @abstractmethod
    def speed_of(self, tile: int) -> NDArray[np.uint8]:
        """Return the mask of a tile on the host, uint8 (y, x)."""

    @abstractmethod
    def pixels(self, tile: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return copies of image and mask on the host, uint8 (y, x, band) and (y, x)."""

    def sampling(self, **options: Any) -> Sampling:  # noqa: ANN401 - its own fields
        """Return what an epoch of these tiles consists of, from what else `Sampling` is told."""
        return Sampling(len(self), self.side, **options)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile and its mask."""
        return self.side * self.side * (len(self.bands) + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all tiles and masks."""
        return len(self) * self.tile_bytes

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores the tiles come from."""
        if self._stores is None:
            self._stores = open_stores(self.origin.stores) if self.origin.stores else ()
        return self._stores

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
    def fingerprint(self) -> str:
        """Number and checksum of the tiles: the same for the same tiles in the same order."""
        parts = (self.table[name].tobytes() for name in ("store", "tile", "transform"))
        return f"{len(self)}x{self.side}x{len(self.bands)}-{zlib.crc32(b''.join(parts)):08x}"

    def scene(self, tile: int) -> str:
        """Return the id of a tile's scene."""
        store, scene = self._scene_of(tile)
        return self.origin.scenes[store][scene]

    def crs(self, tile: int) -> str:
        """Return the CRS of a tile's affine."""
        store, scene = self._scene_of(tile)
        return self.origin.crs[store][scene]

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
        scale = self.origin.finest[self._scene_of(tile)[0]] / self.side
        level = (a * scale, b * scale, c, d * scale, e * scale, f)
        return window_affine(level, *window, self.side if side is None else side)

    def _scene_of(self, tile: int) -> tuple[int, int]:
        """Return the numbers of a tile's store, and of its scene there."""
        return int(self.table["store"][tile]), int(self.table["scene"][tile])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stores": None}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} tiles of {self.side} x {self.side} x "
            f"{len(self.bands)}, {self._held()}, left out {self.left_out or 'none'})"
        )

    def _held(self) -> str:
        """Return how much there is and where, for people."""
        return amount(self.nbytes)


def window_affine(
    affine: tuple[float, ...], y: int, x: int, op: int, side: int
) -> tuple[float, float, float, float, float, float]:
    """Return the affine of a window under a symmetry, from that of its tile.

    Parameters
    ----------
    affine
        ``a b c d e f`` of rasterio, pixel corner (column, row) of the tile -> CRS.
    y, x, op
        The window.
    side
        Its side in pixels.

    Returns
    -------
    tuple of float
        ``a b c d e f``, pixel corner of the window as it was handed out -> CRS.
    """
    # From a corner (column, row) as it was handed out to one of the tile.
    corner = np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])
    if op & TRANSPOSE:
        corner = corner @ [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    if op & FLIP_Y:
        corner = corner @ [[1, 0, 0], [0, -1, side], [0, 0, 1]]
    if op & FLIP_X:
        corner = corner @ [[-1, 0, side], [0, 1, 0], [0, 0, 1]]
    a, b, c, d, e, f = (np.reshape(affine, (2, 3)) @ corner).ravel().tolist()
    return a, b, c, d, e, f
