"""The sum of APLS terms over all pairs of control points of two networks, in bounded memory.

Control points are taken as sources in blocks: first their distances to all nodes of both networks,
then, pair by pair, the path to every other control point and its term. No array grows with the
square of the network.
"""

from __future__ import annotations

import math
import threading
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled_sums
from geoprep.executors import Threads
from geoprep.roads.paths.distances import PairedPoints

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SOURCES: Final = 512


def sums_of_terms(
    there: PairedPoints, back: PairedPoints, threads: int | None
) -> list[tuple[float, float]]:
    """Return the sum of the terms of all ordered pairs, and their number, for both directions.

    Both directions need the distances from the same nodes. Paths are as long either way, so each
    two points are compared once and counted twice.
    """
    there.own.to_nodes(there.here[:1])  # prepares both networks before threads need them
    there.other.to_nodes(back.here[:1])
    points = len(there.here), len(back.here)
    blocks = math.ceil(sum(points) / _SOURCES)
    memory = threading.local()  # fresh memory for each block would take a third of the time

    def block(number: int) -> list[tuple[float, float]]:
        a, b = (slice(number * n // blocks, (number + 1) * n // blocks) for n in points)
        if not hasattr(memory, "near"):
            memory.near, memory.far = (
                np.empty(len(graph.nodes) * (_SOURCES + 1)) for graph in (there.own, there.other)
            )
        late, late_back = slice(a.start, None), slice(b.start, None)
        near = there.own.to_nodes(
            there.here[a] + back.there[b], there.here[late] + back.there[late_back], memory.near
        )
        far = there.other.to_nodes(
            there.there[a] + back.here[b], there.there[late] + back.here[late_back], memory.far
        )
        cut = a.stop - a.start
        return [
            _terms_from(there, near, far, a, 0),
            _terms_from(back, far, near, b, cut),
        ]

    sums = np.array(Threads(threads).map_ordered(block, range(blocks)))
    return [(math.fsum(total), float(count.sum())) for total, count in sums.transpose(1, 2, 0)]


def _terms_from(
    points: PairedPoints, near: Floats, far: Floats, block: slice, column: int
) -> tuple[float, float]:
    """Return the sum and number of the terms from a block of points to all later ones and back."""
    here, there = points.here, points.there
    return _sum_of_terms(
        near, here.edge, points.own.ends[here.edge],
        points.own.cost_to_ends(here),
        far, there.edge, points.other.ends[there.edge],
        points.other.cost_to_ends(there),
        points.least, block.start, block.stop, column,
    )  # fmt: skip


@compiled_sums
def _sum_of_terms(
    near: Floats, edge: Ints, ends: Ints, costs: Floats,
    far: Floats, edge_2: Ints, ends_2: Ints, costs_2: Floats,
    least: Floats, begin: int, end: int, column: int,
) -> tuple[float, float]:  # fmt: skip
    """Return the sum and number of the terms from some sources to all later points and back."""
    total, count = 0.0, 0.0
    sources = slice(begin, end)
    from_edge, from_cost = edge[sources], costs[sources, 0].copy()
    from_edge_2, from_cost_2 = edge_2[sources], costs_2[sources, 0].copy()
    from_least = least[sources]
    for point in range(begin + 1, len(edge)):
        first, second = near[ends[point, 0]][column:], near[ends[point, 1]][column:]
        first_2, second_2 = far[ends_2[point, 0]][column:], far[ends_2[point, 1]][column:]
        cost, back, on = costs[point, 0], costs[point, 1], edge[point]
        cost_2, back_2, on_2 = costs_2[point, 0], costs_2[point, 1], edge_2[point]
        to_least = least[point]
        for source in range(min(end, point) - begin):
            # A path enters the last edge by one of its ends, or stays on the shared edge.
            path, other = first[source] + cost, second[source] + back
            path = other if other < path else path
            along = abs(from_cost[source] - cost)
            path = along if on == from_edge[source] and along < path else path
            path_2, other = first_2[source] + cost_2, second_2[source] + back_2
            path_2 = other if other < path_2 else path_2
            along = abs(from_cost_2[source] - cost_2)  # NaN if both points are missing
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
