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

from geoprep.roads.network import RoadGraph
from geoprep.roads.paths.distances import CostGraph, PairedPoints, Weight, cost_graph
from geoprep.roads.paths.points import EdgePoints, nearest_points, node_points, spaced_points
from geoprep.roads.scoring.apls_blocks import sums_of_terms

_STRIP_M: Final = 500.0
"""Control points are taken in strips of this width: those near each other share nodes."""
_LEAST_PATH: Final = 0.001


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
    threads: int | None = None,
) -> AplsScore:
    """Return the average path length similarity of two networks in one plane of metres.

    A network without roads scores 0 against any other: leave scenes without roads in the ground
    truth out of a mean. A network scores 1 against itself, unless it is a single point.
    """
    if not len(truth.ends) or not len(proposal.ends):
        return AplsScore(0.0, 0.0, 0.0)
    one, two = cost_graph(truth, weight), cost_graph(proposal, weight)
    there = _direction(truth, one, proposal, two, control_point_spacing_m, snap_m)
    back = _direction(proposal, two, truth, one, control_point_spacing_m, snap_m)
    sums = sums_of_terms(there, back, threads)
    forth, reverse = (1 - total / count if count else 0.0 for total, count in sums)
    score = 2 * forth * reverse / (forth + reverse) if forth > 0 and reverse > 0 else 0.0
    return AplsScore(score, forth, reverse)


def control_points(network: RoadGraph, spacing_m: float | None = 50.0) -> EdgePoints:
    """Return the control points of a network: its nodes, and points along its edges."""
    nodes = node_points(network)
    return nodes if spacing_m is None else nodes + spaced_points(network, spacing_m)


def _direction(
    own: RoadGraph,
    own_costs: CostGraph,
    other: RoadGraph,
    other_costs: CostGraph,
    spacing_m: float | None,
    snap_m: float,
) -> PairedPoints:
    here = control_points(own, spacing_m)
    x, y = own.nodes[own.ends[here.edge, 0]].T
    here = here[np.lexsort((y, x // _STRIP_M))]
    there = nearest_points(other, here.points(own), snap_m)
    # Every path from a missing point counts, even the shortest, as in the reference program.
    least = np.where(there.on_edge, _LEAST_PATH, 0.0)
    return PairedPoints(own_costs, here, other_costs, there, least)
