"""APLS: similarity of two road networks by the lengths of the paths through them.

Average Path Length Similarity (Van Etten, Lindenbaum, Bacastow 2018, "SpaceNet: A Remote Sensing
Dataset and Challenge Series", arXiv:1807.01232), with the details of CosmiQ's reference program:

1. Control points of one network are its nodes and, every 50 m, points along its edges.
2. Each is matched to the nearest point on an edge of the other network, whose nodes stay as they
   are; of several equally near, to the one whose road has the same heading. A control point without
   an edge within 4 m is missing there.
3. Every ordered pair of control points with a path of length ``d`` in its own network contributes
   the term ``min(1, |d - d'| / d)``, where ``d'`` is the length of the path in the other network.
   The term is 1 if a point is missing or there is no path.
4. One minus the mean term is the score of this direction. APLS is the harmonic mean of both
   directions.

All pairs are counted, whatever the size of the networks; nothing is sampled. Three mistakes of the
reference program are not repeated: points do not change places because of their names, part of an
edge keeps the speed of that edge, and two points on one spot are both kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled_sums
from geoprep.executors.threads import Threads
from geoprep.roads.edge_points import (
    CostGraph,
    EdgePoints,
    Weight,
    cost_graph,
    nearest_points,
    node_points,
    spaced_points,
)
from geoprep.roads.network import RoadGraph

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_STRIP_M: Final = 500.0
"""Control points are taken in strips of this width: those near each other share nodes."""
_LEAST_PATH: Final = 0.001
_BLOCK: Final = 2048
"""Control points whose distances to all nodes are in memory."""
_THREADS: Final = 2
"""One computes shortest distances, for which SciPy keeps Python's lock, and one sums terms."""


@dataclass(frozen=True, slots=True)
class AplsScore:
    """APLS and its two directions, each from 0 to 1."""

    score: float  # harmonic mean of the two directions; 0 if either is 0
    # Paths of the ground truth compared in the proposal: falls with missed roads
    truth_to_proposal: float
    # Paths of the proposal compared in the ground truth: falls with false roads
    proposal_to_truth: float


