"""Losses on independent sigmoid channels, from logits, leaving out pixels without a label.

0.75 focal + 0.25 soft dice is the recipe of the CRESI baseline (its configuration for the speed
masks); here computed in fp32 from the logits, so that no probability needs clamping, and over
labelled pixels alone. All is tensor arithmetic without a loop over channels or a value that the
host waits for, so that a compiler can make one pass of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from geoprep.speed import CHANNEL_TABLE, VALID_TABLE
from geoprep.store import Store

LossName = Literal["focal-dice", "bce-dice"]

MAIN_SHARE = 0.75
"""Weight of the pixelwise part; the rest is dice."""

_SMOOTH = 1e-5
"""Added to both sides of the dice fraction, so that a batch without roads has a defined loss."""


class LossParts(NamedTuple):
    """What a loss returns: fp32 tensors without dimensions.

    Attributes
    ----------
    total
        What is minimised.
    main
        The pixelwise part, focal or BCE, unweighted.
    dice
        1 - soft dice, unweighted.
    """

    total: Tensor
    main: Tensor
    dice: Tensor


class RoadLoss(nn.Module):
    """A pixelwise loss and soft dice over all channels of a batch together.

    Parameters
    ----------
    name
        ``focal-dice``: focal loss with gamma 2 and no alpha (Lin et al. 2017), for soft targets in
        the form |t - p|^2 BCE (Li et al. 2020), which is the same for hard ones. ``bce-dice``:
        binary cross-entropy in its place.
    channel_weights
        fp32 (channel,), of mean 1: what a channel counts in both parts. None: all the same.
    """

    weights: Tensor | None

    def __init__(
        self, name: LossName = "focal-dice", channel_weights: Tensor | None = None
    ) -> None:
        super().__init__()
        self.name = name
        weights = None if channel_weights is None else channel_weights.float().view(1, -1, 1, 1)
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, logits: Tensor, target: Tensor, valid: Tensor) -> LossParts:
        """Return the loss of a batch.

        Parameters
        ----------
        logits
            (n, channel, y, x), any float dtype.
        target
            The same shape, 0..1.
        valid
            bool (n, y, x); other pixels count nothing. Nothing valid at all is a loss of 0.
        """
        x, t = logits.float(), target.float()
        weight = valid[:, None].float()
        if self.weights is not None:
            weight = weight * self.weights
        p = torch.sigmoid(x)
        # -t ln p - (1 - t) ln(1 - p), written so that nothing overflows or cancels.
        pixel = functional.relu(x) - x * t + torch.log1p(torch.exp(-x.abs()))
        if self.name == "focal-dice":
            pixel = pixel * (t - p).square()
        count = valid.sum().clamp(min=1) * x.shape[1]
        main = (pixel * weight).sum() / count
        both, either = (weight * p * t).sum(), (weight * (p + t)).sum()
        dice = 1 - (2 * both + _SMOOTH) / (either + _SMOOTH)
        return LossParts(MAIN_SHARE * main + (1 - MAIN_SHARE) * dice, main, dice)

    def extra_repr(self) -> str:
        """Return what to show of this module."""
        return f"{self.name}, weighted={self.weights is not None}"


def channel_share(stores: Sequence[Store]) -> Tensor:
    """Return the share of labelled pixels that each channel of the target ``bins`` is 1 on.

    Parameters
    ----------
    stores
        Their train splits are counted together.

    Returns
    -------
    Tensor
        fp32 (8,): bins 1..7 and any road; zeros where nothing is labelled.
    """
    counts = sum(
        (torch.from_numpy(store.histogram_speed.astype("float64")) for store in stores),
        start=torch.zeros(256, dtype=torch.float64),
    )
    labelled = (counts * torch.from_numpy(VALID_TABLE.astype("float64"))).sum().clamp(min=1)
    return (counts @ torch.from_numpy(CHANNEL_TABLE.astype("float64")) / labelled).float()


def channel_weights(stores: Sequence[Store], *, largest: float = 5.0) -> Tensor:
    """Return weights that let rare speeds count more: 1 / sqrt(share), of mean 1.

    The root, since full balance lets a handful of pixels rule the loss. Bins that never occur in
    the train split count as much as the most common one: there is nothing to find in them.

    Parameters
    ----------
    stores
        Their train splits are counted together.
    largest
        A weight is at most this many times the smallest.

    Returns
    -------
    Tensor
        fp32 (8,).
    """
    share = channel_share(stores)
    common = share.max().clamp(min=1e-12)
    weight = (common / torch.where(share > 0, share, common)).sqrt().clamp(max=largest)
    return weight / weight.mean()
