"""Geometry for drawing: rectangles, dashes, points along a line. Arrays in, arrays out."""

from __future__ import annotations

from typing import cast

import numpy as np
import shapely
from numpy.typing import ArrayLike, NDArray
from shapely.geometry.base import BaseGeometry

from geoprep.synth.city.lattice import Points


def rectangles(
    centre: Points, angle: ArrayLike, length: ArrayLike, width: ArrayLike
) -> NDArray[np.object_]:
    """Return turned rectangles around centres (n, 2); ``length`` runs along ``angle``."""
    n = len(centre)
    turn = np.broadcast_to(np.asarray(angle, dtype=np.float64), n)
    half_l = np.broadcast_to(np.asarray(length, dtype=np.float64), n) / 2
    half_w = np.broadcast_to(np.asarray(width, dtype=np.float64), n) / 2
    along = np.stack((np.cos(turn), np.sin(turn)), -1) * half_l[:, None]
    across = np.stack((-np.sin(turn), np.cos(turn)), -1) * half_w[:, None]
    corners = np.stack(
        [centre + along + across, centre - along + across, centre - along - across,
         centre + along - across], axis=1)  # fmt: skip
    return np.asarray(shapely.polygons(corners), dtype=object)


def along(line: shapely.LineString, distance: Points) -> tuple[Points, Points]:
    """Return points (n, 2) of a line at given distances, and its direction there in radians."""
    step = 0.5
    here = shapely.get_coordinates(shapely.line_interpolate_point(line, distance))
    lo = np.clip(distance - step, 0, line.length)
    hi = np.clip(distance + step, 0, line.length)
    delta = shapely.get_coordinates(shapely.line_interpolate_point(line, hi))
    delta -= shapely.get_coordinates(shapely.line_interpolate_point(line, lo))
    return here, np.arctan2(delta[:, 1], delta[:, 0])


def beside(line: shapely.LineString, distance: Points, offset: ArrayLike) -> tuple[Points, Points]:
    """Return points at a signed offset from a line (positive to the right on screen)."""
    here, angle = along(line, distance)
    side = np.stack((-np.sin(angle), np.cos(angle)), -1)
    return here + side * np.broadcast_to(np.asarray(offset, float), len(here))[:, None], angle


def segments(ends: Points) -> shapely.MultiLineString:
    """Return straight lines between pairs of points (n, 2, 2) as one geometry."""
    lines = np.asarray(shapely.linestrings(ends), dtype=object)
    return shapely.MultiLineString(list(lines))


def shifted(line: BaseGeometry, offset: float) -> BaseGeometry:
    """Return a line parallel to another."""
    if offset == 0:
        return line
    return cast(BaseGeometry, shapely.offset_curve(line, offset, join_style="mitre"))


def dashes(line: BaseGeometry, dash: float, gap: float) -> BaseGeometry:
    """Return dashes along a line as one geometry."""
    if not isinstance(line, shapely.LineString) or line.length < dash:
        return line
    start = np.arange(gap / 2, line.length - dash, dash + gap)
    ends = np.stack((start, start + dash), axis=1).ravel()
    points = shapely.get_coordinates(shapely.line_interpolate_point(line, ends))
    return segments(points.reshape(-1, 2, 2))


def strip(line: BaseGeometry, half: float, *, flat: bool = False) -> BaseGeometry:
    """Return the area within ``half`` metres of a line; ends round, or cut square."""
    return line.buffer(half, quad_segs=4, cap_style="flat" if flat else "round")
