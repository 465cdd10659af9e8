"""Road lines and speeds -> a uint8 speed mask on any grid.

The recipe of the CRESI tools (``data_prep/speed_masks.py``), to the pixel: project to UTM, buffer
by 2 m with one segment a quadrant, unite the roads of each speed, go back to the CRS of the image,
burn in ascending speed by the pixel-centre rule. So the fastest road wins where roads cross, and
roads are 4 m wide on the ground whatever the shape of a pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray

from geoprep.crs import LONLAT, reproject
from geoprep.errors import LabelError, UsageError
from geoprep.labels.scanline import fill_rings
from geoprep.labels.table import Roads
from geoprep.speed import NO_ROAD, to_byte

DEFAULT_BUFFER_M: Final = 2.0
_QUADRANT_SEGMENTS: Final = 1
_ZONE_DEG: Final = 6
_ZONES: Final = 60
_FARTHEST_M: Final = 1e8
"""No place on Earth is as far from the origin of a zone; GEOS overflows on what is much farther."""


@dataclass(frozen=True, slots=True)
class SpeedPolygons:
    """The ground that roads cover, one geometry a speed, in ascending speed.

    Attributes
    ----------
    geometry
        Object (k,): shapely polygons or multipolygons in the CRS of the image.
    mph
        Float64 (k,): strictly ascending.
    """

    geometry: NDArray[np.object_]
    mph: NDArray[np.float64]


def speed_polygons(roads: Roads, crs: str, *, buffer_m: float = DEFAULT_BUFFER_M) -> SpeedPolygons:
    """Return the ground that roads cover.

    Parameters
    ----------
    roads
        Roads of one scene. All are buffered in one UTM zone (`utm_zone`): widths are true to 0.1 %
        in that zone and to about 1 % in the next, so of a label that spans many zones choose the
        roads of a scene by its bounds first. Lines that the zone cannot reach are left out.
    crs
        CRS of the image, as text that pyproj understands.
    buffer_m
        Metres on either side of a line.

    Raises
    ------
    UsageError
        If the buffer is not above 0.
    LabelError
        If the roads have no place in the CRS of the image.
    """
    if not buffer_m > 0:
        raise UsageError(f"a road buffer of {buffer_m} m leaves no road; give more than 0")
    if not len(roads.lines):
        return SpeedPolygons(np.empty(0, dtype=object), np.empty(0))
    utm = f"EPSG:{32600 + utm_zone(roads)}"
    lines = reproject(roads.lines, roads.crs, utm)
    reached = _is_within(lines, _FARTHEST_M)
    if not reached.any():
        raise LabelError(
            f"roads at {_place(roads)} are nowhere on Earth; check their CRS {roads.crs}"
        )
    outlines = shapely.buffer(lines[reached], buffer_m, quad_segs=_QUADRANT_SEGMENTS)
    mph, group = np.unique(roads.mph[reached], return_inverse=True)
    united = np.empty(len(mph), dtype=object)
    for index in range(len(mph)):
        united[index] = shapely.union_all(outlines[group == index])
    geometry = reproject(united, utm, crs)
    if not _is_within(geometry, math.inf).all():
        raise LabelError(f"roads at {_place(roads)} have no coordinates in the image's CRS, {crs}")
    return SpeedPolygons(geometry, mph)


def burn(polygons: SpeedPolygons, transform: Affine, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the speed mask of roads on a grid.

    A pixel is road when its centre is; of several speeds the highest stays. The grid may be turned,
    sheared, or south-up. A window's mask is the slice of the whole one.

    Parameters
    ----------
    polygons
        From `speed_polygons`, in the CRS of the grid.
    transform
        Pixel corner (column, row) -> CRS coordinate.
    shape
        Rows and columns.

    Returns
    -------
    ndarray of uint8
        (y, x): 0 no road, else the speed in mph, rounded half up.
    """
    mask = np.full(shape, NO_ROAD, dtype=np.uint8)
    for geometry, value in zip(polygons.geometry, to_byte(polygons.mph).tolist(), strict=True):
        rings = shapely.get_rings(shapely.get_parts(geometry))
        xy, ring = shapely.get_coordinates(rings, return_index=True)
        x, y = _pixels(transform, xy)
        fill_rings(x, y, ring.astype(np.int64, copy=False), value, mask)
    return mask


def _pixels(
    transform: Affine, xy: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return columns and rows of coordinates.

    The origin is taken off before anything is multiplied: degrees are some ten million pixels from
    zero, and the inverse affine would lose eight digits to that.
    """
    a, b, c, d, e, f = transform[:6]
    east, south = xy[:, 0] - c, xy[:, 1] - f
    determinant = a * e - b * d
    return (e * east - b * south) / determinant, (a * south - d * east) / determinant


def utm_zone(roads: Roads) -> int:
    """Return the UTM zone that roads are buffered in: that of the centroid of their union.

    The northern zone serves both hemispheres (south of the equator northings are negative), as in
    the reference.

    Returns
    -------
    int
        1..60.
    """
    lines = reproject(roads.lines, roads.crs, LONLAT)
    lines = lines[_is_within(lines, math.inf)]
    if not len(lines):
        raise LabelError(
            f"roads at {_place(roads)} are nowhere on Earth; check their CRS {roads.crs}"
        )
    west, _, east, _ = shapely.total_bounds(lines).tolist()
    if east - west > 180:
        lines = shapely.transform(lines, lambda xy: np.column_stack([xy[:, 0] % 360, xy[:, 1]]))
    elif _zone(west) == _zone(east):
        return _zone(west)  # no need of the union: the centroid lies between
    return _zone(shapely.union_all(lines).centroid.x)


def _zone(lon: float) -> int:
    return math.floor((lon + 180) / _ZONE_DEG) % _ZONES + 1


def _is_within(geometry: NDArray[np.object_], limit: float) -> NDArray[np.bool_]:
    """Return where no coordinate is infinite, missing, or as far from zero as the limit."""
    return np.asarray((np.abs(shapely.bounds(geometry)) < limit).all(axis=1), dtype=np.bool_)


def _place(roads: Roads) -> str:
    return str(tuple(round(value, 3) for value in shapely.total_bounds(roads.lines).tolist()))
