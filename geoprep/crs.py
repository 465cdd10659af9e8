"""Coordinate systems of vectors: parsed once, transformed in bulk, x before y throughout."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import pyproj
import shapely
from numpy.typing import NDArray

Bounds = tuple[float, float, float, float]

LONLAT: Final = "OGC:CRS84"
"""Longitude and latitude on WGS 84 in degrees: the CRS of GeoJSON."""

_METRES_PER_DEGREE: Final = 111_320.0
_EDGE_POINTS: Final = 21
_NEAR_POLE_DEG: Final = 89.9


@lru_cache(maxsize=256)
def transformer(source: str, target: str) -> pyproj.Transformer:
    """Return a transformer with x before y. One serves all threads: pyproj keeps a copy in each.

    Raises
    ------
    pyproj.exceptions.CRSError
        If either text names no CRS.
    """
    return pyproj.Transformer.from_crs(source, target, always_xy=True)


@lru_cache(maxsize=256)
def is_geographic(crs: str) -> bool:
    """Return whether a CRS counts in degrees."""
    return bool(pyproj.CRS.from_user_input(crs).is_geographic)


def reproject(geometry: NDArray[np.object_], source: str, target: str) -> NDArray[np.object_]:
    """Return 2-D geometries in another CRS. What lies outside it gets infinite coordinates."""
    if source == target:
        return geometry
    xy = shapely.get_coordinates(geometry)
    x, y = transformer(source, target).transform(xy[:, 0], xy[:, 1])
    moved: NDArray[np.object_] = shapely.set_coordinates(geometry.copy(), np.column_stack([x, y]))
    return moved


def boxes_around(bounds: Bounds, source: str, target: str, margin_m: float) -> list[Bounds]:
    """Return the boxes in another CRS that hold some bounds and a margin about them.

    Edges are bent by the way between two CRSs, so they are followed at 21 points each. The answer
    may be a little too large, never too small.

    Parameters
    ----------
    bounds
        Left, bottom, right, top in the source CRS.
    margin_m
        Metres on the ground to add on every side.

    Returns
    -------
    list of bounds
        Left, bottom, right, top in the target CRS: one box; two where the bounds cross the 180th
        meridian; none where the target CRS does not reach.
    """
    west, south, east, north = transformer(source, LONLAT).transform_bounds(
        *bounds, densify_pts=_EDGE_POINTS
    )
    up = margin_m / _METRES_PER_DEGREE * 1.01
    farthest = min(max(abs(south), abs(north)) + up, _NEAR_POLE_DEG)
    aside = up / np.cos(np.radians(farthest))
    west, east = west - aside, east + aside
    south, north = max(south - up, -90.0), min(north + up, 90.0)
    halves = [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]
    boxes = [
        transformer(LONLAT, target).transform_bounds(
            left, south, right, north, densify_pts=_EDGE_POINTS
        )
        for left, right in halves
    ]
    return [box for box in boxes if np.isfinite(box).all()]
