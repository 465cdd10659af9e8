"""The scores of each scene, and their mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from geoprep.roads.network import RoadNetwork
from geoprep.roads.scoring.apls import Apls, apls
from geoprep.roads.scoring.inputs import Pair
from geoprep.roads.scoring.topo import Topo, topo

_FAR_M: Final = 1000.0
"""Metres between the boxes of truth and proposal from which on a person is told."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters of APLS and TOPO."""

    snap_m: float = 4.0
    midpoints_m: float | None = 50.0
    topo_radius_m: float = 150.0
    topo_interval_m: float = 5.0
    topo_match_m: float = 10.0
    topo_starts: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SceneScore:
    """The scores of one scene.

    Attributes
    ----------
    scene, note
        Which one, and what a person should know about it.
    apls, topo
        None where the truth has no roads: such a scene is in no mean.
    apls_time
        None also where a speed is not known.
    truth_km, proposal_km
        Kilometres of road.
    """

    scene: str
    apls: Apls | None
    apls_time: Apls | None
    topo: Topo | None
    truth_km: float
    proposal_km: float
    note: str


def score_scenes(
    pairs: Sequence[Pair],
    settings: Settings,
    *,
    threads: int | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[SceneScore]:
    """Return the scores of every scene."""
    scores = []
    for done, pair in enumerate(pairs, 1):
        scores.append(_score(pair, settings, threads))
        advance(done, len(pairs))
    return scores


def _score(pair: Pair, settings: Settings, threads: int | None) -> SceneScore:
    truth, proposal = pair.truth, pair.proposal
    km = _km(truth), _km(proposal)
    if not len(truth.ends):
        note = "no roads in the truth: left out of the mean"
        return SceneScore(pair.scene, None, None, None, *km, note)

    def of(weight: str) -> Apls:
        return apls(
            truth,
            proposal,
            weight="time" if weight == "time" else "length",
            snap_m=settings.snap_m,
            midpoints_m=settings.midpoints_m,
            threads=threads,
        )

    known = not (np.isnan(truth.speed_mph).any() or np.isnan(proposal.speed_mph).any())
    sampled = topo(
        truth,
        proposal,
        radius_m=settings.topo_radius_m,
        interval_m=settings.topo_interval_m,
        match_m=settings.topo_match_m,
        starts=settings.topo_starts,
        seed=settings.seed,
    )
    notes = (
        pair.note or ("" if len(proposal.ends) else "no roads in the proposal"),
        _apart(truth, proposal),
        "" if known else "speeds not known",
    )
    note = "; ".join(part for part in notes if part)
    return SceneScore(pair.scene, of("length"), of("time") if known else None, sampled, *km, note)


def _apart(truth: RoadNetwork, proposal: RoadNetwork) -> str:
    """Return a note where the two lie in different places, by the boxes about their nodes."""
    if not len(proposal.ends):
        return ""
    low = np.maximum(truth.nodes.min(axis=0), proposal.nodes.min(axis=0))
    high = np.minimum(truth.nodes.max(axis=0), proposal.nodes.max(axis=0))
    gap = float(np.linalg.norm(np.maximum(low - high, 0)))
    return "" if gap < _FAR_M else f"truth and proposal lie {gap / 1000:,.1f} km apart"


def _km(network: RoadNetwork) -> float:
    return float(network.length_m.sum()) / 1000


def mean_scores(scores: Sequence[SceneScore]) -> dict[str, float | None]:
    """Return the plain means over scenes, None where a scene has no score.

    So CosmiQ and SpaceNet did: chips without roads in the truth are left out, chips without a
    proposal count 0. The mean of APLS_time is that of the scenes where all speeds are known.
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
