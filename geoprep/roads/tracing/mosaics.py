"""Touching rasters on one pixel grid, read as one raster: their roads need no joining."""

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
from geoprep.roads.centrelines.bands import MosaicBands
from geoprep.roads.centrelines.thinning import BEYOND_M
from geoprep.roads.graph import connected

_RIM_M: Final = 12.0
"""A raster may miss roads this close to its border: one that reaches farther is used instead."""

_STRETCH: Final = 1e-6
"""Pixel sizes of one grid may differ by this share."""

Ints = NDArray[np.int64]


def mosaics(rasters: Sequence[RoadRaster]) -> list[list[int]]:
    """Return the groups of rasters that touch or overlap and share pixel size, CRS and kind.

    Returns
    -------
    list of list of int
        Indices of rasters, in order of the first of each group.
    """
    grids: list[list[int]] = []
    for number, raster in enumerate(rasters):
        for grid in grids:
            if _on_one_grid(rasters[grid[0]], raster):
                grid.append(number)
                break
        else:
            grids.append([number])
    groups = [[grid[i] for i in group] for grid in grids for group in _touching(rasters, grid)]
    return sorted(groups)


def _on_one_grid(one: RoadRaster, other: RoadRaster) -> bool:
    """Return whether two rasters have the same CRS, pixel size and meaning of values."""
    a, b = one.grid, other.grid
    if a is None or b is None or a.crs != b.crs or not _mean_the_same(one, other):
        return False
    size, size_b = (np.array(grid.transform[:6])[[0, 1, 3, 4]] for grid in (a, b))
    return np.allclose(size, size_b, rtol=0, atol=_STRETCH * np.abs(size).max())


def _mean_the_same(one: RoadRaster, other: RoadRaster) -> bool:
    names = ["kind", "road_bands", "speed_classes", "speed_band", "mph_of_value", "nodata"]
    names += ["full_value"] if one.kind == "probability" else []
    # As texts, because nodata may be NaN.
    return all(str(getattr(one, name)) == str(getattr(other, name)) for name in names)


def _boxes(rasters: Sequence[RoadRaster]) -> Ints:
    """Return top, left, bottom and right of rasters in pixels of the first one's grid."""
    grids = [raster.grid for raster in rasters if raster.grid is not None]
    to_pixels, boxes = ~grids[0].transform, []
    for grid in grids:
        left, top = map(round, to_pixels * (grid.transform.c, grid.transform.f))
        boxes.append((top, left, top + grid.height, left + grid.width))
    return np.array(boxes, np.int64)


def _reach(raster: RoadRaster) -> int:
    return ceil(BEYOND_M / min(raster.gsd_m))


def _touching(rasters: Sequence[RoadRaster], grid: Sequence[int]) -> list[list[int]]:
    """Return the groups of touching rasters among those of one grid, as indices into ``grid``."""
    members = [rasters[number] for number in grid]
    top, left, bottom, right = _boxes(members).astype(np.float64).T
    outlines = shapely.box(left, top, right, bottom)
    near = shapely.STRtree(outlines).query(outlines, "dwithin", distance=_reach(members[0]))
    count, group = connected(near.T, len(members))
    return [np.flatnonzero(group == number).tolist() for number in range(count)]


def mosaic(rasters: Sequence[RoadRaster]) -> RoadRaster:
    """Return rasters as one raster on the first one's grid; others move by up to half a pixel.

    Where several rasters overlap the first one is used, except within 12 m of its border, where the
    one is used whose own border is farthest away.
    """
    first = rasters[0]
    if len(rasters) == 1:
        return first
    boxes = _boxes(rasters)
    top, left = boxes[:, :2].min(axis=0).tolist()
    boxes -= [top, left, top, left]
    bands = MosaicBands(
        [(r.bands, tuple(box)) for r, box in zip(rasters, boxes.tolist(), strict=True)],
        nodata=first.nodata,
        rim=ceil(_RIM_M / min(first.gsd_m)),
        reach=_reach(first),
    )
    assert first.grid is not None  # rasters on one grid are georeferenced
    grid = Grid(*bands.shape, first.grid.transform * Affine.translation(left, top), first.grid.crs)
    name = f"{first.name} and {len(rasters) - 1} more"
    return replace(first, name=name, bands=bands, gsd_m=grid.gsd_m(), grid=grid)
