"""Loss weights of channels and classes, from the labels of stores or a file."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from geoprep.errors import UsageError
from geoprep.speed import CHANNEL_TABLE, VALID_TABLE
from geoprep.store import StoreReader
from training.checkpoint import ModelInfo
from training.data import class_pixels
from training.yaml_files import read_yaml

_LARGEST = 5.0
"""Largest weight of a channel or class over that of the most common one."""


def class_share(stores: Sequence[StoreReader], names: Sequence[str]) -> Tensor:
    """Return the share of each class in the labelled pixels of the train splits, fp32 (class,)."""
    pixels = torch.from_numpy(class_pixels(stores, names))
    return (pixels / pixels.sum().clamp(min=1)).float()


def class_weights(given: str, info: ModelInfo, share: Tensor) -> Tensor | None:
    """Return the loss weights of classes, fp32 (class,) with mean 1; None for equal ones."""
    if given in ("none", "auto"):
        return inverse_root(share) if given == "auto" else None
    values = read_yaml(given, "class_weights")
    values = values if isinstance(values, dict) else {str(values): math.nan}
    for name, value in values.items():
        if name not in info.class_names:
            raise UsageError(
                f"`class_weights` {given}: there is no class {name!r}; use lines of CLASS: WEIGHT "
                f"with {', '.join(info.class_names)}"
            )
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise UsageError(f"`class_weights` {given}: {name}: {value} is not a weight from 0 up")
    weight = torch.tensor([float(values.get(name, 1)) for name in info.class_names])
    if not weight.any():
        raise UsageError(f"`class_weights` {given}: all weights are 0")
    return weight / weight.mean()


def channel_share(stores: Sequence[StoreReader]) -> Tensor:
    """Return the share of labelled pixels on which each channel of the target ``bins`` is 1."""
    counts = np.sum([store.histogram_speed for store in stores], axis=0).astype(np.float64)
    return torch.from_numpy(counts @ CHANNEL_TABLE / max(counts @ VALID_TABLE, 1)).float()


def inverse_root(share: Tensor) -> Tensor:
    """Return weights that favour what is rare: 1 / sqrt(share), scaled to mean 1.

    Weights of 1 / share would let a handful of pixels dominate the loss. What never occurs has the
    weight of the most common one.
    """
    common = share.max().clamp(min=1e-12)
    weight = (common / torch.where(share > 0, share, common)).sqrt().clamp(max=_LARGEST)
    return weight / weight.mean()
