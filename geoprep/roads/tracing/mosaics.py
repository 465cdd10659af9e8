"""Rasters of one grid of pixels that touch, made one: its roads need no joining."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Final

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray

from geoprep.grid import Grid
from geoprep.roads.centrelines import RoadRaster
from geoprep.roads.centrelines.pixels import MosaicPixels
from geoprep.roads.centrelines.thinning import BEYOND_M

_RIM_M: Final = 12.0
"""So near to its border a raster may miss roads: another that saw more counts."""

_STRETCH: Final = 1e-6
"""Pixels of one grid may differ by so much of their size."""

Ints = NDArray[np.int64]


def mosaics(rasters: Sequence[RoadRaster]) -> list[list[int]]:
    """Return which rasters touch or overlap, and have pixels of one size and one kind.

    Returns
    -------
    list of list of int
        Numbers of rasters; in order of the first of each.
    """
    grids: list[list[int]] = []
    for number, raster in enumerate(rasters):
        for grid in grids:
            if _on_one_grid(rasters[grid[0]], raster):
                grid.append(number)
                break
        else:
            grids.append([number])
    parts = [[grid[i] for i in part] for grid in grids for part in _touching(rasters, grid)]
    return sorted(parts)


def _on_one_grid(one: RoadRaster, other: RoadRaster) -> bool:
    """Return whether the pixels of two rasters are the same, of the same ground and meaning."""
    a, b = one.place, other.place
    if a is None or b is None or a.crs != b.crs or not _mean_the_same(one, other):
        return False
    size, size_b = (np.array(grid.transform[:6])[[0, 1, 3, 4]] for grid in (a, b))
    return np.allclose(size, size_b, rtol=0, atol=_STRETCH * np.abs(size).max())


def _mean_the_same(one: RoadRaster, other: RoadRaster) -> bool:
    names = ["kind", "road", "classes", "speed", "nodata"]
    names += ["one"] if one.kind == "probability" else []
    a, b = (np.array([str(getattr(raster, name)) for name in names]) for raster in (one, other))
    return bool((a == b).all())  # as words: no data may be NaN


def _boxes(rasters: Sequence[RoadRaster]) -> Ints:
    """Return top, left, bottom and right of rasters on the first one's grid."""
    grids = [raster.place for raster in rasters if raster.place is not None]
    to_pixels, boxes = ~grids[0].transform, []
    for grid in grids:
        left, top = map(round, to_pixels * (grid.transform.c, grid.transform.f))
        boxes.append((top, left, top + grid.height, left + grid.width))
    return np.array(boxes, np.int64)


def _reach(raster: RoadRaster) -> int:
    return ceil(BEYOND_M / min(raster.gsd_m))


def _touching(rasters: Sequence[RoadRaster], grid: Sequence[int]) -> list[list[int]]:
    """Return the parts of one grid's rasters that hang together."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    members = [rasters[number] for number in grid]
    top, left, bottom, right = _boxes(members).astype(np.float64).T
    outlines = shapely.box(left, top, right, bottom)
    near = shapely.STRtree(outlines).query(outlines, "dwithin", distance=_reach(members[0]))
    shape = (len(members), len(members))
    links = coo_array((np.ones(near.shape[1], np.int8), near), shape=shape)
    count, part = connected_components(links, directed=False)
    return [np.flatnonzero(part == number).tolist() for number in range(count)]


def mosaic(rasters: Sequence[RoadRaster]) -> RoadRaster:
    """Return rasters as one raster on the first one's grid; others lie up to half a pixel off.

    Of ground that several cover, the first counts; within 12 m of its border the one that reaches
    farther around the place.
    """
    first = rasters[0]
    if len(rasters) == 1:
        return first
    boxes = _boxes(rasters)
    top, left = boxes[:, :2].min(axis=0).tolist()
    boxes -= [top, left, top, left]
    pixels = MosaicPixels(
        [(r.pixels, tuple(box)) for r, box in zip(rasters, boxes.tolist(), strict=True)],
        nodata=first.nodata,
        rim=ceil(_RIM_M / min(first.gsd_m)),
        reach=_reach(first),
    )
    assert first.place is not None  # on one grid
    place = Grid(
        *pixels.shape, first.place.transform * Affine.translation(left, top), first.place.crs
    )
    name = f"{first.name} and {len(rasters) - 1} more"
    return replace(first, name=name, pixels=pixels, gsd_m=place.gsd_m(), place=place)
