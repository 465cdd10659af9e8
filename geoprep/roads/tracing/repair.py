"""Gaps closed: dead ends joined to each other, or to the road that they point at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.centrelines.options import Tracing
from geoprep.roads.network import RoadNetwork
from geoprep.roads.shapes import points, segments
from geoprep.roads.tracing.graph import assembled
from geoprep.roads.tracing.pruning import degrees
from geoprep.roads.tracing.splitting import anchored, with_joins

Floats = NDArray[np.float64]
Likelihood = Callable[[Floats, Floats], Floats]
"""Mean probability of a road, 0..1, on the straight lines between two rows of points."""

JUNCTION_M: Final = 5.0
"""Junctions joined by a shorter edge are one: a crossing thins to two forks about as far apart."""
_BACK_M: Final = 10.0
"""Over which the direction of a dead end is taken."""
_ALIGNED_COS: Final = np.cos(np.radians(30))
_LIKELY_COS: Final = np.cos(np.radians(45))
_NEAR_COS: Final = np.cos(np.radians(100))
_FAN: Final = np.radians([0.0, -15.0, 15.0, -30.0, 30.0])
_LIKELY_REACH: Final = 2.0
"""Times as far as elsewhere a dead end is drawn on where the probabilities speak for a road."""
_LIKELY_COST: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Joins:
    """Ways to join dead ends: cheapest first when they are chosen from.

    ``end`` and ``other`` count dead ends (``other`` -1: none); ``edge`` and ``along`` say where a
    join leads to; ``cost`` in metres.
    """

    end: NDArray[np.int64]
    other: NDArray[np.int64]
    edge: NDArray[np.int64]
    along: Floats
    cost: Floats

    def __add__(self, more: _Joins) -> _Joins:
        names = ("end", "other", "edge", "along", "cost")
        return _Joins(*(np.concatenate([getattr(self, n), getattr(more, n)]) for n in names))

    def cheapest(self, ends: int) -> _Joins:
        """Return joins of which every dead end has at most one."""
        free, taken = np.ones(ends + 1, np.bool_), []
        for join in np.argsort(self.cost, kind="stable").tolist():
            end, other = self.end[join], self.other[join]
            if free[end] and free[other]:
                taken.append(join)
                free[end] = False
                free[other] = other < 0
        names = ("end", "other", "edge", "along", "cost")
        return _Joins(*(getattr(self, n)[taken] for n in names))


def merged_junctions(network: RoadNetwork, within_m: float = JUNCTION_M) -> RoadNetwork:
    """Return a network in which junctions joined by a short edge are one, in their middle."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count, (a, b) = len(network.nodes), network.ends.T
    junction = degrees(network) > 2
    short = (network.length_m < within_m) & junction[a] & junction[b] & (a != b)
    if not short.any():
        return network
    graph = coo_array((np.ones(short.sum(), np.int8), (a[short], b[short])), shape=(count, count))
    number, group = connected_components(graph, directed=False)
    size = np.bincount(group, minlength=number)[:, None]
    middle = np.column_stack([np.bincount(group, weights=v) for v in network.nodes.T]) / size
    ends = group[network.ends].astype(np.int64)
    inside = (ends[:, 0] == ends[:, 1]) & (network.length_m < within_m)
    ends, speed = ends[~inside], network.speed_mph[~inside]
    lines = anchored(network.lines[~inside], ends, middle)
    return assembled(RoadNetwork(middle, ends, lines, speed, network.crs))


def repaired(
    network: RoadNetwork,
    options: Tracing,
    *,
    at_border: NDArray[np.bool_],
    likelihood: Likelihood | None,
) -> RoadNetwork:
    """Return a network whose gaps are closed.

    A dead end is joined to another that is near, or that lies ahead and points back, or to the edge
    that it runs into when drawn on; farther where the probabilities in between speak for a road.
    The cheapest joins are made first (by length; half as much where likely), each dead end has one.

    Parameters
    ----------
    at_border
        bool (node,): dead ends that stay: their roads go on beyond the raster.
    likelihood
        None: nothing is known of what lies between.
    """
    tips = np.flatnonzero((degrees(network) == 1) & ~at_border)
    if not len(tips):
        return network
    ends = _Ends.of(network, tips)
    joins = _towards_ends(ends, options, likelihood)
    joins += _towards_edges(network, ends, options, likelihood)
    taken = joins.cheapest(len(tips))
    return with_joins(network, tips[taken.end], taken.edge, taken.along)


