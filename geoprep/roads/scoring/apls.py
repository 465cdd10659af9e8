"""APLS: similarity of two road networks by the lengths of the paths through them.

Average Path Length Similarity (Van Etten, Lindenbaum, Bacastow 2018, "SpaceNet: A Remote Sensing
Dataset and Challenge Series", arXiv:1807.01232), with the details of CosmiQ's reference program:

1. Control points of one network are its nodes and, every 50 m, points along its edges.
2. Each is matched to the nearest point on an edge of the other network, whose nodes stay as they
   are. A control point without an edge within 4 m is missing there.
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

from dataclasses import dataclass
from typing import Final

import numpy as np

from geoprep.errors import UsageError
from geoprep.roads.network import RoadGraph, check_network
from geoprep.roads.paths import (
    CostGraph,
    EdgePoints,
    Weight,
    cost_graph,
    nearest_points,
    node_points,
    point_distances,
    spaced_points,
)

_SMALL_POINTS: Final = 600
_SMALL_NODES: Final = 1000


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
    min_path: float = 0.001,
    threads: int | None = None,
) -> AplsScore:
    """Return the average path length similarity of two networks in one plane of metres.

    A network without roads scores 0 against any other: leave scenes without roads in the ground
    truth out of a mean. A network scores 1 against itself, unless it is a single point.
    """
    _check(truth, proposal, control_point_spacing_m, snap_m)
    one = cost_graph(truth, weight, name="the ground truth")
    two = cost_graph(proposal, weight, name="the proposal")
    spacing = control_point_spacing_m
    there = _direction(truth, one, proposal, two, spacing, snap_m, min_path, threads)
    back = _direction(proposal, two, truth, one, spacing, snap_m, min_path, threads)
    score = 2 * there * back / (there + back) if there > 0 and back > 0 else 0.0
    return AplsScore(score, there, back)


def control_points(network: RoadGraph, spacing_m: float | None = 50.0) -> EdgePoints:
    """Return the control points of a network: its nodes, and points along its edges."""
    nodes = node_points(network)
    return nodes if spacing_m is None else nodes + spaced_points(network, spacing_m)


def _check(truth: RoadGraph, proposal: RoadGraph, spacing_m: float | None, snap_m: float) -> None:
    check_network(truth, "the ground truth")
    check_network(proposal, "the proposal")
    if truth.crs != proposal.crs and len(truth.ends) and len(proposal.ends):
        raise UsageError(
            f"the ground truth is in {truth.crs}, the proposal in {proposal.crs}: reproject one of "
            "them to the CRS of the other"
        )
    if not snap_m > 0:
        raise UsageError(f"`snap` is {snap_m} m: give a distance above 0")
    if spacing_m is not None and not spacing_m > 0:
        raise UsageError(
            f"`control_point_spacing` is {spacing_m} m: give a distance above 0, or None"
        )


def _direction(
    own: RoadGraph,
    own_costs: CostGraph,
    other: RoadGraph,
    other_costs: CostGraph,
    spacing_m: float | None,
    snap_m: float,
    min_path: float,
    threads: int | None,
) -> float:
    """Return the score of one direction."""
    if not len(own.ends) or not len(other.ends):
        return 0.0
    here = control_points(own, spacing_m)
    there = nearest_points(other, here.points(own), snap_m)
    small = len(here) <= _SMALL_POINTS and max(len(own.nodes), len(other.nodes)) <= _SMALL_NODES
    if small:
        total, count = sum_of_terms(own_costs, here, other_costs, there, min_path)
    else:
        from geoprep.roads.scoring.apls_blocks import sum_of_terms_in_blocks

        total, count = sum_of_terms_in_blocks(
            own_costs, here, other_costs, there, min_path, threads
        )
    return 1 - total / count if count else 0.0


def sum_of_terms(
    own: CostGraph, here: EdgePoints, other: CostGraph, there: EdgePoints, min_path: float
) -> tuple[float, int]:
    """Return the sum of the terms of all ordered pairs, and the number of terms."""
    path, other_path = point_distances(own, here), point_distances(other, there)
    missing = ~there.on_edge
    # Every path from a missing point counts, even the shortest, as in the reference program.
    counts = np.isfinite(path) & ((path >= min_path) | missing[:, None])
    np.fill_diagonal(counts, val=False)
    path, other_path = path[counts], other_path[counts]
    with np.errstate(invalid="ignore", divide="ignore"):
        terms = np.minimum(np.abs(path - other_path) / path, 1.0)
    terms[np.isinf(other_path)] = 1.0
    return float(terms.sum()), len(terms)
