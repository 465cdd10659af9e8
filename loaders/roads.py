"""Where roads are in the tiles, coarsely: enough to choose windows and tiles without pixels.

A summed table of 16-pixel cells costs less than two per cent of the masks, and lets a batch of
windows be judged without touching a pixel, wherever the pixels live.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.speed import BIN_COUNT, BIN_TABLE, NODATA
from loaders.ahead import Ahead

CELL = 16
"""Side of a cell in pixels."""

WeightRule = Literal["road", "speed"]

_ROUNDS, _CLIPS = 200, 8
"""Adjustments of the factors of bins; clips that settle."""

_LEAST = 1e-9
"""Least factor of a bin, so that one that cannot be balanced stays a number."""

_FLOOR = 0.1
"""Least weight of a tile as a share of the mean: tiles without roads are rare, never absent."""

_CEILING = 5.0
"""Largest weight by ``speed`` as a share of the mean: the one fast road of a store is not learnt
by heart.
"""


class Masks(Protocol):
    """Anything that has the speed masks of tiles.

    Attributes
    ----------
    side
        Side of a tile in pixels.
    road_fraction
        float32 (tile,), share of road of every tile.
    """

    side: int
    road_fraction: NDArray[np.float32]

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
            road = (speed - np.uint8(1)) < np.uint8(NODATA - 1)  # wraps: 0 and 255 come out false
            rows = np.add.reduceat(road, edges, axis=0, dtype=np.int32)
            counts = np.add.reduceat(rows, edges, axis=1, dtype=np.int32)
            np.cumsum(np.cumsum(counts, axis=0), axis=1, out=sums[tile, 1:, 1:])

        for _ in Ahead(one, range(len(masks)), threads=threads, ahead=4 * threads):
            pass
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
    masks: Masks,
    chosen: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Return how often each tile is drawn, in proportion, float64 (tile,).

    Parameters
    ----------
    rule
        ``road``: in proportion to the share of road. ``speed``: so that the pixels of the ten-mph
        bins that occur come as equally often as the tiles allow; a tile brings all its roads
        along, so bins that never come apart keep their proportion, and none is drawn more than
        about five times as often as the mean. Or one figure per tile. By both rules a tile has
        at least a tenth of the mean.
    masks
        The tiles.
    chosen
        int64, the tiles to return weights of; None for all.

    Raises
    ------
    UsageError
        There is no such rule, or the figures are no weights.
    """
    if not isinstance(rule, str):
        weights = np.asarray(rule, np.float64)
    elif rule == "road":
        weights = _floored(masks.road_fraction.astype(np.float64))
    elif rule == "speed":
        weights = _balanced(_bin_pixels(masks))
    else:
        raise UsageError(f"weights={rule!r} is not 'road', 'speed' or one figure per tile")
    if weights.shape != (len(masks),):
        raise UsageError(f"weights have shape {weights.shape}; ({len(masks)},) is needed")
    weights = weights if chosen is None else weights[chosen]
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
        raise UsageError("weights must be finite, not negative, and not all zero")
    return weights


def _floored(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(weights, _FLOOR * weights.mean()) if weights.any() else weights + 1.0


def _bin_pixels(masks: Masks, threads: int = 2) -> NDArray[np.float64]:
    """Return the pixels of every ten-mph bin, float64 (tile, bin), in one pass over the masks."""

    def count(tile: int) -> NDArray[np.float64]:
        counts = np.bincount(masks.speed_of(tile).ravel(), minlength=256)
        found = np.bincount(BIN_TABLE, weights=counts, minlength=BIN_COUNT + 1)
        return found[1:].astype(np.float64)

    found = Ahead(count, range(len(masks)), threads=threads, ahead=4 * threads)
    return np.stack(list(found))


def _balanced(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return weights of tiles under which bins come equally often, as nearly as can be.

    A tile weighs the sum over bins of its share of the bin's pixels times a factor of the bin;
    factors are raised where a bin comes too rarely and lowered where it comes too often, as
    iterative proportional fitting does (Deming and Stephan, 1940), until nothing improves.
    """
    pixels = pixels[:, pixels.any(axis=0)]
    shares = pixels / pixels.sum(axis=0)
    factors, least = np.ones(shares.shape[1]), np.inf
    best = _floored(shares.sum(axis=1))
    for _ in range(_ROUNDS if pixels.size else 0):
        weights = shares @ factors
        for _ in range(_CLIPS):  # the mean moves with every clip
            weights = np.clip(weights / weights.mean(), _FLOOR, _CEILING)
        met = weights @ pixels / (weights @ pixels).mean()
        if (uneven := np.abs(met - 1).max()) < least:
            best, least = weights, uneven
        factors = np.clip(factors / met, _LEAST, 1 / _LEAST)
        factors /= factors.mean()
    return best


def tiles_with_road(
    masks: Masks, min_road: float, crop: int | None
) -> tuple[NDArray[np.int64] | None, RoadCells | None]:
    """Return the tiles that can yield windows with enough road, and where their roads are.

    Parameters
    ----------
    masks
        The tiles.
    min_road
        Least share of road in a window; 0 asks for none.
    crop
        Side of the windows in pixels; None for whole tiles, whose cells nobody needs.

    Returns
    -------
    tuple
        int64, ascending, and the cells; None for all tiles, and where there are no windows.

    Raises
    ------
    UsageError
        No tile has enough, or windows are too small to tell.
    """
    if min_road <= 0:
        return None, None
    if crop is None:
        cells, enough = None, masks.road_fraction >= min_road
    elif crop < 2 * CELL:
        raise UsageError(f"min_road needs windows of at least {2 * CELL} pixels, not crop={crop}")
    else:
        cells = RoadCells.count(masks)
        enough = cells.total() >= min_road * crop * crop
    if not enough.any():
        raise UsageError(f"no tile has enough road for min_road={min_road}: take a smaller one")
    return np.flatnonzero(enough), cells
