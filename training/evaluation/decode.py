"""A model's probabilities as roads and speeds, for metrics.

`training.prediction.blend` writes them as bytes, for predictions and pictures.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from geoprep.speed import (
    BIN_COUNT,
    BIN_WIDTH_MPH,
    CONTINUOUS_MAX_MPH,
)

SLOWEST_MPH = 7.5
"""Threshold of road in continuous predictions: half of the slowest speed of the table."""


def default_threshold(targets: str) -> float:
    """Return the road probability threshold of a model without a validated one."""
    return SLOWEST_MPH / CONTINUOUS_MAX_MPH if targets == "continuous" else 0.5


def chosen_threshold(targets: str, wanted: float | None, best: float | None) -> float:
    """Return the requested threshold, else the best one of validation, else the default."""
    known = (threshold for threshold in (wanted, best) if threshold is not None)
    return next(known, default_threshold(targets))


def activated(logits: Tensor, targets: str) -> Tensor:
    """Return fp32 probabilities of logits (n, channel, y, x): softmax for classes, else sigmoid."""
    return logits.float().softmax(dim=1) if targets == "classes" else logits.float().sigmoid()


def road_probability(probabilities: Tensor) -> Tensor:
    """Return the probability of any road, (n, y, x): the last channel of (n, channel, y, x)."""
    return probabilities[:, -1]


def speed_bin(probabilities: Tensor, targets: str) -> Tensor:
    """Return the most probable 10 mph bin, int64 (n, y, x), 1..7, of bins or continuous targets."""
    if targets == "continuous":
        mph = probabilities[:, 0] * CONTINUOUS_MAX_MPH
        return (mph / BIN_WIDTH_MPH).ceil().clamp(1, BIN_COUNT).long()
    return probabilities[:, :BIN_COUNT].argmax(dim=1) + 1


def speed_mph(probabilities: Tensor, targets: str, class_mph: Sequence[float]) -> Tensor:
    """Return the speed of every pixel, fp32 (n, y, x) in mph; of bins that of the most probable.

    A mean weighted by probability would never reach the slowest and fastest speeds, since
    neighbouring bins have some probability.
    """
    if targets == "continuous":
        return probabilities[:, 0].float() * CONTINUOUS_MAX_MPH
    speeds = torch.tensor(class_mph, dtype=torch.float32, device=probabilities.device)
    return speeds[probabilities[:, : len(class_mph)].argmax(dim=1)]
