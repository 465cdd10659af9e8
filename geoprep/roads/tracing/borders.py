"""Roads that the raster's border cuts off: found, and separated."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.graph import degrees, joined_at_ends
from geoprep.roads.network import RoadGraph

Floats = NDArray[np.float64]

_DISTURBED_M: Final = 3.0
"""Centre lines are bent this close to the border: half a road's width, and half as much again."""
_TOUCH_M: Final = 12.0
"""A line that follows the border for less than this touches it."""
_HEADING_M: Final = 10.0
_LEAST_M: Final = 3.0
_PARALLEL: Final = 0.05


def at_border(xy: Floats, raster: RoadRaster) -> NDArray[np.bool_]:
    """Return which points of the plane lie in the outermost cells of thinning, bool (point,)."""
    return raster.cover.is_outermost(raster.plane.to_pixels(xy), raster.cell / 2 + 0.51)


def cut_off_ends(network: RoadGraph, raster: RoadRaster) -> NDArray[np.bool_]:
    """Return the dead ends at the border whose road comes from inside, bool (node,)."""
    tip = at_border(network.nodes, raster) & (degrees(network) == 1)
    xy, line = shapely.get_coordinates(network.lines, return_index=True)
    inner = np.bincount(line, weights=~at_border(xy, raster), minlength=len(network.lines)) > 0
    cut_off: NDArray[np.bool_] = tip & np.isin(np.arange(len(tip)), network.ends[inner])
    return cut_off


def split_at_border(network: RoadGraph, raster: RoadRaster) -> RoadGraph:
    """Return a network whose lines do not turn back at the border.

    A line that comes from inside, touches the border and returns inside is split into two roads
    that leave the raster (they may meet on another raster). It is left whole if its two arms would
    meet inside the raster when extended.
    """
    xy, line = shapely.get_coordinates(network.lines, return_index=True)
    outer = at_border(xy, raster)
    whole = np.ones(len(network.lines), np.bool_)
    parts: list[shapely.LineString] = []
    source: list[int] = []
    first = np.searchsorted(line, np.arange(len(network.lines) + 1))
    for edge in np.unique(line[outer]).tolist():
        mine = slice(first[edge], first[edge + 1])
        pieces = _split_line(xy[mine], outer[mine], raster)
        if len(pieces) > 1:
            whole[edge] = False
            parts += [shapely.LineString(piece) for piece in pieces]
            source += [edge] * len(pieces)
    if whole.all():
        return network
    lines = np.concatenate([network.lines[whole], np.array(parts, object)])
    speed = np.concatenate([network.speed_mph[whole], network.speed_mph[source]])
    return joined_at_ends(lines, speed, network.crs)


def _split_line(xy: Floats, outer: NDArray[np.bool_], raster: RoadRaster) -> list[Floats]:
    """Return a line cut wherever it touches the border."""
    change = np.flatnonzero(np.diff(outer.astype(np.int8)))
    pieces, begin = [], 0
    for leave, back in pairwise(change.tolist()):
        touch = xy[leave + 1 : back + 1]
        short = outer[leave + 1] and np.linalg.norm(np.diff(touch, axis=0), axis=1).sum() < _TOUCH_M
        if short and not _meet_inside(xy[leave::-1], xy[back + 1 :], raster):
            pieces.append(xy[begin : leave + 2])
            begin = back
    return [*pieces, xy[begin:]]


def _meet_inside(arm: Floats, other: Floats, raster: RoadRaster) -> bool:
    """Return whether two lines that begin near the border, extended, would meet inside."""
    first, second = _ray(arm, raster), _ray(other, raster)
    if first is None or second is None:
        return True
    (a, da), (b, db) = first, second
    across = da[0] * db[1] - da[1] * db[0]
    if abs(across) < _PARALLEL:
        return False
    far = ((b - a)[0] * db[1] - (b - a)[1] * db[0]) / across
    back = ((b - a)[0] * da[1] - (b - a)[1] * da[0]) / across
    return bool(far > 0 and back > 0 and _depth(np.array([a + far * da]), raster)[0] > 0)


def _depth(xy: Floats, raster: RoadRaster) -> Floats:
    """Return the distance of points to the border in metres, negative outside."""
    gap = raster.cover.to_border(xy, raster.gsd_m)
    return np.where(raster.cover.is_within(xy, raster.gsd_m), gap, -gap)


def _ray(xy: Floats, raster: RoadRaster) -> tuple[Floats, Floats] | None:
    """Return the first undisturbed point of a line that begins near the border, and its heading.

    The heading is a unit vector towards the border. None if too little of the line is undisturbed.
    """
    kept = xy[np.logical_or.accumulate(_depth(xy, raster) >= _DISTURBED_M)]
    if len(kept) < 2 or (rest := shapely.LineString(kept)).length < _LEAST_M:
        return None
    behind = shapely.get_coordinates(shapely.line_interpolate_point(rest, _HEADING_M))[0]
    return kept[0], (kept[0] - behind) / np.linalg.norm(kept[0] - behind)
