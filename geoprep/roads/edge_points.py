"""Points on the edges of a network, and the shortest distances from them to its nodes.

A path between two points leaves its first edge at one of two ends and enters its last edge at one
of two, or stays on the edge that both points share. Distances to nodes and four sums per pair of
points therefore suffice: no edge is split, and part of an edge costs its share by length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.graph import ranges
from geoprep.roads.network import RoadGraph
from geoprep.speed import MPS_PER_MPH

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Weight = Literal["length", "time"]
_AT_END_M: Final = 1e-6
_CHORD_M: Final = 0.5
TIE_DIGITS: Final = 7
"""Distances that agree to so many digits of a metre are equal."""
_UNCUT_SHARE: Final = 0.75


@dataclass(frozen=True, slots=True, eq=False)
class EdgePoints:
    """Points on edges, each given by its edge and its distance along that edge."""

    edge: NDArray[np.int64]  # (point,): row of the edge; -1 where the point is on no edge
    # float64 (point,): metres along the edge's line, from 0 to its length. A point less than a
    # micrometre from an end has exactly the value of the end. NaN where the point is on no edge
    along_m: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.edge)

    @property
    def on_edge(self) -> NDArray[np.bool_]:
        """Whether each point is on an edge, bool (point,)."""
        return self.edge >= 0

    def points(self, network: RoadGraph) -> NDArray[np.object_]:
        """Return shapely points, object (point,). All must be on an edge."""
        return shapely.line_interpolate_point(
            network.lines[self.edge], self.along_m * network.stretch[self.edge]
        )

    def __getitem__(self, chosen: slice | NDArray[Any]) -> EdgePoints:
        return EdgePoints(self.edge[chosen], self.along_m[chosen])

    def __add__(self, other: EdgePoints) -> EdgePoints:
        return EdgePoints(
            np.concatenate([self.edge, other.edge]), np.concatenate([self.along_m, other.along_m])
        )


def node_points(network: RoadGraph) -> EdgePoints:
    """Return one point per node with an edge, placed on the first such edge.

    The end of that edge's line decides, should the coordinates of the node differ from it.
    """
    edges = len(network.ends)
    node, at = np.unique(network.ends.T.ravel(), return_index=True)
    edge = at % max(edges, 1)
    along = np.where(at >= edges, network.length_m[edge], 0.0) if len(node) else np.empty(0)
    return EdgePoints(edge.astype(np.int64), along)


def spaced_points(network: RoadGraph, interval_m: float) -> EdgePoints:
    """Return points at equal distances inside the edges, as APLS places its midpoints.

    An edge shorter than three quarters of the interval gets none, one up to the interval a single
    point in its middle, a longer one ``ceil(length / interval) - 1`` points.
    """
    length = network.length_m
    count = np.maximum(np.ceil(length / interval_m) - 1, 1).astype(np.int64)
    count[length < _UNCUT_SHARE * interval_m] = 0
    return even_points(network, count)


def even_points(network: RoadGraph, count: NDArray[np.int64]) -> EdgePoints:
    """Return a number of points inside every edge, at equal distances."""
    edge = np.repeat(np.arange(len(count)), count)
    nth = ranges(np.ones_like(count), count)
    return EdgePoints(edge, network.length_m[edge] * nth / (count[edge] + 1))


def nearest_points(
    network: RoadGraph, own: RoadGraph, points: EdgePoints, within_m: float
) -> EdgePoints:
    """Return the nearest point on any edge of a network to each of some points of another one.

    Where several are at the same distance, as under a bridge, the road with the same heading is
    taken, then the edge that is most like the point's own.
    """
    places, tree = points.points(own), shapely.STRtree(network.lines)
    (near, _), away = tree.query_nearest(places, max_distance=within_m, return_distance=True)
    near, first = np.unique(near, return_index=True)
    reach = away[first] + 10.0**-TIE_DIGITS
    at, line = tree.query(places[near], predicate="dwithin", distance=reach)
    point = near[at]
    stretch = network.stretch[line]
    located = shapely.line_locate_point(network.lines[line], places[point]) / stretch
    length = shapely.length(network.lines[line]) / stretch
    located = np.where(located >= length - _AT_END_M, length, located)
    located = np.where(located <= _AT_END_M, 0.0, located)
    found = EdgePoints(line.astype(np.int64), located)
    order = np.lexsort((line, *unlikeness(own, points[point], network, found), point))
    matched, first = np.unique(point[order], return_index=True)
    nearest = EdgePoints(np.full(len(points), -1), np.full(len(points), np.nan))
    nearest.edge[matched] = line[order][first]
    nearest.along_m[matched] = located[order][first]
    return nearest


def unlikeness(
    own: RoadGraph, here: EdgePoints, other: RoadGraph, there: EdgePoints
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how much each two points differ in length and place along their edges, and in heading.

    In rising order of importance, as `numpy.lexsort` takes them.
    """
    turn = 1 - cosine(headings(own, here), headings(other, there))
    unlike = np.zeros(len(here))
    lengths = own.length_m[here.edge], other.length_m[there.edge]
    for edge_side in (np.minimum, np.maximum):
        a, b = (
            edge_side(along, length - along)
            for along, length in zip((here.along_m, there.along_m), lengths, strict=True)
        )
        unlike += np.abs(a - b)
    return np.round(unlike, 3), np.round(turn, 3)


