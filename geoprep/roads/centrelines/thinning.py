"""Centre lines one pixel wide: a raster of any size cleaned and thinned in blocks without seams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import ImageError
from geoprep.executors.threads import Threads
from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.options import Tracing

BLOCK: Final = 2500
"""Maximum side of a block in pixels, without its margin: 0.2 GB."""
BEYOND_M: Final = 10.0
"""Roads are extended this far beyond the raster's border, so that their thinned ends lie outside.
"""
_CROSSING: Final = 0.4
"""Area of the deep middle of a crossing, in squares as wide as the widest road: two such roads."""
_RAGGED_M: Final = 1.5
"""Roads of probabilities are wider than roads by this much on either side."""
DENSEST: Final = 0.05
"""Metres of road per square metre that no place exceeds: old towns have less."""
_FEW: Final = 1_500_000
"""Number of skeleton pixels that is accepted at any density."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Cells of road centre lines: a cell is one pixel, or several of a raster of fine pixels."""

    row: NDArray[np.int32]  # (cell,), in reading order
    col: NDArray[np.int32]
    # (cell,): whether the connected component of road pixels reaches the high threshold
    is_certain: NDArray[np.bool_]
    # float32 (cell,): metres along rows and columns to the background: half a road's width or more
    reach_m: NDArray[np.float32]
    shape: tuple[int, int]  # height and width of the raster in cells
    cell_m: tuple[float, float]  # width and height of a cell in metres


