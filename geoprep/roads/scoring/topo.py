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

Published figures of Sat2Graph and its successors come from a program with other rules, which the
variant ``sat2graph`` follows (github.com/songtaohe/Sat2Graph, metrics/topo):

- Its distances are in degrees of latitude: 0.0001 degrees for 10 m, which is 11.1 m. All distances,
  the spacing of starting points included, are 1.11 times as long.
- For precision every hole counts twice, since its graphs have each edge in both directions: two
  marbles match one hole.
- Of starting points whose pairs are less than 22 m apart by road, only the one with the highest
  precision counts, and others with a precision of 0.9. Recall is still averaged over all.

On the published pair of that repository (precision 0.874, recall 0.858), the rules above give
0.845 and 0.872, the variant 0.872 and 0.864. The rest is rounding in that program: it counts
starting points that fall on a vertex once or twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadGraph
from geoprep.roads.options import TOPO_INTERVAL_M, TOPO_MATCH_M, TopoVariant
from geoprep.roads.paths.points import EdgePoints, Propagation, even_points

_START_SPACING_M: Final = 50.0
_START_COSINE: Final = 0.96  # of the angle between roads: 16 degrees, as in Sat2Graph
_MATCH_COSINE: Final = 0.71  # 45 degrees, as in Sat2Graph
_CHORD_M: Final = 0.5

# Sat2Graph's rules.
_DEGREES_FOR_METRES: Final = 1.11111  # 0.00001 degrees of latitude in metres
_SECOND_HOLE_M: Final = (0.84, 1.11)  # 0.00001 degrees to the east and north, at 41 degrees
_SHARED_M: Final = 20.0
_SHARED_SEARCH_M: Final = 30.0
_HIGH_PRECISION: Final = 0.9

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
    starts: int | None = None,
    seed: int = 0,
    variant: TopoVariant = "default",
) -> TopoScore:
    """Return the graph sampling score of two networks in one plane of metres.

    All scores are 0 if either network has no roads.
    """
    if not len(truth.ends) or not len(proposal.ends):
        return TopoScore(0.0, 0.0, 0.0, 0)
    published = variant == "sat2graph"
    unit = _DEGREES_FOR_METRES if published else 1.0
    points = _drawn(_starting_points(truth, _START_SPACING_M * unit), starts, seed)
    match_m *= unit
    pairs = _paired_points(truth, points, proposal, match_m)
    one = Propagation.of(truth, radius_m * unit, TOPO_INTERVAL_M * unit)
    two = Propagation.of(proposal, radius_m * unit, TOPO_INTERVAL_M * unit)
    precision, recall = [], []
    for start in np.flatnonzero(pairs.on_edge).tolist():
        holes = _Marbles.from_start(one, int(points.edge[start]), float(points.along_m[start]))
        marbles = _Marbles.from_start(two, int(pairs.edge[start]), float(pairs.along_m[start]))
        matched = _matched(holes, marbles, match_m)
        recall.append(matched / len(holes.xy))
        if published:
            matched = _matched(holes.twice(), marbles, match_m)
        precision.append(matched / len(marbles.xy))
    if not precision:
        return TopoScore(0.0, 0.0, 0.0, len(points))
    if published:
        kept = _not_shared(proposal, pairs, np.array(precision), unit)
        precision, recall = ([values[i] for i in kept] for values in (precision, recall))
    p, r = float(np.mean(precision)), float(np.sum(recall) / len(points))
    return TopoScore(2 * p * r / (p + r) if p + r else 0.0, p, r, len(points))


