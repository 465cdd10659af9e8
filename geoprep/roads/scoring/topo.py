"""TOPO: similarity of the surroundings of the same points in two road networks.

Graph sampling (Biagioni and Eriksson 2012, "Inferring Road Maps from Global Positioning System
Traces") in the form of RoadTracer (arXiv:1802.03680) and Sat2Graph (arXiv:2007.09547):

1. Starting points lie every 50 m along the edges of the ground truth. Each is paired with the
   nearest point of the proposal within 10 m where the roads run in about the same direction.
2. From both, the network is followed up to 150 m (300 m for scenes of some kilometres). Every 5 m
   this leaves a hole in the ground truth, and a marble in the proposal.
3. A marble matches a hole within 10 m if the roads run within 45 degrees of each other. Matching is
   one to one, and as many pairs as possible are matched (maximum matching).
4. Precision is the share of matched marbles, averaged over paired starting points. Recall is the
   share of matched holes, averaged over all starting points; those without a pair count 0.

Published figures of Sat2Graph and its successors come from a program with other rules
(github.com/songtaohe/Sat2Graph, metrics/topo): distances 1.11 times as long (0.0001 degrees of
latitude for 10 m), two marbles per hole for precision, and of starting points that share a road
only the best. On the published pair of that repository, with a radius of 300 m, the rules above
give precision 0.845 and recall 0.872 for 0.874 and 0.858.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.edge_points import (
    TIE_DIGITS,
    EdgePoints,
    cosine,
    even_points,
    headings,
    unlikeness,
)
from geoprep.roads.graph import ranges
from geoprep.roads.network import RoadGraph
from geoprep.roads.options import TOPO_INTERVAL_M, TOPO_MATCH_M

_START_SPACING_M: Final = 50.0
_START_COSINE: Final = 0.96  # of the angle between roads: 16 degrees, as in Sat2Graph
_MATCH_COSINE: Final = 0.71  # 45 degrees, as in Sat2Graph

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TopoScore:
    """Precision, recall and their harmonic mean, each from 0 to 1."""

    f1: float  # the scores
    precision: float
    recall: float
    starts: int  # number of starting points


def topo(
    truth: RoadGraph,
    proposal: RoadGraph,
    *,
    radius_m: float = 150.0,
    match_m: float = TOPO_MATCH_M,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> TopoScore:
    """Return the graph sampling score of two networks in one plane of metres.

    All scores are 0 if either network has no roads.
    """
    if not len(truth.ends) or not len(proposal.ends):
        return TopoScore(0.0, 0.0, 0.0, 0)
    points = _starting_points(truth)
    pairs = _paired_points(truth, points, proposal, match_m)
    truth_walks, proposal_walks = Walks(truth, radius_m), Walks(proposal, radius_m)
    precision, recall = [], []
    for start in np.flatnonzero(pairs.on_edge).tolist():
        holes = _Marbles.left_by(truth_walks, points, start)
        marbles = _Marbles.left_by(proposal_walks, pairs, start)
        matched = _matched(holes, marbles, match_m)
        recall.append(matched / len(holes.xy))
        precision.append(matched / len(marbles.xy))
        advance(start + 1, len(points))
    if not precision:
        return TopoScore(0.0, 0.0, 0.0, len(points))
    p, r = float(np.mean(precision)), float(np.sum(recall) / len(points))
    return TopoScore(2 * p * r / (p + r) if p + r else 0.0, p, r, len(points))


def _starting_points(network: RoadGraph) -> EdgePoints:
    """Return points inside the edges, about 50 m apart; none on edges below half of it."""
    length = network.length_m
    count = np.maximum(length // _START_SPACING_M, 1).astype(np.int64)
    count[length < _START_SPACING_M / 2] = 0
    if not count.any():  # only short edges: start on the longest
        count[np.argmax(length)] = 1
    return even_points(network, count)


def _paired_points(
    truth: RoadGraph, starts: EdgePoints, proposal: RoadGraph, match_m: float
) -> EdgePoints:
    """Return the nearest point of the proposal in the direction of the road at each start."""
    points, heading = starts.points(truth), headings(truth, starts)
    tree = shapely.STRtree(proposal.lines)
    start, edge = tree.query(points, predicate="dwithin", distance=match_m)
    along = shapely.line_locate_point(proposal.lines[edge], points[start])
    along = along / proposal.stretch[edge]
    aligned = cosine(heading[start], headings(proposal, EdgePoints(edge, along))) > _START_COSINE
    start, edge, along = start[aligned], edge[aligned], along[aligned]
    away = np.round(shapely.distance(points[start], proposal.lines[edge]), TIE_DIGITS)
    unlike = unlikeness(truth, starts[start], proposal, EdgePoints(edge, along))
    order = np.lexsort((edge, *unlike, away, start))
    first = order[np.unique(start[order], return_index=True)[1]]
    pairs = EdgePoints(np.full(len(starts), -1), np.full(len(starts), np.nan))
    pairs.edge[start[first]], pairs.along_m[start[first]] = edge[first], along[first]
    return pairs


class Walks:
    """Walks along a network, up to a distance by road in metres from where they start."""

    def __init__(self, network: RoadGraph, radius_m: float) -> None:
        self.network = network
        self._radius_m = radius_m
        # Per node its edges: edge, node at the other end, length, 1 along the line or -1 against it
        self._links: list[list[tuple[int, int, float, float]]] = [[] for _ in network.nodes]
        ends, lengths = network.ends.tolist(), network.length_m.tolist()
        for edge, ((start, stop), length) in enumerate(zip(ends, lengths, strict=True)):
            self._links[start].append((edge, stop, length, 1.0))
            self._links[stop].append((edge, start, length, -1.0))

    def points_from(self, edge: int, along_m: float, interval_m: float) -> EdgePoints:
        """Return the starting point and every point a multiple of the interval from it by road.

        A point that several paths reach appears once, at its shortest distance.
        """
        table = np.array(self._stretches(edge, along_m))
        line, (begin, sign, from_m, length) = table[:, 0].astype(np.int64), table[:, 1:].T
        reach = np.minimum(from_m + length, self._radius_m)
        first = np.floor(from_m / interval_m).astype(np.int64) + 1
        count = np.maximum(np.floor(reach / interval_m).astype(np.int64) + 1 - first, 0)
        piece = np.repeat(np.arange(len(count)), count)
        forth = ranges(first, count) * interval_m - from_m[piece]
        along = begin[piece] + sign[piece] * forth
        return EdgePoints(np.append(edge, line[piece]), np.append(along_m, along))

    def _stretches(self, edge: int, along_m: float) -> list[tuple[int, float, float, float, float]]:
        """Return the stretches of edges walked, each up to where a shorter path meets it.

        A stretch is its edge, metres along it where it begins, 1 or -1 for along or against the
        line, metres by road from the start to where it begins, and its length in metres.
        """
        length = float(self.network.length_m[edge])
        first, last = self.network.ends[edge].tolist()
        stumps = ((first, along_m, -1.0), (last, length - along_m, 1.0))
        walked = self._distances([(stump, node) for node, stump, _ in stumps])
        stretches = []
        for node, stump, sign in stumps:
            there = walked.get(node, np.inf)
            stretches.append((edge, along_m, sign, 0.0, min(stump, (stump + there) / 2)))
            if there < stump:  # the path round the block is shorter
                from_end = 0.0 if sign < 0 else length
                stretches.append((edge, from_end, -sign, there, (stump - there) / 2))
        for node, here in walked.items():
            for other_edge, other, size, sign in self._links[node]:
                if other_edge != edge:
                    met = min(size, (size + walked.get(other, np.inf) - here) / 2)
                    stretches.append((other_edge, 0.0 if sign > 0 else size, sign, here, met))
        return stretches

    def _distances(self, queue: list[tuple[float, int]]) -> dict[int, float]:
        """Return the nodes within the radius and their distances in metres (Dijkstra).

        The queue holds distances to the nodes next to the start.
        """
        walked: dict[int, float] = {}
        heapq.heapify(queue)
        while queue:
            here, node = heapq.heappop(queue)
            if here > self._radius_m or node in walked:
                continue
            walked[node] = here
            for _, other, length, _ in self._links[node]:
                if other not in walked:
                    heapq.heappush(queue, (here + length, other))
        return walked


@dataclass(frozen=True, slots=True, eq=False)
class _Marbles:
    """Points along the roads from one starting point."""

    xy: Floats  # (marble, 2): x and y in metres
    heading: Floats  # (marble, 2): unit vectors along the road

    @classmethod
    def left_by(cls, walks: Walks, starts: EdgePoints, start: int) -> _Marbles:
        """Return the marbles that a walk from one of the starting points leaves."""
        points = walks.points_from(
            int(starts.edge[start]), float(starts.along_m[start]), TOPO_INTERVAL_M
        )
        xy = shapely.get_coordinates(points.points(walks.network))
        return cls(xy, headings(walks.network, points))


def _matched(holes: _Marbles, marbles: _Marbles, match_m: float) -> int:
    """Return the size of the maximum one-to-one matching of marbles and holes."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching
    from scipy.spatial import cKDTree

    close = cKDTree(marbles.xy).sparse_distance_matrix(
        cKDTree(holes.xy), match_m, output_type="ndarray"
    )
    fits = cosine(marbles.heading[close["i"]], holes.heading[close["j"]]) > _MATCH_COSINE
    i, j = close["i"][fits], close["j"][fits]
    order = np.argsort(i)  # SciPy needs longer to order pairs itself
    begins = np.searchsorted(i[order], np.arange(len(marbles.xy) + 1))
    shape = (len(marbles.xy), len(holes.xy))
    graph = csr_array((np.ones(len(i), np.int8), j[order], begins), shape=shape)
    return int((maximum_bipartite_matching(graph, perm_type="column") >= 0).sum())
