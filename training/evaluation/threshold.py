"""Choice of the road probability threshold from the scores of validation scenes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE_Z = 1.2816
"""One-sided normal quantile of 90 %, for gains and for the interval."""

PRIOR_SCENES = 5
"""Number of scenes whose weight the default threshold has against the validation scenes."""


class ChosenThreshold(NamedTuple):
    """A threshold, and the interval of thresholds that the scenes cannot tell from the best."""

    threshold: float
    low: float
    high: float


def choose_threshold(scores: NDArray[np.int64], default: float) -> ChosenThreshold:
    """Return the threshold that scenes support, shrunk towards the default.

    ``scores`` int64 (scene, 2, steps): pixels by label (0 background, 1 road) and by road
    probability in equal steps of 0..1. The gain in IoU over the default is computed for every
    threshold, with its standard error over scenes (jackknife). The threshold with the highest
    lower bound of the gain is taken, so that unlike scenes count little; the default if no
    bound is above zero. Its log odds are drawn towards those of the default, with the weight of
    `PRIOR_SCENES` scenes.
    """
    steps = scores.shape[-1]
    scores = scores[scores.sum(axis=(1, 2)) > 0]
    count, start = len(scores), min(max(round(default * steps), 1), steps - 1)
    roads = scores[:, 1].sum(axis=1)
    if count < 2 or not roads.any():
        return ChosenThreshold(default, 0.0, 1.0)
    above = scores[..., ::-1].cumsum(axis=2)[..., ::-1]  # pixels at or above each threshold
    right, union = above[:, 1], roads[:, None] + above[:, 0]
    iou = _ratio(right.sum(axis=0), union.sum(axis=0))
    without = _ratio(right.sum(axis=0) - right, union.sum(axis=0) - union)
    quantile = _quantile(count - 1)
    gain, error = iou - iou[start], _standard_error(without - without[:, [start]])
    bound = gain - quantile * error
    bound[0] = -1  # everything would be a road
    best = _nearest(np.flatnonzero(iou[1:] == iou[1:].max()) + 1, start)
    loss = iou[best] - iou
    alike = loss <= quantile * _standard_error(without[:, [best]] - without)
    outside = np.flatnonzero(~alike)
    low = outside[outside < best].max(initial=-1) + 1
    high = outside[outside > best].min(initial=steps) - 1
    threshold = default
    if bound.max() > 0:
        supported = _nearest(np.flatnonzero(bound == bound.max()), start)
        share = count / (count + PRIOR_SCENES)
        odds = _log_odds(default) + share * (_log_odds(supported / steps) - _log_odds(default))
        threshold = round(steps / (1 + math.exp(-odds))) / steps
    return ChosenThreshold(threshold, int(low) / steps, int(high) / steps)


def threshold_text(metrics: Mapping[str, float], decimals: int) -> str:
    """Return ``0.52 (best 0.54-0.64)`` of metrics; ``none`` where no pixel is labelled."""
    if math.isnan(metrics["threshold"]):
        return "none"
    low, high = metrics["threshold_low"], metrics["threshold_high"]
    best = f" (best {low:.{decimals}f}-{high:.{decimals}f})" if high - low < 1 else ""
    return f"{metrics['threshold']:.{decimals}f}{best}"


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return part / whole; 0 where both are 0."""
    return part / np.maximum(whole, 1).astype(np.float64)


def _standard_error(without: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the jackknife standard error of a figure that was computed without each scene."""
    count = len(without)
    spread = ((without - without.mean(axis=0)) ** 2).sum(axis=0)
    error: NDArray[np.float64] = np.sqrt(spread * (count - 1) / count)
    return error


def _quantile(freedom: int) -> float:
    """Return the 90 % quantile of Student's distribution (expansion of Cornish and Fisher)."""
    z = CONFIDENCE_Z
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def _nearest(candidates: NDArray[np.intp], start: int) -> int:
    """Return the candidate nearest to ``start``."""
    return int(candidates[np.abs(candidates - start).argmin()])


def _log_odds(share: float) -> float:
    return math.log(share / (1 - share))
