"""Burn road lines and areas with speeds into uint8 labels on any grid.

This reproduces the CRESI tools (``data_prep/speed_masks.py``) to the pixel: project to UTM, buffer
by 2 m with one segment per quadrant, unite the roads of each speed, project to the image's CRS, and
burn in ascending speed by the pixel-centre rule. So the highest speed wins where roads cross, and
roads are 4 m wide on the ground whatever the shape of a pixel. Instead of a union, outlines get the
vertices that it would give them (`noding`) and are drawn one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray

from geoprep.crs import reproject, to_lonlat, transformer, utm_crs
from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid
from geoprep.labels.noding import noded
from geoprep.labels.scanline import fill_polygons
from geoprep.labels.table import LabelRoads
from geoprep.labels.tangles import untangled
from geoprep.speed import BACKGROUND

DEFAULT_BUFFER_M: Final = 2.0
_QUADRANT_SEGMENTS: Final = 1
_AREA: Final = 2
"""Dimensions of a polygon."""
_FARTHEST_M: Final = 1e8
"""No place on Earth is this far from the origin of a zone; GEOS overflows far beyond it."""


@dataclass(frozen=True, slots=True)
class SpeedPolygons:
    """Outlines of roads, one polygon per line or area, in ascending speed.

    Attributes
    ----------
    xy
        Float64 (points, 2): concatenated closed rings in the CRS of the image.
    ring
        Int64 (points,): the ring that a point is part of.
    first
        Int64 (polygons + 1): the first point of each polygon, and the number of points.
    bounds
        Float64 (polygons, 4): least x, least y, greatest x, greatest y.
    value
        uint8 (polygons,): label byte (:mod:`geoprep.speed`); those of unknown speed come first,
        then ascending speeds. Of classes: nodata first, then ascending classes.
    """

    xy: NDArray[np.float64]
    ring: NDArray[np.int64]
    first: NDArray[np.int64]
    bounds: NDArray[np.float64]
    value: NDArray[np.uint8]


def speed_polygons(
    roads: LabelRoads, grid: Grid, *, buffer_m: float | NDArray[np.float64] = DEFAULT_BUFFER_M
) -> SpeedPolygons:
    """Return the outlines of roads; they are made once per scene and burned into any window.

    Parameters
    ----------
    roads
        Roads of one scene. Lines outside the domain of its UTM zone are left out.
    grid
        Of the scene. All roads are widened in its UTM zone (`buffer_crs`): widths are true to
        0.1 % there, whatever else the label file holds.
    buffer_m
        Metres on either side of a line: one value, or float64 (line,). Areas are not widened.

    Raises
    ------
    UsageError
        If a buffer is not larger than 0.
    LabelError
        If roads have no coordinates in the CRS of the image.
    """
    buffers = np.broadcast_to(np.asarray(buffer_m, np.float64), roads.lines.shape)
    if not np.all(np.asarray(buffer_m) > 0):
        raise UsageError(f"`buffer` {buffer_m} m: must be larger than 0")
    if not len(roads.lines):
        return _nothing()
    utm = buffer_crs(grid)
    lines = reproject(roads.lines, roads.crs, utm)
    reached = np.flatnonzero(_is_within(lines, _FARTHEST_M))
    if not len(reached):
        raise LabelError(f"roads at {_place(roads)} are not on Earth; check their CRS {roads.crs}")
    is_area = shapely.get_dimensions(lines[reached]) == _AREA
    areas, reached = reached[is_area], reached[~is_area]
    pieces, owner, cut = untangled(lines[reached], buffers[reached])
    road = reached[owner]
    outlines = shapely.buffer(pieces, buffers[road], quad_segs=_QUADRANT_SEGMENTS)
    # Areas do not need the vertices that a union would add.
    apart = np.concatenate([cut, np.ones(len(areas), np.bool_)])
    outlines, mph = np.concatenate([outlines, lines[areas]]), roads.mph[np.append(road, areas)]
    xy, ring, first, mph = _outlined(outlines, mph, apart)
    xy = np.column_stack(transformer(utm, grid.crs).transform(*xy.T))
    if not np.isfinite(xy).all():
        raise LabelError(
            f"roads at {_place(roads)} have no coordinates in the image's CRS, {grid.crs}. Check "
            "the CRS of both"
        )
    bounds = np.hstack([end.reduceat(xy, first[:-1]) for end in (np.minimum, np.maximum)])
    value = roads.label_bytes(mph)
    return SpeedPolygons(xy, ring, first, bounds, value)


def _outlined(
    outlines: NDArray[np.object_], mph: NDArray[np.float64], cut: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return polygons in the form of `SpeedPolygons`, in metres, and the speed of each.

    Parameters
    ----------
    outlines, mph
        Polygons in metres, and their speeds.
    cut
        Whether it is a piece of a tangle, or an area: these get no vertices from others, as there
        may be millions.
    """
    ascending = np.argsort(mph, kind="stable")
    ascending = ascending[~shapely.is_empty(outlines[ascending])]  # a buffer of 1e-9 m, say
    outlines, mph, cut = outlines[ascending], mph[ascending], cut[ascending]
    rings, polygon = shapely.get_rings(outlines, return_index=True)
    xy, ring = shapely.get_coordinates(rings, return_index=True)
    _, speed = np.unique(mph, return_inverse=True)
    xy, ring = noded(xy, ring, polygon, np.where(cut, -1, speed))
    first = np.searchsorted(polygon[ring], np.arange(len(outlines) + 1))
    return xy, ring, first, mph


