"""The terms of APLS over all pairs of control points of a city, in bounded memory.

Sources are taken 64 at a time: their distances to all junctions of both networks, then, pair by
pair, the ways to every other control point and the term. Nothing that grows with the square of the
network is ever kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled_sums
from geoprep.executors import Threads
from geoprep.roads.paths.distances import Track
from geoprep.roads.paths.hierarchy import Hierarchy, hierarchy
from geoprep.roads.paths.places import Places

SOURCES: Final = 64
NOWHERE: Final = -1
UNUSED: Final = -2

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """Control points in one network: edge (n,), seeds (n, 2) and costs to them (n, 2)."""

    tree: Hierarchy
    edge: Ints
    seeds: Ints
    costs: Floats

    last_use: Ints

    def reach(self, begin: int) -> Floats:
        """Return the distances from SOURCES points on to all rows that these and later points need.

        float64 (row, SOURCES).
        """
        ways = np.empty((len(self.tree.rows), SOURCES))
        block = slice(begin, begin + SOURCES)
        self.tree.reach(self.seeds[block], self.costs[block], ways, self.last_use, begin)
        return ways


def sum_of_terms_in_blocks(
    own: Track, here: Places, other: Track, there: Places, min_path: float, threads: int | None
) -> tuple[float, int]:
    """Return the sum of the terms of all ordered pairs, and their number.

    Takes as long as the number of control points times that of junctions and control points, and
    keeps ``SOURCES`` distances per junction and thread. A way is as long as the way back, so every
    two points meet once.
    """
    tree = hierarchy(own)
    # Neighbours share blocks, and what the last block needed first is needed no more.
    order = np.argsort(tree.row[own.ends[here.edge, 0]], kind="stable")
    one, two = _side(own, tree, here, order), _side(other, hierarchy(other), there, order)
    # Of a missing point every way counts, even the shortest.
    least = np.where(two.edge == NOWHERE, 0.0, min_path)

    def run(begin: int) -> tuple[float, float]:
        return _sum_of_terms(
            one.reach(begin), one.edge, one.seeds, one.costs,
            two.reach(begin), two.edge, two.seeds, two.costs,
            least, begin,
        )  # fmt: skip

    parts = Threads(threads).map_ordered(run, range(0, len(here), SOURCES))
    return math.fsum(total for total, _ in parts), int(sum(count for _, count in parts))


def _side(track: Track, tree: Hierarchy, places: Places, order: Ints) -> _Side:
    places = Places(places.edge[order], places.along_m[order])
    seeds = tree.row[track.ends[places.edge]]
    seeds[~places.found] = 0
    return _Side(tree, places.edge, seeds, track.to_ends(places), tree.last_use(seeds))


@compiled_sums
def _sum_of_terms(
    near: Floats, edge: Ints, seeds: Ints, costs: Floats,
    far: Floats, edge_2: Ints, seeds_2: Ints, costs_2: Floats,
    least: Floats, begin: int,
) -> tuple[float, float]:  # fmt: skip
    """Return the sum of the terms from some sources to all later points and back, and their number.

    Parameters
    ----------
    near, far
        float64 (row, source): distances from the sources in both networks.
    edge, seeds, costs
        Of all control points; ``_2`` in the other network, where a missing one costs infinity.
    least
        float64 (point,): shortest way that counts from a point.
    begin
        The first source among the points; the others follow.
    """
    width = near.shape[1]
    total, count = 0.0, 0.0
    from_edge, from_edge_2 = np.full(width, UNUSED), np.full(width, UNUSED)
    from_cost, from_cost_2, from_least = np.zeros(width), np.zeros(width), np.zeros(width)
    used = min(width, len(edge) - begin)
    for source in range(used):
        point = begin + source
        from_edge[source], from_cost[source] = edge[point], costs[point, 0]
        from_least[source] = least[point]
        if edge_2[point] != NOWHERE:  # missing is not an edge that two points can be on
            from_edge_2[source], from_cost_2[source] = edge_2[point], costs_2[point, 0]
    for point in range(begin + 1, len(edge)):
        first, second = near[seeds[point, 0]], near[seeds[point, 1]]
        first_2, second_2 = far[seeds_2[point, 0]], far[seeds_2[point, 1]]
        cost, back, on = costs[point, 0], costs[point, 1], edge[point]
        cost_2, back_2, on_2 = costs_2[point, 0], costs_2[point, 1], edge_2[point]
        to_least = least[point]
        for source in range(min(used, point - begin)):
            # A way leaves by one end of an edge and enters by one, or stays on the edge.
            way, other = first[source] + cost, second[source] + back
            way = other if other < way else way
            along = abs(from_cost[source] - cost)
            way = along if on == from_edge[source] and along < way else way
            way_2, other = first_2[source] + cost_2, second_2[source] + back_2
            way_2 = other if other < way_2 else way_2
            along = abs(from_cost_2[source] - cost_2)
            way_2 = along if on_2 == from_edge_2[source] and along < way_2 else way_2
            term = abs(way - way_2) / way
            term = term if term < 1.0 else 1.0  # not a number, too: no way at all there
            times = (1.0 if way >= from_least[source] else 0.0) + (1.0 if way >= to_least else 0.0)
            times = times if way < np.inf else 0.0
            total += term * times
            count += times
    return total, count
