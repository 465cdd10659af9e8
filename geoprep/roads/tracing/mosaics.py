"""Touching rasters read as one raster on the grid of the first: their roads need no joining."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Final, cast

import numpy as np
import shapely

from geoprep.components import connected
from geoprep.crs import LONLAT, METRES_PER_DEGREE, unwrapped
from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.roads.centrelines.bands import OUTSIDE, FileBands, MosaicBands, Part
from geoprep.roads.centrelines.cover import Box
from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.centrelines.thinning import BEYOND_M

_RIM_M: Final = 12.0
"""A raster may miss roads this close to its border: one that reaches farther is used instead."""
_STRETCH: Final = 1e-6
"""Pixel sizes of one grid may differ by this share."""


def grid_of(raster: RoadRaster) -> Grid:
    """Return the grid of a raster, which has to be georeferenced to lie beside others."""
    if raster.grid is None:
        raise UsageError(
            f"{raster.name}: not georeferenced, so its position relative to the other rasters is "
            "unknown. Vectorize it alone."
        )
    return raster.grid


def mosaics(rasters: Sequence[RoadRaster]) -> list[list[int]]:
    """Return the groups of rasters that touch or overlap, in order of the first of each."""
    outlines = np.array([grid_of(raster).outline_in(LONLAT) for raster in rasters], object)
    outlines = np.array([shapely.transform(outline, unwrapped) for outline in outlines], object)
    again = shapely.transform(outlines, lambda xy: xy + np.array([360, 0]))  # across 180
    outlines = np.concatenate([outlines, again])
    _, south, _, north = shapely.bounds(outlines).T
    aside = np.cos(np.radians(np.minimum(np.maximum(-south, north), 89)))
    near = shapely.STRtree(outlines).query(
        outlines, "dwithin", distance=BEYOND_M / METRES_PER_DEGREE / aside
    )
    count, group = connected(near.T % len(rasters), len(rasters))
    return sorted(np.flatnonzero(group == number).tolist() for number in range(count))


def _on_one_grid(first: Grid, other: Grid) -> bool:
    """Return whether two rasters have the same CRS and pixel size."""
    if first.crs != other.crs:
        return False
    size, size_b = (np.array(grid.transform[:6])[[0, 1, 3, 4]] for grid in (first, other))
    return np.allclose(size, size_b, rtol=0, atol=_STRETCH * np.abs(size).max())


def _box(first: Grid, grid: Grid) -> Box:
    """Return top, left, bottom and right of a raster of the same grid, in pixels of the first."""
    left, top = first.to_pixels(grid.corners[0]).round().astype(int).tolist()
    return top, left, top + grid.height, left + grid.width


def mosaic(rasters: Sequence[RoadRaster]) -> RoadRaster:
    """Return rasters as one raster on the first one's grid.

    Rasters of the same grid move by up to half a pixel, others are resampled. Where several
    overlap the first one is used, except within 12 m of its border, where the one is used whose
    own border is farthest away.
    """
    first = rasters[0]
    if len(rasters) == 1:
        return first
    grid, parts = grid_of(first), []
    for raster in rasters:
        _require_one_meaning(first, raster)
        own = grid_of(raster)
        if _on_one_grid(grid, own):
            parts.append(Part(raster.bands, raster.nodata, _box(grid, own)))
            continue
        box = grid.box_around(own)
        if box is None:
            raise UsageError(
                f"{raster.name} has no coordinates in the CRS of {first.name}, {grid.crs[:40]}. "
                "Reproject both to one CRS."
            )
        top, left, bottom, right = box
        onto = grid.window(top, left, bottom - top, right - left)
        smooth = raster.kind == "probability" and not raster.speed_band
        bands = cast(FileBands, raster.bands)
        resampled = FileBands(bands.path, (onto.height, onto.width), onto, smooth)
        parts.append(Part(resampled, OUTSIDE, box))
    joined = MosaicBands(
        parts,
        nodata=first.nodata,
        rim=ceil(_RIM_M / min(first.gsd_m)),
        reach=ceil(BEYOND_M / min(first.gsd_m)),
    )
    whole = grid.window(*joined.origin, *joined.shape)
    name = f"{first.name} and {len(rasters) - 1} more"
    return replace(first, name=name, bands=joined, gsd_m=whole.gsd_m(), grid=whole)


def _require_one_meaning(first: RoadRaster, other: RoadRaster) -> None:
    names = ["kind", "road_bands", "speed_classes", "speed_band", "road_value"]
    names += ["full_value"] if first.kind == "probability" else []
    for name in names:
        if getattr(first, name) != getattr(other, name):
            raise UsageError(
                f"{first.name} and {other.name} touch, but their pixels mean different things "
                f"({first.kind} and {other.kind}). Set `kind` and `band`, or vectorize them alone."
            )
