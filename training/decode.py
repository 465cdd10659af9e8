"""What a network's output says: is there a road, how fast is it. One place for every consumer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from geoprep.speed import BIN_COUNT, BIN_TABLE, BIN_WIDTH_MPH, CONTINUOUS_MAX_MPH
from geoprep.store import Store

SLOWEST_MPH = 7.5
"""A continuous prediction above this is a road: half of the slowest speed of the table."""


def class_speeds(stores: Sequence[Store]) -> tuple[float, ...]:
    """Return the speed in mph that each of the seven bins stands for.

    It is the mean over the pixels of the train splits; a bin that never occurs has its middle.

    Parameters
    ----------
    stores
        One or several.
    """
    counts = np.sum([store.histogram_speed for store in stores], axis=0).astype(np.float64)
    pixels = np.bincount(BIN_TABLE, weights=counts, minlength=BIN_COUNT + 1)[1:]
    total = np.bincount(BIN_TABLE, weights=counts * np.arange(256), minlength=BIN_COUNT + 1)[1:]
    middle = BIN_WIDTH_MPH * (np.arange(BIN_COUNT) + 0.5) + 0.5
    speeds = np.where(pixels > 0, total / np.maximum(pixels, 1), middle)
    return tuple(float(speed) for speed in speeds)


def road_mask(logits: Tensor, targets: str) -> Tensor:
    """Return where a road is predicted, bool (n, y, x).

    Parameters
    ----------
    logits
        (n, channel, y, x).
    targets
        ``bins``, ``continuous`` or ``binary``.
    """
    if targets == "continuous":
        return logits[:, 0].sigmoid() * CONTINUOUS_MAX_MPH > SLOWEST_MPH
    return logits[:, -1] > 0  # the channel of any road is the last of the bins


def expected_mph(logits: Tensor, targets: str, class_mph: Sequence[float]) -> Tensor:
    """Return the expected speed of every pixel if it is a road, fp32 (n, y, x) in mph.

    Parameters
    ----------
    logits
        (n, channel, y, x); for bins the mean of their speeds, weighted by their probabilities.
    targets
        ``bins`` or ``continuous``: binary targets know no speed.
    class_mph
        Speeds of the bins.
    """
    if targets == "continuous":
        return logits[:, 0].float().sigmoid() * CONTINUOUS_MAX_MPH
    share = logits[:, : len(class_mph)].float().sigmoid()
    speeds = torch.tensor(class_mph, dtype=torch.float32, device=logits.device)
    total = share.sum(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
    return (share * speeds.view(1, -1, 1, 1)).sum(dim=1) / total


def speed_bin(logits: Tensor, targets: str) -> Tensor:
    """Return the most likely ten-mph bin of every pixel if it is a road, int64 (n, y, x), 1..7.

    Parameters
    ----------
    logits
        (n, channel, y, x).
    targets
        ``bins`` or ``continuous``.
    """
    if targets == "continuous":
        mph = logits[:, 0].float().sigmoid() * CONTINUOUS_MAX_MPH
        return (mph / BIN_WIDTH_MPH).ceil().clamp(1, BIN_COUNT).long()
    return logits[:, :BIN_COUNT].argmax(dim=1) + 1
