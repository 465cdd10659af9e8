"""The sum of APLS terms over all pairs of control points of a large network, in bounded memory.

Control points are taken as sources in blocks of 64: first their distances to all nodes of both
networks, then, pair by pair, the path to every other control point and its term. No array grows
with the square of the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled_sums
from geoprep.executors import Threads
from geoprep.roads.paths import CostGraph, EdgePoints
from geoprep.roads.paths.contraction import ContractionHierarchy, contraction_hierarchy

_SOURCES: Final = 64
_NO_EDGE: Final = -1
_NEVER_SHARED: Final = -2

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _ControlPoints:
    """Control points in one of the two networks."""

    hierarchy: ContractionHierarchy  # the network
    edge: Ints  # (point,): edge of each point; -1 where it is on no edge
    seeds: Ints  # int64 and float64 (point, 2): rows of the ends of that edge, and the cost to each
    costs: Floats
    last_use: Ints  # (rank,): see `ContractionHierarchy.last_use`

    def node_distances(self, begin: int) -> Floats:
        """Return the distances from a block of points to the nodes that later points need."""
        distances = np.empty((len(self.hierarchy.rows), _SOURCES))
        block = slice(begin, begin + _SOURCES)
        self.hierarchy.fill_distances(
            self.seeds[block], self.costs[block], distances, self.last_use, begin
        )
        return distances


def sum_of_terms_in_blocks(
    own: CostGraph,
    here: EdgePoints,
    other: CostGraph,
    there: EdgePoints,
    min_path: float,
    threads: int | None,
) -> tuple[float, int]:
    """Return the sum of the terms of all ordered pairs, and the number of terms.

    Time grows with the number of control points times that of nodes and control points; memory is
    64 distances per node and thread. Paths are as long in either direction, so each two points are
    compared once and counted twice.
    """
    hierarchy = contraction_hierarchy(own)
    # Points near each other share a block: then nodes are needed for few blocks only.
    order = np.argsort(hierarchy.row[own.ends[here.edge, 0]], kind="stable")
    one = _control_points(own, hierarchy, here, order)
    two = _control_points(other, contraction_hierarchy(other), there, order)
    # Every path from a missing point counts, even the shortest.
    least = np.where(two.edge == _NO_EDGE, 0.0, min_path)

    def run(begin: int) -> tuple[float, float]:
        return _sum_of_terms(
            one.node_distances(begin), one.edge, one.seeds, one.costs,
            two.node_distances(begin), two.edge, two.seeds, two.costs,
            least, begin,
        )  # fmt: skip

    blocks = Threads(threads).map_ordered(run, range(0, len(here), _SOURCES))
    return math.fsum(total for total, _ in blocks), int(sum(count for _, count in blocks))


def _control_points(
    graph: CostGraph, hierarchy: ContractionHierarchy, points: EdgePoints, order: Ints
) -> _ControlPoints:
    """Return control points in a given order."""
    points = EdgePoints(points.edge[order], points.along_m[order])
    seeds = hierarchy.row[graph.ends[points.edge]]
    seeds[~points.on_edge] = 0
    costs = graph.cost_to_ends(points)
    return _ControlPoints(hierarchy, points.edge, seeds, costs, hierarchy.last_use(seeds))


@compiled_sums
def _sum_of_terms(
    near: Floats, edge: Ints, seeds: Ints, costs: Floats,
    far: Floats, edge_2: Ints, seeds_2: Ints, costs_2: Floats,
    least: Floats, begin: int,
) -> tuple[float, float]:  # fmt: skip
    """Return the sum and number of the terms from some sources to all later points and back."""
    width = near.shape[1]
    total, count = 0.0, 0.0
    from_edge, from_edge_2 = np.full(width, _NEVER_SHARED), np.full(width, _NEVER_SHARED)
    from_cost, from_cost_2, from_least = np.zeros(width), np.zeros(width), np.zeros(width)
    used = min(width, len(edge) - begin)
    for source in range(used):
        point = begin + source
        from_edge[source], from_cost[source] = edge[point], costs[point, 0]
        from_least[source] = least[point]
        if edge_2[point] != _NO_EDGE:  # two missing points share no edge
            from_edge_2[source], from_cost_2[source] = edge_2[point], costs_2[point, 0]
    for point in range(begin + 1, len(edge)):
        first, second = near[seeds[point, 0]], near[seeds[point, 1]]
        first_2, second_2 = far[seeds_2[point, 0]], far[seeds_2[point, 1]]
        cost, back, on = costs[point, 0], costs[point, 1], edge[point]
        cost_2, back_2, on_2 = costs_2[point, 0], costs_2[point, 1], edge_2[point]
        to_least = least[point]
        for source in range(min(used, point - begin)):
            # A path enters the last edge by one of its ends, or stays on the shared edge.
            path, other = first[source] + cost, second[source] + back
            path = other if other < path else path
            along = abs(from_cost[source] - cost)
            path = along if on == from_edge[source] and along < path else path
            path_2, other = first_2[source] + cost_2, second_2[source] + back_2
            path_2 = other if other < path_2 else path_2
            along = abs(from_cost_2[source] - cost_2)
            path_2 = along if on_2 == from_edge_2[source] and along < path_2 else path_2
            term = abs(path - path_2) / path
            term = term if term < 1.0 else 1.0  # also for NaN: no path in either network
            times = (1.0 if path >= from_least[source] else 0.0) + (
                1.0 if path >= to_least else 0.0
            )
            times = times if path < np.inf else 0.0
            total += term * times
            count += times
    return total, count