def skeleton(
    raster: RoadRaster,
    options: Tracing,
    *,
    block: int = BLOCK,
    workers: int = 1,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Skeleton:
    """Return the centre lines of a raster's roads, one cell wide and 8-connected.

    1. The raster is read in blocks. A cell is road if any of its pixels is. A block is cleaned and
       thinned with a margin as wide as the influence of any cell reaches, so that the result does
       not depend on the block size.
    2. Far more road than anywhere on Earth is noise, and road everywhere an inverted mask: both are
       refused.
    3. Roads reach the raster's border: pixels outside repeat the nearest one inside, and centre
       lines there are moved to the border.
    """
    # 1
    cell = raster.cell
    side = cell * ceil(max(raster.shape) / ceil(max(raster.shape) / block) / cell)  # equal blocks
    corners = raster.cover.blocks(side, _kept_beyond(raster))
    places: list[NDArray[np.int64]] = []
    certain: list[NDArray[np.bool_]] = []
    reaches: list[NDArray[np.float32]] = []
    road_cells = line_cells = 0
    in_block = partial(_thinned_block, raster, options, side)
    blocks = Threads(workers).map_unordered(in_block, corners)
    for done, (place, is_certain, reach_m, roads) in enumerate(blocks, 1):
        places.append(place)
        certain.append(is_certain)
        reaches.append(reach_m)
        road_cells += roads
        line_cells += len(place)
        # 2
        area = raster.cover.area / cell**2 * done / len(corners)
        if line_cells > max(_FEW, DENSEST * area * cell * min(raster.gsd_m)):
            raise ImageError(
                f"{raster.name}: noise, not roads: {line_cells / area:.0%} of its pixels are "
                "centre lines. Try a higher `threshold`."
            )
        advance(done, len(corners))
    if road_cells and not line_cells and road_cells >= raster.cover.area / cell**2 // 2:
        raise ImageError(
            f"{raster.name}: road everywhere, and no part is narrower than "
            f"{options.max_width_m:g} m. Check that the mask is not inverted and its background "
            "is 0."
        )
    # 3: several pixels beyond a border may have moved to the same place
    place, first = np.unique(np.concatenate(places), return_index=True)
    height, width = (ceil(side / cell) for side in raster.shape)
    row, col = np.divmod(place, width)
    is_certain, reach_m = np.concatenate(certain)[first], np.concatenate(reaches)[first]
    cell_m = cell * raster.gsd_m[0], cell * raster.gsd_m[1]
    return Skeleton(
        row.astype(np.int32), col.astype(np.int32), is_certain, reach_m, (height, width), cell_m
    )


def _beyond(raster: RoadRaster) -> int:
    """Return the number of cells that roads are extended by."""
    return ceil(BEYOND_M / (raster.cell * min(raster.gsd_m)))


def _kept_beyond(raster: RoadRaster) -> int:
    """Return how many pixels beyond the border the middle of a cell that is kept may be."""
    return _beyond(raster) // 2 * raster.cell + raster.cell // 2


def _thinned_block(
    raster: RoadRaster, options: Tracing, block: int, corner: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float32], int]:
    """Return flat indices, certainty and reach of a block's skeleton, and its count of road cells.

    Certainty is that of components within the block; the skeleton links those of several blocks.
    """
    from scipy.ndimage import distance_transform_cdt, label

    cell = raster.cell
    wide, high = (cell * gsd for gsd in raster.gsd_m)
    limits = CleaningLimits(
        area=round(options.min_area_m2 / (wide * high)),
        hole=round(options.min_hole_m2 / (wide * high)),
        # Steps run along rows and columns: across a diagonal road there are sqrt(2) as many.
        depth=max(1, ceil((options.max_width_m / 2 + _RAGGED_M) * 2**0.5 / min(wide, high))),
        crossing=round(_CROSSING * options.max_width_m**2 / (wide * high)),
    )
    down, across = (
        _Span.of(start // cell, block // cell, ceil(whole / cell), _beyond(raster), limits)
        for start, whole in zip(corner, raster.shape, strict=True)
    )
    top, left = down.read * cell, across.read * cell
    probability = _in_cells(
        raster.probability(top, left, down.size * cell, across.size * cell), cell
    )
    threshold, certain = options.thresholds(raster.threshold)
    road = probability >= max(1, round(threshold * 255))
    road_cells = int(np.count_nonzero(road[down.core, across.core]))
    road = cleaned(road, limits)[down.thin, across.thin]
    steps = distance_transform_cdt(road, metric="taxicab")[down.kept, across.kept]
    lines = centre_lines(road)[down.kept, across.kept]
    is_certain = np.ones(np.count_nonzero(lines), np.bool_)
    if raster.kind == "probability":  # masks are certain
        component, _ = label(road, np.ones((3, 3)))
        strong = probability[down.thin, across.thin] >= round(certain * 255)
        reached = np.unique(component[road & strong])
        is_certain = np.isin(component[down.kept, across.kept][lines], reached)
    reach_m = (steps[lines] * min(wide, high)).astype(np.float32)
    row, col = np.argwhere(lines).T * cell + cell // 2
    row, col = row + cell * down.first, col + cell * across.first
    row, col, near = raster.cover.moved_inside(row, col, _kept_beyond(raster))
    row, col = row[near], col[near]
    place = row // cell * ceil(raster.shape[1] / cell) + col // cell
    return place, is_certain[near], reach_m[near], road_cells


def _in_cells(probability: NDArray[np.uint8], cell: int) -> NDArray[np.uint8]:
    """Return the highest probability in cells of several pixels, uint8 (y, x)."""
    of_cell = (probability[row::cell, col::cell] for row, col in product(range(cell), repeat=2))
    return reduce(np.maximum, of_cell)


def centre_lines(road: Mask) -> Mask:
    """Return the centre lines of a mask, bool (y, x), one pixel wide.

    Of a diagonal two pixels wide scikit-image's `skeletonize` removes half of the length if it
    leads down to the right, and nothing if it leads down to the left (version 0.26). The parts of
    such narrow roads that it lost come from the mirror image.

    Examples
    --------
    >>> diagonal = np.eye(30, dtype=bool) | np.eye(30, k=1, dtype=bool)
    >>> [int(centre_lines(mask).sum()) > 25 for mask in (diagonal, diagonal[:, ::-1])]
    [True, True]
    """
    from skimage import morphology

    skeletonize: Callable[[Mask], Mask] = morphology.skeletonize
    lines = skeletonize(road)
    narrow = road & ~grown(~grown(~road))  # no part of 3 x 3 pixels of road
    lost = narrow & ~grown(lines, 2)
    if lost.any():
        mirrored = skeletonize((road & grown(lost, 8))[:, ::-1])[:, ::-1]
        lines = skeletonize(lines | mirrored & grown(lost, 2))
    return lines


def grown(mask: Mask, pixels: int = 1) -> Mask:
    """Return a mask, bool (y, x), widened by so many pixels to all sides."""
    for _ in range(pixels):
        wide = mask.copy()
        wide[1:] |= mask[:-1]
        wide[:-1] |= mask[1:]
        mask = wide.copy()
        mask[:, 1:] |= wide[:, :-1]
        mask[:, :-1] |= wide[:, 1:]
    return mask


@dataclass(frozen=True, slots=True)
class CleaningLimits:
    """Sizes in pixels below or above which parts of a mask are removed."""

    area: int  # minimum number of pixels of a patch, and of a hole
    hole: int
    depth: int  # largest number of steps along rows and columns from a road pixel to the background
    crossing: int = 0  # deeper parts of fewer pixels are the middle of a crossing


def cleaned(road: Mask, limits: CleaningLimits) -> Mask:
    """Return a mask of roads, bool (y, x), without what would give false centre lines.

    1. Patches of fewer pixels than ``limits.area`` go. Road is connected across corners.
    2. Holes of fewer pixels than ``limits.hole`` are filled. They are not connected across corners,
       and do not touch the edge of the array.
    3. Pixels deeper in a wide area than ``limits.depth`` go: roads are connected along its edge.
       Those in the middle of a crossing stay: roads meet there.

    Examples
    --------
    >>> road = np.array([[1, 0, 0, 0, 0], [0, 0, 1, 1, 1], [0, 0, 1, 0, 1], [0, 0, 1, 1, 1]], bool)
    >>> cleaned(road, CleaningLimits(area=2, hole=2, depth=5)).astype(int)
    array([[0, 0, 0, 0, 0],
           [0, 0, 1, 1, 1],
           [0, 0, 1, 1, 1],
           [0, 0, 1, 1, 1]])
    """
    from scipy.ndimage import distance_transform_cdt
    from skimage.morphology import remove_small_holes, remove_small_objects

    # 1
    road = remove_small_objects(road, max_size=max(0, limits.area - 1), connectivity=2)
    # 2: a frame connects the background at the edge
    road = np.pad(road, 1)
    remove_small_holes(road, max_size=max(0, limits.hole - 1), connectivity=1, out=road)
    road = road[1:-1, 1:-1]
    # 3: without any background the distances are -1
    steps = distance_transform_cdt(road, metric="taxicab")
    deep = (steps > limits.depth) | (steps < 0)
    deep = remove_small_objects(deep, max_size=max(0, limits.crossing - 1), connectivity=2)
    shallow: Mask = road & ~deep
    return shallow


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
    core: slice
    thin: slice
    kept: slice
    first: int

    @classmethod
    def of(cls, start: int, block: int, whole: int, beyond: int, limits: CleaningLimits) -> _Span:
        """Return the span of a block along an axis of ``whole`` pixels.

        A round of thinning reads pixels two steps away, and there are as many rounds as roads are
        deep. The pixels that are thinned depend on pixels as far away as any limit reaches.
        """
        stop = min(start + block, whole)
        low, high = -beyond, whole + beyond
        around, margin = 2 * limits.depth + 16, limits.area + limits.hole + limits.depth
        thin = max(start - around, low), min(stop + around, high)
        read = max(thin[0] - margin, low), min(thin[1] + margin, high)
        first = start if start else -(beyond // 2)
        last = stop if stop < whole else whole + beyond // 2
        return cls(
            read[0],
            read[1] - read[0],
            slice(start - read[0], stop - read[0]),
            slice(thin[0] - read[0], thin[1] - read[0]),
            slice(first - thin[0], last - thin[0]),
            first,
        )
