r"""Dead ends that thinning shortens: extended to where the road, or the line that was drawn, ends.

::

    the road     ________________       ________________       ______________
    its line             _       |                      |                    \
                 -------/        |  ->  ----------------+  or  --------------+)
                 ________________|      ________________|      ______________/
                                                                 a round end
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadGraph, segments
from geoprep.roads.tracing.arms import LINE_M, arms_of, lines_of_arms, with_arms_begun_at

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
IsRoad = Callable[[Floats, Floats], NDArray[np.bool_]]
"""Whether places along the straight lines between two rows of points are road, (line, place)."""

_BENT_M: Final = 8.0
"""Thinning bends the last metres of a dead end into a corner, for the road's width."""
_ACROSS: Final = np.linspace(-0.75, 0.75, 16)
"""Places across a road, in half widths, where its end is measured: nearer its edge it is ragged."""
_BEHIND: Final = 0.9
"""Distance in half widths from which it is measured."""
_ROUND: Final = 0.6
"""Share of a semicircle from which on an end is round: 0 if flat, 1 if round, 2 if pointed."""
_PIXELS: Final = 2.0
"""Half width in pixels from which on the shape of an end can be told."""
_TOGETHER: Final = 2000
"""Number of dead ends whose shape is measured at a time, to limit memory."""


def with_ends_extended(
    network: RoadGraph,
    tips: Ints,
    is_road: IsRoad,
    farthest_m: float,
    *,
    cap_pixel_m: float | None = None,
) -> RoadGraph:
    """Return a network whose dead ends run on, straight, to the end of the road's pixels.

    1. The last 8 m (or a third of the edge) are bent: the line before them is extended, by at most
       ``farthest_m``, until it leaves the road.
    2. A dead end that would meet another edge, or end before half of the bent metres, is left.
    3. In a mask (``cap_pixel_m`` is its pixel size in metres) a road with a round end ends at the
       centre of the semicircle: there the line ended that was widened to the road.
    """
    # 1
    arms = arms_of(network, tips, 1)[:, 0]
    edge = arms // 2
    length = network.length_m[edge]
    cut = np.minimum(_BENT_M, length / 3)
    xy, away, _ = lines_of_arms(network, arms, (cut, cut + LINE_M))
    step = -away
    ahead = xy + _reach(is_road, xy, xy + farthest_m * step)[:, None] * farthest_m * step
    # 2
    rays = segments(np.stack([xy, ahead + step], axis=1))
    met, other = shapely.STRtree(network.lines).query(rays, predicate="intersects")
    free = np.linalg.norm(ahead - xy, axis=1) > cut / 2
    free[met[other != edge[met]]] = False
    # 3
    if cap_pixel_m is not None:
        chosen = np.flatnonzero(free)
        for some in np.split(chosen, range(_TOGETHER, len(chosen), _TOGETHER)):
            radius = _cap_radius(xy[some], ahead[some], step[some], is_road, farthest_m)
            ahead[some] -= np.where(radius < _PIXELS * cap_pixel_m, 0, radius)[:, None] * step[some]
        cut += np.maximum(0, cut / 2 - ((ahead - xy) * step).sum(axis=1))  # never turn back
        free &= cut < length * 2 / 3
        free &= np.bincount(edge, weights=free * cut)[edge] < length  # of both ends of a line
    return with_arms_begun_at(network, tips[free], arms[free], cut[free], ahead[free])


def _reach(is_road: IsRoad, start: Floats, stop: Floats) -> Floats:
    """Return the share of straight lines up to where they leave road pixels, float64 (line,)."""
    share: Floats = np.logical_and.accumulate(is_road(start, stop), axis=1).mean(axis=1)
    return share


def _cap_radius(
    inside: Floats, stop: Floats, step: Floats, is_road: IsRoad, farthest_m: float
) -> Floats:
    """Return half the width of roads with round or pointed ends in metres; 0 of other ends.

    Distances to the end, measured at places across the road, are fitted by a line of any slope
    and a share of a semicircle.
    """

    def reach(xy: Floats, way: Floats) -> Floats:
        way = np.broadcast_to(farthest_m * way, xy.shape).reshape(-1, 2)
        start = xy.reshape(-1, 2)
        return farthest_m * _reach(is_road, start, start + way).reshape(xy.shape[:-1])

    side = np.column_stack([-step[:, 1], step[:, 0]])[:, None]
    step = step[:, None]
    before = inside[:, None] - np.arange(4)[:, None] * step
    half = np.median(reach(before, side) + reach(before, -side), axis=1)[:, None, None] / 2
    begin = stop[:, None] - half * step
    aside = (reach(begin, side) - reach(begin, -side))[..., None] / 2  # the line is off the middle
    places = stop[:, None] - _BEHIND * half * step + (aside + _ACROSS[:, None] * half) * side
    terms = np.column_stack([np.ones_like(_ACROSS), _ACROSS, np.sqrt(1 - _ACROSS**2)])
    half = half[..., 0]
    share = (reach(places, step) / np.maximum(half, 1e-9)) @ np.linalg.pinv(terms)[2]
    return np.where(share > _ROUND, half[:, 0], 0.0)
