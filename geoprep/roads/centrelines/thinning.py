"""Roads a pixel wide: a raster of any size thinned in blocks whose parts join without seams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import ImageError
from geoprep.executors import Threads
from geoprep.roads.centrelines.cleaning import Sizes, clean
from geoprep.roads.centrelines.kernels import PASSES, thin
from geoprep.roads.centrelines.options import Tracing
from geoprep.roads.centrelines.rasters import RoadRaster

BLOCK: Final = 4096
"""Pixels a side that are thinned at a time, beside their margin: 0.3 GB."""
BEYOND_M: Final = 10.0
"""How far roads are drawn on past the raster's border, so that their thinned ends lie out there."""
_DENSEST: Final = 0.05
"""Metres of road per square metre beyond which a large raster is no map: old towns have less."""
_FEW: Final = 1_500_000
"""Pixels of skeleton that are no burden however dense they lie."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Pixels of road centre lines.

    Attributes
    ----------
    row, col
        int32 (pixel,), in reading order.
    evidence
        uint8 (pixel,): the probability of a road there, 0..255.
    shape
        Height and width of the raster.
    """

    row: NDArray[np.int32]
    col: NDArray[np.int32]
    evidence: NDArray[np.uint8]
    shape: tuple[int, int]


def sizes(raster: RoadRaster, options: Tracing) -> Sizes:
    """Return the options' areas and widths in pixels of a raster."""
    wide, high = raster.gsd_m
    return Sizes(
        area=round(options.min_area_m2 / (wide * high)),
        hole=round(options.min_hole_m2 / (wide * high)),
        # Steps go along rows and columns: across a slanting road they count sqrt(2) as much.
        depth=max(1, ceil(options.max_width_m / 2 * 2**0.5 / min(wide, high))),
    )


def skeleton(
    raster: RoadRaster,
    options: Tracing,
    *,
    block: int = BLOCK,
    workers: int = 1,
    advance: Callable[[int, int], None] | None = None,
) -> Skeleton:
    """Return the centre lines of a raster's roads, one pixel wide, corners touching.

    The same whatever the block: a block is cleaned and thinned with a margin as wide as any pixel's
    influence reaches (`Sizes.margin`, and two steps a round of thinning, of which there are as many
    as roads are deep). Roads reach the raster's border and close rings stay closed.

    Parameters
    ----------
    block
        Pixels a side.
    workers
        Threads; each holds a block.
    advance
        Called with blocks done and in all.

    Raises
    ------
    ImageError
        The raster is noise, or road all over.
    """
    blocks = raster.cover.blocks(block, _beyond(raster) // 2)
    found: list[tuple[NDArray[np.int64], NDArray[np.uint8]]] = []
    road_seen, pixels = 0, 0

    def thinned(at: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.uint8], int]:
        return _thinned(raster, options, *at, block)

    for done, (at, evidence, roads) in enumerate(
        Threads(workers).map_unordered(thinned, blocks), 1
    ):
        found.append((at, evidence))
        road_seen += roads
        pixels += len(at)
        _refuse_noise(raster, pixels, done / len(blocks))
        if advance is not None:
            advance(done, len(blocks))
    at, first = np.unique(np.concatenate([at for at, _ in found]), return_index=True)
    if road_seen and not len(at) and road_seen >= raster.cover.area // 2:
        raise ImageError(
            f"{raster.name}: road all over, nothing of it narrower than "
            f"{options.max_width_m:g} m: is the mask inverted, or its background not 0?"
        )
    row, col = np.divmod(at, raster.shape[1])
    evidence = np.concatenate([evidence for _, evidence in found])[first]
    return Skeleton(row.astype(np.int32), col.astype(np.int32), evidence, raster.shape)


def _refuse_noise(raster: RoadRaster, pixels: int, share: float) -> None:
    """Raise ImageError where there is far more road than on any ground."""
    area = raster.cover.area * share
    if pixels > max(_FEW, _DENSEST * area * min(raster.gsd_m)):
        raise ImageError(
            f"{raster.name}: this is noise, not roads: {pixels / area:.0%} of it are centre lines; "
            "try a higher --threshold"
        )


def _beyond(raster: RoadRaster) -> int:
    return ceil(BEYOND_M / min(raster.gsd_m))


def _thinned(
    raster: RoadRaster, options: Tracing, top: int, left: int, block: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8], int]:
    """Return flat indices and evidence of a block's skeleton, and how many pixels are road."""
    limits = sizes(raster, options)
    beyond = _beyond(raster)
    around = 2 * limits.depth + 16
    spans = [
        _Span.of(start, block, whole, beyond, around, limits.margin)
        for start, whole in zip((top, left), raster.shape, strict=True)
    ]
    down, across = spans
    evidence = raster.evidence(down.read, across.read, down.size, across.size)
    road = evidence >= max(1, round(options.threshold * 255))
    seen = int(np.count_nonzero(road[down.core, across.core]))
    clean(road, limits, (*down.inner, *across.inner))
    lines = np.pad(road[down.thin, across.thin].view(np.uint8), 1)
    thin(lines, PASSES)
    row, col = np.nonzero(lines[1:-1, 1:-1][down.kept, across.kept])
    row, col, near = raster.cover.moved_onto(row + down.first, col + across.first, beyond // 2)
    row, col = row[near], col[near]
    values = evidence[row - down.read, col - across.read]
    return row * raster.shape[1] + col, values, seen


@dataclass(frozen=True, slots=True)
class _Span:
    """One axis of a block: what is read, thinned and kept; slices count from what is read.

    ``kept`` counts from what is thinned, and begins at pixel ``first`` of the raster: half of what
    lies beyond the border is kept, and moved to the border. So a road that runs along the border,
    cut lengthwise, is not lost, and the forked ends of roads that cross it are.
    """

    read: int
    size: int
    inner: tuple[bool, bool]
    core: slice
    thin: slice
    kept: slice
    first: int

    @classmethod
    def of(cls, start: int, block: int, whole: int, beyond: int, around: int, margin: int) -> _Span:
        """Lay out one axis of the raster of ``whole`` pixels."""
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
