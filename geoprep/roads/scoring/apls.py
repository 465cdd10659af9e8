"""APLS: how alike two road networks are, by the lengths of the ways through them.

Average Path Length Similarity (Van Etten, Lindenbaum, Bacastow 2018, "SpaceNet: A Remote Sensing
Dataset and Challenge Series", arXiv:1807.01232), with the details of CosmiQ's reference program:

1. Control points of one network: its nodes, and points every 50 m along its edges.
2. Each is moved onto the nearest edge of the other network, which keeps its nodes as they are; one
   with no edge within 4 m is missing there.
3. Every ordered pair of control points with a way of ``d`` between them in its own network counts
   ``min(1, |d - d'| / d)``, ``d'`` being the way in the other; 1 where a point is missing or
   there is no way.
4. One less the mean is the score of this direction; the harmonic mean of both directions is APLS.

All pairs are taken, whatever the size of the networks: no points are drawn by chance. Where the
reference program goes wrong, this does not: points never change places by their names, a part of an
edge keeps that edge's own speed, and two points that fall on one spot both stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.roads.network import RoadNetwork
from geoprep.roads.paths import (
    Places,
    Track,
    check_network,
    distances,
    nearest_places,
    nodes_as_places,
    spaced_places,
    track_of,
)
from geoprep.roads.paths.distances import Weight

_SMALL_PLACES: Final = 600
_SMALL_NODES: Final = 1000


@dataclass(frozen=True, slots=True)
class Apls:
    """A score and its two directions, each from 0 to 1.

    Attributes
    ----------
    score
        Harmonic mean of the two; 0 if either is 0.
    truth_to_proposal
        Control points of the truth, looked for in the proposal: falls with what was missed.
    proposal_to_truth
        The reverse: falls with what was invented.
    """

    score: float
    truth_to_proposal: float
    proposal_to_truth: float


def apls(
    truth: RoadNetwork,
    proposal: RoadNetwork,
    *,
    weight: Weight = "length",
    midpoints_m: float | None = 50.0,
    snap_m: float = 4.0,
    min_path: float = 0.001,
    truth_lengths_m: NDArray[np.float64] | None = None,
    proposal_lengths_m: NDArray[np.float64] | None = None,
    threads: int | None = None,
) -> Apls:
    """Return the average path length similarity of two networks in one plane of metres.

    A network without roads scores 0 against any other: leave scenes without roads in the truth out
    of a mean. A network against itself scores 1, unless it is a single point.

    Parameters
    ----------
    weight
        ``length``, or ``time``: seconds of travel (APLS_time), for which all speeds must be known.
    midpoints_m
        Distance of the control points along edges; None: nodes only.
    snap_m
        How far a control point may lie from the other network, in metres. Published figures used
        4 or 5.
    min_path
        Shorter ways do not count: metres, or seconds where ``weight`` is ``time``.
    truth_lengths_m, proposal_lengths_m
        float64 (edge,): lengths of whole edges where they come from elsewhere than the lines.
    threads
        For large networks; by default one for every core this process may use.

    Raises
    ------
    UsageError
        A network is broken, the two lie in different CRSs, a speed is missing, or a parameter makes
        no sense.
    """
    _check(truth, proposal, midpoints_m, snap_m)
    one = track_of(truth, weight, truth_lengths_m, name="the truth")
    two = track_of(proposal, weight, proposal_lengths_m, name="the proposal")
    there = _direction(truth, one, proposal, two, midpoints_m, snap_m, min_path, threads)
    back = _direction(proposal, two, truth, one, midpoints_m, snap_m, min_path, threads)
    score = 2 * there * back / (there + back) if there > 0 and back > 0 else 0.0
    return Apls(score, there, back)


def control_points(network: RoadNetwork, midpoints_m: float | None = 50.0) -> Places:
    """Return the control points of a network: its nodes, and points along its edges."""
    nodes = nodes_as_places(network)
    return nodes if midpoints_m is None else nodes + spaced_places(network, midpoints_m)


def _check(
    truth: RoadNetwork, proposal: RoadNetwork, midpoints_m: float | None, snap_m: float
) -> None:
    check_network(truth, "the truth")
    check_network(proposal, "the proposal")
    if truth.crs != proposal.crs and len(truth.ends) and len(proposal.ends):
        raise UsageError(
            f"the truth is in {truth.crs}, the proposal in {proposal.crs}: bring them to one CRS"
        )
    if not snap_m > 0:
        raise UsageError(f"a snapping distance of {snap_m} m reaches nothing: give one above 0")
    if midpoints_m is not None and not midpoints_m > 0:
        raise UsageError(f"midpoints every {midpoints_m} m: give a distance above 0, or none")


def _direction(
    own: RoadNetwork,
    own_track: Track,
    other: RoadNetwork,
    other_track: Track,
    midpoints_m: float | None,
    snap_m: float,
    min_path: float,
    threads: int | None,
) -> float:
    """Return the score of one direction."""
    if not len(own.ends) or not len(other.ends):
        return 0.0
    here = control_points(own, midpoints_m)
    there = nearest_places(other, here.points(own), snap_m)
    own_track, other_track = own_track.cut_at(here), other_track.cut_at(there)
    small = len(here) <= _SMALL_PLACES and max(len(own.nodes), len(other.nodes)) <= _SMALL_NODES
    if small:
        total, count = sum_of_terms(own_track, here, other_track, there, min_path)
    else:
        from geoprep.roads.paths.allpairs import sum_of_terms_in_blocks

        total, count = sum_of_terms_in_blocks(
            own_track, here, other_track, there, min_path, threads
        )
    return 1 - total / count if count else 0.0


def sum_of_terms(
    own: Track, here: Places, other: Track, there: Places, min_path: float
) -> tuple[float, int]:
    """Return the sum of the terms of all ordered pairs, and their number.

    Parameters
    ----------
    here, there
        The control points in their own network, and where they are in the other, if anywhere.
    """
    way, other_way = distances(own, here), distances(other, there)
    missing = ~there.found
    # Of a missing point every way counts, even the shortest: so does the reference.
    counts = np.isfinite(way) & ((way >= min_path) | missing[:, None])
    np.fill_diagonal(counts, val=False)
    way, other_way = way[counts], other_way[counts]
    with np.errstate(invalid="ignore", divide="ignore"):
        terms = np.minimum(np.abs(way - other_way) / way, 1.0)
    terms[np.isinf(other_way)] = 1.0
    return float(terms.sum()), len(terms)
