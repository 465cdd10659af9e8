"""TOPO: how alike the surroundings of the same places are in two road networks.

Graph sampling (Biagioni and Eriksson 2012, "Inferring Road Maps from Global Positioning System
Traces") in the form that RoadTracer (arXiv:1802.03680) and Sat2Graph (arXiv:2007.09547) use:

1. Starting points every 50 m along the truth's edges. Each is paired with the nearest place of the
   proposal within 10 m where the roads run in about the same direction.
2. From both, the network is followed up to 150 m (300 m for scenes of some kilometres), and every
   5 m of the way a hole is left in the truth, a marble in the proposal.
3. A marble falls into a hole within 10 m, where the roads run within 45 degrees of each other; each
   hole takes one marble, and as many as possible fall (maximum matching).
4. Precision is the share of marbles that fell, the mean over paired starting points. Recall is the
   share of holes filled, the mean over all starting points, those without a pair counting 0.

What Sat2Graph's program does besides is left out: it gives each hole twice when it counts marbles,
drops starting points near the border and those that share a place of the proposal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.roads.network import RoadNetwork
from geoprep.roads.paths import Places, check_network
from geoprep.roads.paths.walks import Walks

_START_SPACING_M: Final = 50.0
_START_ALIGNMENT: Final = 0.96  # cosine of the angle between roads: Sat2Graph's 16 degrees
_FALL_ALIGNMENT: Final = 0.71  # and its 45 degrees
_CHORD_M: Final = 0.5

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Topo:
    """Precision, recall and their harmonic mean, each from 0 to 1, over ``starts`` places."""

    f1: float
    precision: float
    recall: float
    starts: int


def topo(
    truth: RoadNetwork,
    proposal: RoadNetwork,
    *,
    radius_m: float = 150.0,
    interval_m: float = 5.0,
    match_m: float = 10.0,
    starts: int | None = None,
    seed: int = 0,
) -> Topo:
    """Return the graph sampling score of two networks in one plane of metres.

    If either has no roads, all is 0.

    Parameters
    ----------
    radius_m
        How far to follow the networks: 150 for SpaceNet's chips, 300 for tiles of 2 km, as
        Sat2Graph has it.
    interval_m, match_m
        Between marbles; between a marble and its hole, and a starting point and its pair.
    starts
        At most so many starting points, drawn without replacement; None: all.
    seed
        Of the draw: the same seed, the same score.

    Raises
    ------
    UsageError
        A network is broken, the two lie in different CRSs, or a distance is not above 0.
    """
    check_network(truth, "the truth")
    check_network(proposal, "the proposal")
    if min(radius_m, interval_m, match_m) <= 0:
        raise UsageError("TOPO's radius, interval and match distance have to be above 0 m")
    if not len(truth.ends) or not len(proposal.ends):
        return Topo(0.0, 0.0, 0.0, 0)
    if truth.crs != proposal.crs:
        raise UsageError(
            f"the truth is in {truth.crs}, the proposal in {proposal.crs}: bring them to one CRS"
        )
    places = _drawn(_starting_points(truth), starts, seed)
    pairs = _pairs(truth, places, proposal, match_m)
    one, two = Walks.of(truth, radius_m, interval_m), Walks.of(proposal, radius_m, interval_m)
    precision, recall = [], []
    for start in np.flatnonzero(pairs.found).tolist():
        holes = _Marbles.along(one, int(places.edge[start]), float(places.along_m[start]))
        marbles = _Marbles.along(two, int(pairs.edge[start]), float(pairs.along_m[start]))
        fallen = _fallen(holes, marbles, match_m)
        precision.append(fallen / len(marbles.at))
        recall.append(fallen / len(holes.at))
    if not precision:
        return Topo(0.0, 0.0, 0.0, len(places))
    p, r = float(np.mean(precision)), float(np.sum(recall) / len(places))
    return Topo(2 * p * r / (p + r) if p + r else 0.0, p, r, len(places))


def _starting_points(network: RoadNetwork) -> Places:
    """Return points inside the edges, 50 m apart or a little less; none on edges below 25 m."""
    length = network.length_m
    count = np.maximum(length // _START_SPACING_M, 1).astype(np.int64)
    count[length < _START_SPACING_M / 2] = 0
    if not count.any():  # a network of crumbs: something has to be looked at
        count[np.argmax(length)] = 1
    edge = np.repeat(np.arange(len(length)), count)
    nth = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + 1
    return Places(edge, length[edge] * nth / (count[edge] + 1))


def _drawn(places: Places, most: int | None, seed: int) -> Places:
    if most is None or len(places) <= most:
        return places
    chosen = np.sort(np.random.default_rng(seed).choice(len(places), most, replace=False))
    return Places(places.edge[chosen], places.along_m[chosen])


def _pairs(truth: RoadNetwork, places: Places, proposal: RoadNetwork, match_m: float) -> Places:
    """Return the nearest place of the proposal that runs along with each starting point."""
    points, heading = places.points(truth), _headings(truth, places)
    tree = shapely.STRtree(proposal.lines)
    start, edge = tree.query(points, predicate="dwithin", distance=match_m)
    along = shapely.line_locate_point(proposal.lines[edge], points[start])
    aligned = _cosine(heading[start], _headings(proposal, Places(edge, along))) > _START_ALIGNMENT
    start, edge, along = start[aligned], edge[aligned], along[aligned]
    away = shapely.distance(points[start], proposal.lines[edge])
    order = np.lexsort((edge, away, start))
    first = order[np.unique(start[order], return_index=True)[1]]
    found = Places(np.full(len(places), -1), np.full(len(places), np.nan))
    found.edge[start[first]], found.along_m[start[first]] = edge[first], along[first]
    return found


def _headings(network: RoadNetwork, places: Places) -> Floats:
    """Return the direction of the road at each place as a unit vector, float64 (place, 2)."""
    lines, length = network.lines[places.edge], network.length_m[places.edge]
    ahead = np.minimum(places.along_m + _CHORD_M, length)
    behind = np.maximum(places.along_m - _CHORD_M, 0)
    chord = shapely.get_coordinates(shapely.line_interpolate_point(lines, ahead))
    chord -= shapely.get_coordinates(shapely.line_interpolate_point(lines, behind))
    size = np.hypot(*chord.T)[:, None]
    heading: Floats = np.divide(chord, size, out=np.zeros_like(chord), where=size > 0)
    return heading


def _cosine(one: Floats, two: Floats) -> Floats:
    """Return how well directions agree, either way round: 1 parallel, 0 across."""
    cosine: Floats = np.abs((one * two).sum(axis=1))
    return cosine


@dataclass(frozen=True, slots=True, eq=False)
class _Marbles:
    """Points (marble, 2) and the directions of their roads (marble, 2)."""

    at: Floats
    heading: Floats

    @classmethod
    def along(cls, walks: Walks, edge: int, along_m: float) -> _Marbles:
        """Leave marbles on all ways from a place."""
        places = walks.points_from(edge, along_m)
        at = shapely.get_coordinates(places.points(walks.network))
        return cls(at, _headings(walks.network, places))


def _fallen(holes: _Marbles, marbles: _Marbles, match_m: float) -> int:
    """Return how many marbles find a hole of their own."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching
    from scipy.spatial import cKDTree

    close = cKDTree(marbles.at).sparse_distance_matrix(
        cKDTree(holes.at), match_m, output_type="ndarray"
    )
    fits = _cosine(marbles.heading[close["i"]], holes.heading[close["j"]]) > _FALL_ALIGNMENT
    i, j = close["i"][fits], close["j"][fits]
    shape = (len(marbles.at), len(holes.at))
    graph = csr_array((np.ones(len(i), np.int8), (i, j)), shape=shape)
    return int((maximum_bipartite_matching(graph, perm_type="column") >= 0).sum())
