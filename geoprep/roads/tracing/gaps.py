"""Gap closing: dead ends joined to each other, or to the road that they point at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.graph import degrees, with_links
from geoprep.roads.network import RoadGraph, points, segments
from geoprep.roads.options import Tracing

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MeanProbability = Callable[[Floats, Floats], Floats]
"""Mean probability of a road, 0 to 1, on the straight lines between two rows of points."""

_HEADING_M: Final = 10.0
"""The heading of a dead end is taken over its last 10 m."""
_ALIGNED_COS: Final = np.cos(np.radians(30))
_LIKELY_COS: Final = np.cos(np.radians(45))
_NEAR_COS: Final = np.cos(np.radians(100))
_RETURN_COS: Final = np.cos(np.radians(60))
"""Two near dead ends whose headings differ by less are the ends of parallel roads."""
_FAN: Final = np.radians([0.0, -15.0, 15.0, -30.0, 30.0])
"""Directions, relative to its heading, in which a dead end is extended."""
_LIKELY_REACH: Final = 2.0
"""A dead end is extended this many times as far where the probabilities suggest a road."""
_LIKELY_COST: Final = 0.5
_INTERRUPTED: Final = 0.1
"""Minimum share of dead ends that end at a gap between two of them, in a mask with missing roads.
Masks drawn from labels have none, simulated predictions at least twice as many."""


def with_gaps_closed(
    network: RoadGraph,
    options: Tracing,
    *,
    at_border: NDArray[np.bool_],
    mean_probability: MeanProbability | None,
    paths: Callable[[DeadEnds], Links] | None = None,
) -> RoadGraph:
    """Return a network whose gaps are closed.

    A dead end is joined to another one that is near, or that lies ahead and points back, or to the
    edge that it meets when extended; over longer gaps where the probabilities between suggest a
    road, along the most probable path. Links are made in order of their cost (length, less
    where probable), one per dead end.

    Without probabilities dead ends are extended to edges only if roads are interrupted elsewhere:
    a mask without a gap between two dead ends is complete, and its dead ends are real.
    """
    tips = np.flatnonzero((degrees(network) == 1) & ~at_border)
    if not len(tips):
        return network
    dead_ends = DeadEnds.of(network, tips)
    if paths is not None:
        options = replace(options, likely_gap_m=min(options.likely_gap_m, options.aligned_gap_m))
    links = _links_between(dead_ends, options, mean_probability)
    gaps = len(links.cheapest(len(tips)).end)
    if mean_probability is not None or 2 * gaps >= _INTERRUPTED * len(tips):
        links = links.joined(_links_to_edges(network, dead_ends, options, mean_probability))
    if paths is not None:
        links = links.joined(paths(dead_ends))
    links = links.cheapest(len(tips))
    return with_links(network, tips[links.end], links.edge, links.along, links.line)


class Links(NamedTuple):
    """Candidate links of dead ends."""

    end: Ints  # (link,): index of a dead end, and of the one that it is linked to (-1: none)
    other: Ints
    # int64 and float64 (link,): edge that the link leads to, and the position on it in metres
    edge: Ints
    along: Floats
    cost: Floats  # (link,): metres, weighted
    # (link,): LineString of a link along a path; None: it is straight
    line: NDArray[np.object_]

    @classmethod
    def straight(cls, end: Ints, other: Ints, edge: Ints, along: Floats, cost: Floats) -> Links:
        """Return straight links."""
        return cls(end, other, edge, along, cost, np.full(len(end), None, object))

    def joined(self, more: Links) -> Links:
        """Return these links and others."""
        return Links._make(map(np.concatenate, zip(self, more, strict=True)))

    def take(self, chosen: list[int] | NDArray[np.bool_]) -> Links:
        """Return some of the links."""
        return Links._make(column[chosen] for column in self)

    def cheapest(self, ends: int) -> Links:
        """Return the links to make, the cheapest first, so that every dead end has at most one."""
        free, taken = np.ones(ends + 1, np.bool_), []
        for link in np.argsort(self.cost, kind="stable").tolist():
            end, other = self.end[link], self.other[link]
            if free[end] and free[other]:
                taken.append(link)
                free[end] = False
                free[other] = other < 0
        return self.take(taken)


@dataclass(frozen=True, slots=True)
class DeadEnds:
    """Dead ends: position, heading, edge, position on that edge, length of that edge."""

    xy: Floats
    heading: Floats
    edge: Ints
    along: Floats
    length: Floats

    @classmethod
    def of(cls, network: RoadGraph, tips: Ints) -> DeadEnds:
        """Return the dead ends at some nodes."""
        flat = np.argsort(network.ends.reshape(-1), kind="stable")
        at = flat[np.searchsorted(network.ends.reshape(-1)[flat], tips)]
        edge, last = at // 2, at % 2 == 1
        length = network.length_m[edge]
        back = np.minimum(_HEADING_M, length)
        behind = shapely.line_interpolate_point(
            network.lines[edge], np.where(last, length - back, back)
        )
        xy = network.nodes[tips]
        step = xy - shapely.get_coordinates(behind)
        size = np.maximum(np.linalg.norm(step, axis=1), 1e-9)[:, None]
        return cls(xy, step / size, edge, np.where(last, length, 0.0), length)


def _links_between(
    ends: DeadEnds, options: Tracing, mean_probability: MeanProbability | None
) -> Links:
    """Return the candidate links of two dead ends."""
    from scipy.spatial import cKDTree

    farthest = max(options.gap_m, options.aligned_gap_m)
    if mean_probability is not None:
        farthest = max(farthest, options.likely_gap_m)
    pairs = cKDTree(ends.xy).query_pairs(farthest, output_type="ndarray").astype(np.int64)
    a, b = pairs.T
    step = ends.xy[b] - ends.xy[a]
    gap = np.linalg.norm(step, axis=1)
    step /= np.maximum(gap, 1e-9)[:, None]
    straight = np.minimum((ends.heading[a] * step).sum(1), -(ends.heading[b] * step).sum(1))
    likely = np.zeros(len(gap), np.bool_)
    if mean_probability is not None:
        likely = mean_probability(ends.xy[a], ends.xy[b]) >= options.hint
    good = (gap <= options.gap_m) & (straight >= _NEAR_COS)
    good &= (ends.heading[a] * ends.heading[b]).sum(1) <= _RETURN_COS
    good |= (gap <= options.aligned_gap_m) & (straight >= _ALIGNED_COS)
    good |= (gap <= options.likely_gap_m) & (straight >= _LIKELY_COS) & likely
    good &= (ends.edge[a] != ends.edge[b]) | (gap < ends.length[a] / 3)
    cost = gap * np.where(likely, _LIKELY_COST, 1.0) * (2 - straight)
    return Links.straight(a, b, ends.edge[b], ends.along[b], cost).take(good)


def _links_to_edges(
    network: RoadGraph,
    ends: DeadEnds,
    options: Tracing,
    mean_probability: MeanProbability | None,
) -> Links:
    """Return the candidate links of dead ends that meet an edge within 30 degrees of straight."""
    reach = options.reach_m * (1.0 if mean_probability is None else _LIKELY_REACH)
    cos, sin = np.cos(_FAN)[:, None], np.sin(_FAN)[:, None]
    x, y = ends.heading.T
    turned_heading = np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1).reshape(-1, 2)
    end = np.tile(np.arange(len(ends.xy)), len(_FAN))
    turned = np.repeat(np.abs(_FAN), len(ends.xy))
    rays = segments(np.stack([ends.xy[end], ends.xy[end] + reach * turned_heading], axis=1))
    ray, edge = shapely.STRtree(network.lines).query(rays, predicate="intersects")
    other = edge != ends.edge[end[ray]]
    ray, edge = ray[other], edge[other]
    end, turned = end[ray], turned[ray]
    start = points(ends.xy[end])
    met = shapely.shortest_line(start, shapely.intersection(rays[ray], network.lines[edge]))
    place = shapely.get_point(met, 1)
    gap: Floats = shapely.length(met)
    likely = np.zeros(len(gap), np.bool_)
    if mean_probability is not None:
        likely = mean_probability(ends.xy[end], shapely.get_coordinates(place)) >= options.hint
    good = (gap <= options.reach_m) | likely
    cost = gap * np.where(likely, _LIKELY_COST, 1.0) * (1 + np.sin(turned))
    along = shapely.line_locate_point(network.lines[edge], place)
    return Links.straight(end, np.full(len(end), -1), edge, along, cost).take(good)