def _starting_points(network: RoadGraph, spacing_m: float) -> EdgePoints:
    """Return points inside the edges, about a spacing apart; none on edges below half of it."""
    length = network.length_m
    count = np.maximum(length // spacing_m, 1).astype(np.int64)
    count[length < spacing_m / 2] = 0
    if not count.any():  # only short edges: start on the longest
        count[np.argmax(length)] = 1
    return even_points(network, count)


def _drawn(points: EdgePoints, most: int | None, seed: int) -> EdgePoints:
    if most is None or len(points) <= most:
        return points
    chosen = np.sort(np.random.default_rng(seed).choice(len(points), most, replace=False))
    return points[chosen]


def _paired_points(
    truth: RoadGraph, starts: EdgePoints, proposal: RoadGraph, match_m: float
) -> EdgePoints:
    """Return the nearest point of the proposal in the direction of the road at each start."""
    points, heading = starts.points(truth), _headings(truth, starts)
    tree = shapely.STRtree(proposal.lines)
    start, edge = tree.query(points, predicate="dwithin", distance=match_m)
    along = shapely.line_locate_point(proposal.lines[edge], points[start])
    along = along / proposal.stretch(edge)
    aligned = _cosine(heading[start], _headings(proposal, EdgePoints(edge, along))) > _START_COSINE
    start, edge, along = start[aligned], edge[aligned], along[aligned]
    away = shapely.distance(points[start], proposal.lines[edge])
    order = np.lexsort((edge, away, start))
    first = order[np.unique(start[order], return_index=True)[1]]
    pairs = EdgePoints(np.full(len(starts), -1), np.full(len(starts), np.nan))
    pairs.edge[start[first]], pairs.along_m[start[first]] = edge[first], along[first]
    return pairs


def _not_shared(
    proposal: RoadGraph, pairs: EdgePoints, precision: Floats, unit: float
) -> list[int]:
    """Return the paired starts that count, as positions in ``precision``, best first.

    A start is left out if its pair is near that of a better one by road, unless its precision is
    high.
    """
    from scipy.spatial import cKDTree

    paired = pairs[pairs.on_edge]
    near = Propagation.of(proposal, _SHARED_SEARCH_M * unit, _SHARED_M)
    tree = cKDTree(shapely.get_coordinates(paired.points(proposal)))
    neighbours = tree.query_ball_point(tree.data, _SHARED_M * unit)
    kept: list[int] = []
    shared: set[int] = set()
    for start in np.argsort(-precision, kind="stable").tolist():
        if start in shared and precision[start] < _HIGH_PRECISION:
            continue
        kept.append(start)
        others = paired[np.array(neighbours[start])]
        away = near.distances(int(paired.edge[start]), float(paired.along_m[start]), others)
        shared.update(np.array(neighbours[start])[away < _SHARED_M * unit].tolist())
    return kept


def _headings(network: RoadGraph, points: EdgePoints) -> Floats:
    """Return the direction of the road at each point as a unit vector, float64 (point, 2)."""
    lines, length = network.lines[points.edge], network.length_m[points.edge]
    stretch = network.stretch(points.edge)
    after = np.minimum(points.along_m + _CHORD_M, length) * stretch
    before = np.maximum(points.along_m - _CHORD_M, 0) * stretch
    chord = shapely.get_coordinates(shapely.line_interpolate_point(lines, after))
    chord -= shapely.get_coordinates(shapely.line_interpolate_point(lines, before))
    size = np.hypot(*chord.T)[:, None]
    heading: Floats = np.divide(chord, size, out=np.zeros_like(chord), where=size > 0)
    return heading


def _cosine(one: Floats, two: Floats) -> Floats:
    """Return the cosine of the angle between roads, regardless of their direction of travel."""
    cosine: Floats = np.abs((one * two).sum(axis=1))
    return cosine


@dataclass(frozen=True, slots=True, eq=False)
class _Marbles:
    """Points along the roads from one starting point."""

    xy: Floats  # (marble, 2): x and y in metres
    heading: Floats  # (marble, 2): unit vectors along the road

    @classmethod
    def from_start(cls, propagation: Propagation, edge: int, along_m: float) -> _Marbles:
        """Return the marbles that a walk from one point leaves."""
        points = propagation.points_from(edge, along_m)
        xy = shapely.get_coordinates(points.points(propagation.network))
        return cls(xy, _headings(propagation.network, points))

    def twice(self) -> _Marbles:
        """Return every point twice, the second one a little aside."""
        return _Marbles(
            np.concatenate([self.xy, self.xy + _SECOND_HOLE_M]),
            np.concatenate([self.heading, self.heading]),
        )


def _matched(holes: _Marbles, marbles: _Marbles, match_m: float) -> int:
    """Return the size of the maximum one-to-one matching of marbles and holes."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching
    from scipy.spatial import cKDTree

    close = cKDTree(marbles.xy).sparse_distance_matrix(
        cKDTree(holes.xy), match_m, output_type="ndarray"
    )
    fits = _cosine(marbles.heading[close["i"]], holes.heading[close["j"]]) > _MATCH_COSINE
    i, j = close["i"][fits], close["j"][fits]
    order = np.argsort(i)  # SciPy needs longer to order pairs itself
    begins = np.searchsorted(i[order], np.arange(len(marbles.xy) + 1))
    shape = (len(marbles.xy), len(holes.xy))
    graph = csr_array((np.ones(len(i), np.int8), j[order], begins), shape=shape)
    return int((maximum_bipartite_matching(graph, perm_type="column") >= 0).sum())