def _nothing() -> SpeedPolygons:
    points, none = np.empty((0, 2)), np.empty(0, np.int64)
    return SpeedPolygons(
        points, none, np.zeros(1, np.int64), np.empty((0, 4)), none.astype(np.uint8)
    )


def burn(
    polygons: SpeedPolygons,
    transform: Affine,
    shape: tuple[int, int],
    *,
    around: int = BACKGROUND,
) -> NDArray[np.uint8]:
    """Return the label of roads on a grid.

    A pixel is road if its centre is; the highest of several speeds is kept. The grid may be
    rotated, sheared or south-up. The label of a window is the slice of the whole one.

    Parameters
    ----------
    polygons
        From `speed_polygons`, in the CRS of the grid.
    transform
        Pixel corner (column, row) -> CRS coordinate.
    shape
        Rows and columns.
    around
        Label byte of pixels outside all polygons.

    Returns
    -------
    ndarray of uint8
        (y, x): 0 background, 1..253 speed in mph rounded half up, 254 unknown speed; or numbers of
        classes.
    """
    mask = np.full(shape, around, dtype=np.uint8)
    corners = [transform * (x, y) for x in (0, shape[1]) for y in (0, shape[0])]
    low, high = np.min(corners, axis=0), np.max(corners, axis=0)
    near = (polygons.bounds[:, :2] <= high) & (polygons.bounds[:, 2:] >= low)
    chosen = np.flatnonzero(near.all(axis=1))
    counts = np.diff(polygons.first)[chosen]
    first = np.concatenate([[0], np.cumsum(counts)])
    points = np.repeat(polygons.first[chosen] - first[:-1], counts) + np.arange(first[-1])
    x, y = _pixels(transform, polygons.xy[points])
    fill_polygons(x, y, polygons.ring[points], first, polygons.value[chosen], mask)
    return mask


def _pixels(
    transform: Affine, xy: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return columns and rows of coordinates.

    The origin is subtracted before anything is multiplied: degrees are some ten million pixels from
    zero, and the inverse transform would lose eight digits.
    """
    a, b, c, d, e, f = transform[:6]
    east, south = xy[:, 0] - c, xy[:, 1] - f
    determinant = a * e - b * d
    return (e * east - b * south) / determinant, (a * south - d * east) / determinant


def buffer_crs(grid: Grid) -> str:
    """Return the projected CRS that a scene's roads are widened in: the UTM zone of its centre.

    The reference takes the centroid of the roads, which one long line in a label file moves. As
    there, the northern zone serves both hemispheres: south of the equator northings are negative.
    """
    centre = grid.transform * (grid.width / 2, grid.height / 2)
    return utm_crs(float(to_lonlat(grid.crs).transform(*centre)[0]), lat=0.0)


def _is_within(geometry: NDArray[np.object_], limit: float) -> NDArray[np.bool_]:
    """Return where all coordinates are finite and closer to zero than the limit."""
    return np.asarray((np.abs(shapely.bounds(geometry)) < limit).all(axis=1), dtype=np.bool_)


def _place(roads: LabelRoads) -> str:
    return str(tuple(round(value, 3) for value in shapely.total_bounds(roads.lines).tolist()))
