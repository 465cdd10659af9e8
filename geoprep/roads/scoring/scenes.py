"""Scores of every scene, and their means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from geoprep.roads.edge_points import Weight
from geoprep.roads.network import RoadGraph
from geoprep.roads.options import ScoreOptions
from geoprep.roads.scoring.apls import AplsScore, apls
from geoprep.roads.scoring.pairs import Border, ScenePair
from geoprep.roads.scoring.topo import TopoScore, topo

_FAR_M: Final = 1000.0
"""Distance in metres between ground truth and proposal from which a note reports it."""


@dataclass(frozen=True, slots=True)
class SceneScore:
    """The scores of one scene."""

    scene: str  # scene key, or the stem of the ground truth's file
    # None where the ground truth has no roads: such a scene is left out of all means
    apls: AplsScore | None
    apls_time: AplsScore | None  # none also where a speed is unknown
    topo: TopoScore | None
    truth_km: float  # kilometres of road
    proposal_km: float
    border: Border  # area in which false roads count: see `ScenePair`
    note: str  # remarks for the user, separated by semicolons; empty if there are none


def score_scenes(
    pairs: Sequence[ScenePair],
    settings: ScoreOptions,
    *,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[SceneScore]:
    """Return the scores of every scene; ``advance`` gets thousandths of scenes, done and total."""
    scores = []
    for number, pair in enumerate(pairs):

        def report(share: float, before: int = number) -> None:
            advance(round(1000 * (before + share)), 1000 * len(pairs))

        scores.append(_score(pair, settings, report))
        report(1)
    return scores


def _score(pair: ScenePair, settings: ScoreOptions, report: Callable[[float], None]) -> SceneScore:
    truth, proposal = pair.truth, pair.proposal
    km = _km(truth), _km(proposal)
    if not len(truth.ends):
        notes = (*pair.notes, "no roads in the ground truth: left out of the mean")
        return SceneScore(pair.scene, None, None, None, *km, pair.border, "; ".join(notes))

    def apls_by(weight: Weight, before: float) -> AplsScore:
        return apls(
            truth,
            proposal,
            weight=weight,
            snap_m=settings.snap,
            control_point_spacing_m=settings.control_point_spacing or None,
            advance=lambda done, total: report(before + done / total / 3),
        )

    all_speeds = not (np.isnan(truth.speed_mph).any() or np.isnan(proposal.speed_mph).any())
    sampled = topo(
        truth,
        proposal,
        radius_m=settings.topo_radius,
        advance=lambda done, total: report(done / total / 3),
    )
    notes = (
        *pair.notes,
        "" if len(proposal.ends) or "no proposal" in pair.notes else "no roads in the proposal",
        _distance_note(truth, proposal),
        "" if all_speeds else "unknown speeds",
    )
    note = "; ".join(part for part in notes if part)
    by_length = apls_by("length", 1 / 3)
    by_time = apls_by("time", 2 / 3) if all_speeds else None
    return SceneScore(pair.scene, by_length, by_time, sampled, *km, pair.border, note)


def _distance_note(truth: RoadGraph, proposal: RoadGraph) -> str:
    """Return a note where the bounding boxes of the nodes are far apart; else nothing."""
    if not len(proposal.ends):
        return ""
    low = np.maximum(truth.nodes.min(axis=0), proposal.nodes.min(axis=0))
    high = np.minimum(truth.nodes.max(axis=0), proposal.nodes.max(axis=0))
    gap = float(np.linalg.norm(np.maximum(low - high, 0)))
    return "" if gap < _FAR_M else f"ground truth and proposal are {gap / 1000:,.1f} km apart"


def _km(network: RoadGraph) -> float:
    return float(network.length_m.sum()) / 1000


def mean_scores(scores: Sequence[SceneScore]) -> dict[str, float | None]:
    """Return the mean of every score over scenes by name; None where no scene has the score.

    As in SpaceNet's challenges, scenes without roads in the ground truth are left out, and scenes
    without a proposal count 0. The mean of ``apls_time`` is over scenes with all speeds known.
    """
    scored = [score for score in scores if score.apls and score.topo]
    columns = {
        "apls": [s.apls.score for s in scored if s.apls],
        "apls_truth_to_proposal": [s.apls.truth_to_proposal for s in scored if s.apls],
        "apls_proposal_to_truth": [s.apls.proposal_to_truth for s in scored if s.apls],
        "apls_time": [s.apls_time.score for s in scored if s.apls_time],
        "topo_f1": [s.topo.f1 for s in scored if s.topo],
        "topo_precision": [s.topo.precision for s in scored if s.topo],
        "topo_recall": [s.topo.recall for s in scored if s.topo],
    }
    return {name: float(np.mean(values)) if values else None for name, values in columns.items()}