@dataclass(frozen=True, slots=True)
class _Ends:
    """Dead ends: place, direction in which the road would go on, edge, and where on it."""

    xy: Floats
    ahead: Floats
    edge: NDArray[np.int64]
    along: Floats
    length: Floats

    @classmethod
    def of(cls, network: RoadNetwork, tips: NDArray[np.int64]) -> _Ends:
        flat = np.argsort(network.ends.reshape(-1), kind="stable")
        at = flat[np.searchsorted(network.ends.reshape(-1)[flat], tips)]
        edge, last = at // 2, at % 2 == 1
        length = network.length_m[edge]
        back = np.minimum(_BACK_M, length)
        behind = shapely.line_interpolate_point(
            network.lines[edge], np.where(last, length - back, back)
        )
        xy = network.nodes[tips]
        step = xy - shapely.get_coordinates(behind)
        size = np.maximum(np.linalg.norm(step, axis=1), 1e-9)[:, None]
        return cls(xy, step / size, edge, np.where(last, length, 0.0), length)


def _towards_ends(ends: _Ends, options: Tracing, likelihood: Likelihood | None) -> _Joins:
    """Return the ways to join two dead ends."""
    from scipy.spatial import cKDTree

    farthest = max(options.gap_m, options.aligned_gap_m)
    if likelihood is not None:
        farthest = max(farthest, options.likely_gap_m)
    pairs = cKDTree(ends.xy).query_pairs(farthest, output_type="ndarray").astype(np.int64)
    a, b = pairs.T
    step = ends.xy[b] - ends.xy[a]
    gap = np.linalg.norm(step, axis=1)
    step /= np.maximum(gap, 1e-9)[:, None]
    straight = np.minimum((ends.ahead[a] * step).sum(1), -(ends.ahead[b] * step).sum(1))
    likely = np.zeros(len(gap), np.bool_)
    if likelihood is not None:
        likely = likelihood(ends.xy[a], ends.xy[b]) >= options.hint
    good = (gap <= options.gap_m) & (straight >= _NEAR_COS)
    good |= (gap <= options.aligned_gap_m) & (straight >= _ALIGNED_COS)
    good |= (gap <= options.likely_gap_m) & (straight >= _LIKELY_COS) & likely
    good &= (ends.edge[a] != ends.edge[b]) | (gap < ends.length[a] / 3)
    cost = gap * np.where(likely, _LIKELY_COST, 1.0) * (2 - straight)
    return _Joins(a[good], b[good], ends.edge[b[good]], ends.along[b[good]], cost[good])


def _towards_edges(
    network: RoadNetwork, ends: _Ends, options: Tracing, likelihood: Likelihood | None
) -> _Joins:
    """Return the ways to draw a dead end on to an edge: straight on, or up to 30 degrees aside."""
    reach = options.reach_m * (1.0 if likelihood is None else _LIKELY_REACH)
    cos, sin = np.cos(_FAN)[:, None], np.sin(_FAN)[:, None]
    x, y = ends.ahead.T
    aside = np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1).reshape(-1, 2)
    end = np.tile(np.arange(len(ends.xy)), len(_FAN))
    turned = np.repeat(np.abs(_FAN), len(ends.xy))
    rays = segments(np.stack([ends.xy[end], ends.xy[end] + reach * aside], axis=1))
    ray, edge = shapely.STRtree(network.lines).query(rays, predicate="intersects")
    other = edge != ends.edge[end[ray]]
    ray, edge = ray[other], edge[other]
    end, turned = end[ray], turned[ray]
    start = points(ends.xy[end])
    met = shapely.shortest_line(start, shapely.intersection(rays[ray], network.lines[edge]))
    place = shapely.get_point(met, 1)
    gap: Floats = shapely.length(met)
    xy = shapely.get_coordinates(place)
    likely = np.zeros(len(gap), np.bool_)
    if likelihood is not None:
        likely = likelihood(ends.xy[end], xy) >= options.hint
    good = (gap <= options.reach_m) | likely
    cost = gap * np.where(likely, _LIKELY_COST, 1.0) * (1 + np.sin(turned))
    along = shapely.line_locate_point(network.lines[edge], place)
    joins = _Joins(end, np.full(len(end), -1), edge, along, cost)
    return replace(
        joins, **{n: getattr(joins, n)[good] for n in ("end", "other", "edge", "along", "cost")}
    )
