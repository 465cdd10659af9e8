"""Whether the edges of road networks exist as often as their confidence says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadGraph

_BOUNDS: Final = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Bounds of the bins: confidences below 0.3 are rare, because roads are traced from there."""
_SAMPLES: Final = 20


@dataclass(frozen=True, slots=True)
class ConfidenceBin:
    """The edges of one range of mean confidence."""

    low: float  # bounds of the range
    high: float
    edges: int  # number of edges; the other figures are NaN without any
    mean_confidence: float  # mean of their mean confidences
    exist: float  # share of them that exist


@dataclass(frozen=True, slots=True)
class Reliability:
    """How the mean confidence of edges compares with the share of them that exist."""

    edges: int  # number of edges
    # Mean over edges of the difference between confidence and share in their bin; 0: calibrated
    expected_calibration_error: float
    bins: tuple[ConfidenceBin, ...]  # rising ranges of confidence


def reliability(
    networks: Iterable[tuple[RoadGraph, RoadGraph]], within_m: float = 4.0
) -> Reliability | None:
    """Return how reliable the confidence of edges is; None if no edge has one.

    An edge exists if at least half of its length lies near a road of the ground truth. Scenes
    without roads in the ground truth are left out, as in all means.
    """
    confidence, exists = [np.empty(0)], [np.empty(0, np.bool_)]
    for truth, proposal in networks:
        if proposal.confidence is not None and len(truth.lines) and len(proposal.lines):
            confidence.append(proposal.confidence[:, 0])
            exists.append(_exists(truth, proposal, within_m))
    mean, found = np.concatenate(confidence), np.concatenate(exists)
    known = np.isfinite(mean)  # a file may lack the confidence of edges that somebody drew
    if not known.any():
        return None
    mean, found = mean[known], found[known]
    number = np.digitize(mean, _BOUNDS[1:-1])
    bins = []
    for i, (low, high) in enumerate(pairwise(_BOUNDS)):
        mine = number == i
        figures = (mean[mine].mean(), found[mine].mean()) if mine.any() else (np.nan, np.nan)
        bins.append(ConfidenceBin(low, high, int(mine.sum()), *map(float, figures)))
    errors = (one.edges * abs(one.mean_confidence - one.exist) for one in bins if one.edges)
    return Reliability(len(mean), sum(errors) / len(mean), tuple(bins))


def _exists(truth: RoadGraph, proposal: RoadGraph, within_m: float) -> NDArray[np.bool_]:
    share = (np.arange(_SAMPLES) + 0.5) / _SAMPLES
    samples = shapely.line_interpolate_point(proposal.lines[:, None], share, normalized=True)
    samples = samples.reshape(-1)
    found = shapely.STRtree(truth.lines).query(samples, predicate="dwithin", distance=within_m)
    near = np.zeros(samples.size, np.bool_)
    near[found[0]] = True
    exists: NDArray[np.bool_] = near.reshape(-1, _SAMPLES).mean(axis=1) >= 1 / 2
    return exists