def apls(
    truth: RoadGraph,
    proposal: RoadGraph,
    *,
    weight: Weight = "length",
    control_point_spacing_m: float | None = 50.0,
    snap_m: float = 4.0,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> AplsScore:
    """Return the average path length similarity of two networks in one plane of metres.

    A network without roads scores 0 against any other: leave scenes without roads in the ground
    truth out of a mean. A network scores 1 against itself, unless it is a single point.
    """
    if not len(truth.ends) or not len(proposal.ends):
        return AplsScore(0.0, 0.0, 0.0)
    truth_costs, proposal_costs = cost_graph(truth, weight), cost_graph(proposal, weight)
    there = _matched(truth, truth_costs, proposal, proposal_costs, control_point_spacing_m, snap_m)
    back = _matched(proposal, proposal_costs, truth, truth_costs, control_point_spacing_m, snap_m)
    sums = sums_of_terms(there, back, advance)
    forth, reverse = (1 - total / count if count else 0.0 for total, count in sums)
    score = 2 * forth * reverse / (forth + reverse) if forth > 0 and reverse > 0 else 0.0
    return AplsScore(score, forth, reverse)


def control_points(network: RoadGraph, spacing_m: float | None = 50.0) -> EdgePoints:
    """Return the control points of a network: its nodes, and points along its edges."""
    nodes = node_points(network)
    return nodes if spacing_m is None else nodes + spaced_points(network, spacing_m)


@dataclass(frozen=True, slots=True)
class MatchedPoints:
    """The control points of one network, and where they lie in another one."""

    own: CostGraph
    here: EdgePoints
    other: CostGraph
    there: EdgePoints
    least: Floats  # (point,): shortest path from a point that counts


def _matched(
    own: RoadGraph,
    own_costs: CostGraph,
    other: RoadGraph,
    other_costs: CostGraph,
    spacing_m: float | None,
    snap_m: float,
) -> MatchedPoints:
    here = control_points(own, spacing_m)
    x, y = own.nodes[own.ends[here.edge, 0]].T
    here = here[np.lexsort((y, x // _STRIP_M))]
    there = nearest_points(other, own, here, snap_m)
    # Every path from a missing point counts, even the shortest, as in the reference program.
    least = np.where(there.on_edge, _LEAST_PATH, 0.0)
    return MatchedPoints(own_costs, here, other_costs, there, least)


def sums_of_terms(
    there: MatchedPoints,
    back: MatchedPoints,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[tuple[float, float]]:
    """Return the sum of the terms of all ordered pairs, and their number, for both directions.

    Control points are taken as sources in blocks, so that no array grows with the square of the
    networks: first their distances to all nodes of both networks, then, pair by pair, the path to
    every later control point and its term. Both directions need the distances from the same nodes.
    Paths are as long either way, so each two points are compared once and counted twice.
    """
    points = len(there.here), len(back.here)
    blocks = math.ceil(sum(points) / _BLOCK)

    def sums_of_block(number: int) -> list[tuple[float, float]]:
        a, b = (slice(number * n // blocks, (number + 1) * n // blocks) for n in points)
        near, near_rows = there.own.from_ends(there.here[a] + back.there[b])
        far, far_rows = there.other.from_ends(there.there[a] + back.here[b])
        cut = a.stop - a.start
        return [
            _terms_from(there, near, near_rows[:cut], far, far_rows[:cut], a.start),
            _terms_from(back, far, far_rows[cut:], near, near_rows[cut:], b.start),
        ]

    executor = Threads(_THREADS)
    sums = []
    for sums_of_one in executor.map_unordered(sums_of_block, range(blocks)):
        sums.append(sums_of_one)
        advance(len(sums), blocks)
    return [
        (math.fsum(total for total, _ in direction), sum(count for _, count in direction))
        for direction in zip(*sums, strict=True)
    ]


def _terms_from(
    points: MatchedPoints, near: Floats, rows: Ints, far: Floats, rows_2: Ints, begin: int
) -> tuple[float, float]:
    """Return the sum and number of the terms from a block of points to all later ones and back.

    ``near`` and ``far`` are the distances from ends of edges to all nodes of their own and of the
    other network; the block begins with the point number ``begin``.
    """
    here, there = points.here, points.there
    return _sum_of_terms(
        near, rows, here.edge, points.own.ends[here.edge], points.own.cost_to_ends(here),
        far, rows_2, there.edge, points.other.ends[there.edge], points.other.cost_to_ends(there),
        points.least, begin,
    )  # fmt: skip


@compiled_sums
def _sum_of_terms(
    near: Floats, rows: Ints, edge: Ints, ends: Ints, costs: Floats,
    far: Floats, rows_2: Ints, edge_2: Ints, ends_2: Ints, costs_2: Floats,
    least: Floats, begin: int,
) -> tuple[float, float]:  # fmt: skip
    """Return the sum and number of the terms from some sources to all later points and back."""
    total, count = 0.0, 0.0
    for number in range(len(rows)):
        source = begin + number
        # A path leaves the first edge by one of its ends.
        away = np.minimum(
            near[rows[number, 0]] + costs[source, 0], near[rows[number, 1]] + costs[source, 1]
        )
        away_2 = np.minimum(
            far[rows_2[number, 0]] + costs_2[source, 0], far[rows_2[number, 1]] + costs_2[source, 1]
        )
        for point in range(source + 1, len(edge)):
            # It enters the last edge by one of its ends, or stays on the shared edge.
            path = min(
                away[ends[point, 0]] + costs[point, 0], away[ends[point, 1]] + costs[point, 1]
            )
            if edge[point] == edge[source]:
                path = min(path, abs(costs[source, 0] - costs[point, 0]))
            path_2 = min(
                away_2[ends_2[point, 0]] + costs_2[point, 0],
                away_2[ends_2[point, 1]] + costs_2[point, 1],
            )
            along = abs(costs_2[source, 0] - costs_2[point, 0])  # NaN if both points are missing
            if edge_2[point] == edge_2[source] and along < path_2:
                path_2 = along
            if path < np.inf:
                term = abs(path - path_2) / path
                term = term if term < 1.0 else 1.0  # also for NaN: no length at all
                times = int(path >= least[source]) + int(path >= least[point])
                total += term * times
                count += times
    return total, count