def headings(network: RoadGraph, points: EdgePoints) -> Floats:
    """Return the direction of the road at each point as a unit vector, float64 (point, 2)."""
    lines, length = network.lines[points.edge], network.length_m[points.edge]
    stretch = network.stretch[points.edge]
    after = np.minimum(points.along_m + _CHORD_M, length) * stretch
    before = np.maximum(points.along_m - _CHORD_M, 0) * stretch
    chord = shapely.get_coordinates(shapely.line_interpolate_point(lines, after))
    chord -= shapely.get_coordinates(shapely.line_interpolate_point(lines, before))
    size = np.hypot(*chord.T)[:, None]
    heading: Floats = np.divide(chord, size, out=np.zeros_like(chord), where=size > 0)
    return heading


def cosine(heading: Floats, other: Floats) -> Floats:
    """Return the cosine of the angle between roads, regardless of their direction of travel."""
    cosine: Floats = np.abs((heading * other).sum(axis=1))
    return cosine


@dataclass(frozen=True, eq=False)
class CostGraph:
    """A network with the cost of every edge: metres, or seconds of travel."""

    node_count: int
    ends: NDArray[np.int64]  # (edge, 2): nodes of every edge
    cost: NDArray[np.float64]  # (edge,): cost from end to end
    per_m: NDArray[np.float64]  # (edge,): cost per metre along the edge's line
    length_m: NDArray[np.float64]  # (edge,): length of the line in metres

    @cached_property
    def cheapest(self) -> csr_array:
        """Cost of the cheapest edge between two nodes, float64 (node, node), without loops."""
        from scipy.sparse import csr_array

        order = np.argsort(self.cost, kind="stable")
        order = order[self.ends[order, 0] != self.ends[order, 1]]
        # A sparse matrix adds up parallel edges: of each pair of nodes, its first one stays.
        pairs, first = np.unique(np.sort(self.ends[order], axis=1), axis=0, return_index=True)
        shape = (self.node_count, self.node_count)
        half = csr_array((self.cost[order][first], pairs.T), shape=shape)
        return half.maximum(half.T)

    def from_ends(self, points: EdgePoints) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the shortest distances from the ends of the edges of some points to all nodes.

        They are float64 (row, node), infinite where there is no path, and the rows of both ends of
        each edge, int64 (point, 2). Points on no edge have those of the first edge.
        """
        from scipy.sparse.csgraph import dijkstra

        ends = self.ends[np.where(points.on_edge, points.edge, 0)]
        nodes, rows = np.unique(ends, return_inverse=True)
        return dijkstra(self.cheapest, indices=nodes), rows.reshape(-1, 2)

    def cost_to_ends(self, points: EdgePoints) -> NDArray[np.float64]:
        """Return the cost from every point to both ends of its edge, float64 (point, 2).

        Infinite for points on no edge.
        """
        first = points.along_m * self.per_m[points.edge]
        cost = self.cost[points.edge]
        first = np.where(points.along_m >= self.length_m[points.edge], cost, first)
        both = np.column_stack([first, cost - first])
        both[~points.on_edge] = np.inf
        return both


def cost_graph(network: RoadGraph, weight: Weight = "length") -> CostGraph:
    """Return a network with the cost of its edges; for times all speeds must be known."""
    per_m = np.ones(len(network.ends))
    if weight == "time":
        per_m = 1 / (network.speed_mph * MPS_PER_MPH)
    cost = network.length_m * per_m
    return CostGraph(len(network.nodes), network.ends, cost, per_m, network.length_m)
