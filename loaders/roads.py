"""Where roads are in the tiles, coarsely: enough to choose windows and tiles without pixels.

A summed table of 16-pixel cells costs less than two per cent of the masks, and lets a batch of
windows be judged without touching a pixel, wherever the pixels live.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.speed import BIN_COUNT, BIN_TABLE, NO_DATA

CELL = 16
"""Side of a cell in pixels."""

WeightRule = Literal["road", "speed"]

_FLOOR = 0.1
"""Least weight of a tile as a share of the mean: tiles without roads are rare, never absent."""


class Masks(Protocol):
    """Anything that has the speed masks of tiles."""

    @property
    def side(self) -> int:
        """Side of a tile in pixels."""

    def __len__(self) -> int: ...

    def speed_of(self, tile: int) -> NDArray[np.uint8]:
        """Return the mask of a tile, uint8 (y, x)."""


class RoadCells:
    """Road pixels of every tile, summed from its upper left corner over cells.

    Parameters
    ----------
    sums
        int32 (tile, cells + 1, cells + 1), road pixels above and left of a cell's corner.
    side
        Side of a tile in pixels.
    """

    def __init__(self, sums: NDArray[np.int32], side: int) -> None:
        self.sums = sums
        self.side = side

    @classmethod
    def count(cls, masks: Masks, threads: int = 2) -> RoadCells:
        """Count the roads of all tiles, in one pass over their masks."""
        edges = np.arange(0, masks.side, CELL)
        cells = len(edges)
        sums = np.zeros((len(masks), cells + 1, cells + 1), np.int32)

        def one(tile: int) -> None:
            speed = masks.speed_of(tile)
            road = (speed - np.uint8(1)) < np.uint8(NO_DATA - 1)  # wraps: 0 and 255 come out false
            rows = np.add.reduceat(road, edges, axis=0, dtype=np.int32)
            counts = np.add.reduceat(rows, edges, axis=1, dtype=np.int32)
            np.cumsum(np.cumsum(counts, axis=0), axis=1, out=sums[tile, 1:, 1:])

        with ThreadPoolExecutor(threads, "loaders-roads") as pool:
            list(pool.map(one, range(len(masks))))
        return cls(sums, masks.side)

    def total(self) -> NDArray[np.int32]:
        """Return the road pixels of every tile, int32 (tile,)."""
        return self.sums[:, -1, -1]

    def fraction(
        self, tile: NDArray[np.int64], y: NDArray[np.int64], x: NDArray[np.int64], crop: int
    ) -> NDArray[np.float64]:
        """Return the least share of road in windows: cells that lie wholly inside are counted.

        Parameters
        ----------
        tile, y, x
            Tile and upper left corner of the windows; shapes that broadcast.
        crop
            Side of the windows in pixels.
        """
        top, left = (-(-corner // CELL) for corner in (y, x))
        # The last cell of a tile may be narrower; it is inside where the window ends with the tile.
        bottom, right = (
            np.where(corner + crop == self.side, self.sums.shape[1] - 1, (corner + crop) // CELL)
            for corner in (y, x)
        )
        bottom, right = np.maximum(bottom, top), np.maximum(right, left)
        sums = self.sums
        road = (
            sums[tile, bottom, right]
            - sums[tile, top, right]
            - sums[tile, bottom, left]
            + sums[tile, top, left]
        )
        return road / float(crop * crop)


def tile_weights(
    rule: WeightRule | Sequence[float] | NDArray[np.float64],
    road_fraction: NDArray[np.float32],
    masks: Masks,
) -> NDArray[np.float64]:
    """Return how often each tile is drawn, float64 (tile,).

    Parameters
    ----------
    rule
        ``road``: in proportion to the share of road. ``speed``: each of the ten-mph bins that
        occur is met as often as any other, so that rare fast roads are not. Or one figure a tile.
    road_fraction
        float32 (tile,), share of road of every tile.
    masks
        The tiles.
    """
    if isinstance(rule, str):
        if rule == "road":
            weights = road_fraction.astype(np.float64)
        elif rule == "speed":
            weights = _speed_weights(masks)
        else:
            raise UsageError(f"weights={rule!r} is not 'road', 'speed' or one figure a tile")
        return np.maximum(weights, _FLOOR * weights.mean()) if weights.any() else weights + 1.0
    return np.asarray(rule, np.float64)


def _speed_weights(masks: Masks) -> NDArray[np.float64]:
    """Return the sum over bins of a tile's share of all pixels of that bin."""
    pixels = np.zeros((len(masks), BIN_COUNT + 1))
    for tile in range(len(masks)):
        counts = np.bincount(masks.speed_of(tile).ravel(), minlength=256)
        pixels[tile] = np.bincount(BIN_TABLE, weights=counts, minlength=BIN_COUNT + 1)
    roads = pixels[:, 1:]
    totals = roads.sum(axis=0)
    weights: NDArray[np.float64] = (roads / np.maximum(totals, 1)).sum(axis=1)
    return weights
