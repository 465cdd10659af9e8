"""Centre lines one pixel wide: a raster of any size cleaned and thinned in blocks without seams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import ImageError
from geoprep.executors import Threads
from geoprep.roads.centrelines.kernels import keep_shallow, thinned
from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.graph import connected, ranges
from geoprep.roads.options import Tracing

BLOCK: Final = 5000
"""Maximum side of a block in pixels, without its margin: 0.4 GB."""
BEYOND_M: Final = 10.0
"""Roads are extended this far beyond the raster's border, so that their thinned ends lie outside.
"""
DENSEST: Final = 0.05
"""Metres of road per square metre that no place exceeds: old towns have less."""
_FEW: Final = 1_500_000
"""Number of skeleton pixels that is accepted at any density."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Pixels of road centre lines."""

    row: NDArray[np.int32]  # (pixel,), in reading order
    col: NDArray[np.int32]
    probability: NDArray[np.uint8]  # (pixel,): probability of a road, 0 to 255
    shape: tuple[int, int]  # height and width of the raster in pixels


def skeleton(
    raster: RoadRaster,
    options: Tracing,
    *,
    block: int = BLOCK,
    workers: int = 1,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Skeleton:
    """Return the centre lines of a raster's roads, one pixel wide and 8-connected.

    The result does not depend on the block size: a block is cleaned and thinned with a margin as
    wide as the influence of any pixel reaches (`CleaningLimits.margin`, and two steps per round of
    thinning, of which there are as many as roads are deep). Roads reach the raster's border and
    rings stay closed.
    """
    side = ceil(max(raster.shape) / ceil(max(raster.shape) / block))  # of equal blocks
    blocks = raster.cover.blocks(side, _beyond(raster) // 2)
    found: list[tuple[NDArray[np.int64], NDArray[np.uint8]]] = []
    road_seen, pixels = 0, 0

    in_block = partial(_thinned, raster, options, side)
    for done, (at, probability, roads) in enumerate(
        Threads(workers).map_unordered(in_block, blocks), 1
    ):
        found.append((at, probability))
        road_seen += roads
        pixels += len(at)
        _refuse_noise(raster, pixels, done / len(blocks))
        advance(done, len(blocks))
    at, first = np.unique(np.concatenate([at for at, _ in found]), return_index=True)
    if road_seen and not len(at) and road_seen >= raster.cover.area // 2:
        raise ImageError(
            f"{raster.name}: road everywhere, and no part is narrower than "
            f"{options.max_width_m:g} m. Check that the mask is not inverted and its background "
            "is 0."
        )
    row, col = np.divmod(at, raster.shape[1])
    probability = np.concatenate([probability for _, probability in found])[first]
    return Skeleton(row.astype(np.int32), col.astype(np.int32), probability, raster.shape)


def _refuse_noise(raster: RoadRaster, pixels: int, share: float) -> None:
    """Raise ImageError if there is far more road than anywhere on Earth."""
    area = raster.cover.area * share
    if pixels > max(_FEW, DENSEST * area * min(raster.gsd_m)):
        raise ImageError(
            f"{raster.name}: noise, not roads: {pixels / area:.0%} of its pixels are centre lines. "
            "Try a higher `threshold`."
        )


def _beyond(raster: RoadRaster) -> int:
    return ceil(BEYOND_M / min(raster.gsd_m))


def _thinned(
    raster: RoadRaster, options: Tracing, block: int, corner: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.uint8], int]:
    """Return flat indices and probabilities of a block's skeleton, and its count of road pixels."""
    wide, high = raster.gsd_m
    limits = CleaningLimits(
        area=round(options.min_area_m2 / (wide * high)),
        hole=round(options.min_hole_m2 / (wide * high)),
        # Steps run along rows and columns: across a diagonal road there are sqrt(2) as many.
        depth=max(1, ceil(options.max_width_m / 2 * 2**0.5 / min(wide, high))),
    )
    beyond = _beyond(raster)
    around = 2 * limits.depth + 16
    spans = [
        _Span.of(start, block, whole, beyond, around, limits.margin)
        for start, whole in zip(corner, raster.shape, strict=True)
    ]
    down, across = spans
    probability = raster.probability(down.read, across.read, down.size, across.size)
    threshold, _ = options.thresholds(raster.threshold)
    road = probability >= max(1, round(threshold * 255))
    seen = int(np.count_nonzero(road[down.core, across.core]))
    clean(road, limits, (*down.continues, *across.continues))
    kept = thinned(road[down.thin, across.thin])[down.kept, across.kept]
    row, col = np.divmod(np.flatnonzero(kept), kept.shape[1])
    row, col, near = raster.cover.moved_inside(row + down.first, col + across.first, beyond // 2)
    row, col = row[near], col[near]
    values = probability[row - down.read, col - across.read]
    return row * raster.shape[1] + col, values, seen


@dataclass(frozen=True, slots=True)
class _Span:
    """One axis of a block: the pixels that are read, thinned and kept.

    Slices are relative to the pixels that are read; ``kept`` is relative to those that are thinned
    and begins at pixel ``first`` of the raster. Half of what lies beyond the border is kept and
    moved to the border: so a road along the border, cut lengthwise, is not lost, and the forked
    ends of roads that cross the border are.
    """

    read: int
    size: int
    continues: tuple[bool, bool]
    core: slice
    thin: slice
    kept: slice
    first: int

    @classmethod
    def of(cls, start: int, block: int, whole: int, beyond: int, around: int, margin: int) -> _Span:
        """Return the span of a block along an axis of ``whole`` pixels."""
        stop = min(start + block, whole)
        low, high = -beyond, whole + beyond
        thin = max(start - around, low), min(stop + around, high)
        read = max(thin[0] - margin, low), min(thin[1] + margin, high)
        first = start if start else -(beyond // 2)
        last = stop if stop < whole else whole + beyond // 2
        return cls(
            read[0],
            read[1] - read[0],
            (read[0] > low, read[1] < high),
            slice(start - read[0], stop - read[0]),
            slice(thin[0] - read[0], thin[1] - read[0]),
            slice(first - thin[0], last - thin[0]),
            first,
        )


Mask = NDArray[np.bool_]

_MOST_RUNS: Final = 3_000_000
"""Runs per block. A dense city has a tenth of it; noise has more, and would exhaust memory."""


@dataclass(frozen=True, slots=True)
class CleaningLimits:
    """Sizes in pixels below or above which parts of a mask are removed."""

    area: int  # minimum number of pixels of a patch, and of a hole
    hole: int
    depth: int  # largest number of steps along rows and columns from a road pixel to the background

    @property
    def margin(self) -> int:
        """Number of pixels around a block that its result may depend on."""
        return self.area + self.hole + self.depth


def clean(road: Mask, limits: CleaningLimits, continues: tuple[bool, bool, bool, bool]) -> None:
    """Remove small patches, small holes and the insides of wide areas from a mask, in place."""
    _flip_small(road, True, limits.area, continues)
    _flip_small(road, False, limits.hole, (True, True, True, True))
    if _has_square(road, max(1, limits.depth // 2)):
        keep_shallow(road.view(np.uint8), limits.depth)


def _has_square(road: Mask, side: int) -> bool:
    """Return whether a cell of a grid is all road; cells at the edge may be smaller.

    Around a pixel deeper than two sides there always is one.
    """
    down = np.logical_and.reduceat(road, np.arange(0, road.shape[0], side), axis=0)
    return bool(np.logical_and.reduceat(down, np.arange(0, road.shape[1], side), axis=1).any())


def _flip_small(
    mask: Mask, value: bool, least: int, open_sides: tuple[bool, bool, bool, bool]
) -> None:
    """Flip the patches of one value that have fewer than ``least`` pixels and touch no open side.

    Road is connected across corners, background is not: a line of road separates the background.
    """
    runs = _Runs.of(mask if value else ~mask)
    patch = runs.patches(8 if value else 4)
    small = np.bincount(patch, weights=runs.lengths) < least
    small[patch[runs.touching(mask.shape, open_sides)]] = False
    removed = small[patch]
    mask.reshape(-1)[runs.pixels(removed)] = not value


@dataclass(frozen=True, slots=True)
class _Runs:
    """Stretches of True within rows, in reading order.

    ``starts`` and ``stops`` are flat indices into rows that are one pixel longer than the mask's.
    The extra pixel is False, so that no run continues in the next row.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    stride: int

    @classmethod
    def of(cls, mask: Mask) -> _Runs:
        height, width = mask.shape
        padded = np.zeros(height * (width + 1) + 1, np.bool_)
        padded[1:].reshape(height, width + 1)[:, :width] = mask
        edges = np.flatnonzero(padded[1:] != padded[:-1])
        if len(edges) > 2 * _MOST_RUNS:
            raise ImageError("the mask is noise: it has thousands of specks in every row")
        return cls(edges[::2], edges[1::2], width + 1)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.stops - self.starts

    def patches(self, connectivity: int) -> NDArray[np.int32]:
        """Return the number of the patch that every run belongs to, for 4 or 8 neighbours."""
        corner = int(connectivity == 8)
        below = self.starts + self.stride
        first = np.searchsorted(self.stops, below - corner, "right")
        last = np.searchsorted(self.starts, self.stops + self.stride + corner, "left")
        counts = np.maximum(last - first, 0)
        upper = np.repeat(np.arange(len(counts)), counts)
        return connected(np.stack([upper, ranges(first, counts)]).T, len(counts))[1]

    def touching(
        self, shape: tuple[int, int], sides: tuple[bool, bool, bool, bool]
    ) -> NDArray[np.bool_]:
        """Return which runs touch one of the chosen sides: top, bottom, left, right."""
        row, col = np.divmod(self.starts, self.stride)
        stop = col + self.lengths
        touch = (row == 0, row == shape[0] - 1, col == 0, stop == shape[1])
        chosen = [met for met, side in zip(touch, sides, strict=True) if side]
        return np.logical_or.reduce(chosen) if chosen else np.zeros(len(row), np.bool_)

    def pixels(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the flat indices into the mask of all pixels of the chosen runs."""
        starts = self.starts[chosen]
        return ranges(starts - starts // self.stride, self.lengths[chosen])
