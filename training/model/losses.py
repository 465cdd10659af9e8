"""The losses of roads and of classes, from logits, targets and which pixels are labelled.

0.75 focal + 0.25 soft dice is the recipe of the CRESI baseline. It is computed in fp32 from the
logits of labelled pixels, without loops over channels or values that the host waits for, so that a
compiler can fuse it into one pass.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.setting_texts import LossName

_SMOOTH = 1e-5
"""Added to both sides of the dice fraction, so that a batch without roads has a defined loss."""


class LossParts(NamedTuple):
    """A loss and its parts, fp32 tensors without dimensions."""

    total: Tensor
    """Weighted sum of the parts, which training minimises."""
    main: Tensor
    """Pixelwise part, focal or cross-entropy, unweighted."""
    dice: Tensor
    """1 - soft dice, unweighted."""
    weight: Tensor | None = None
    """Weight of the batch beside others, that of its labelled pixels; None for their number."""


class SummedLoss(nn.Module):
    """A loss that follows from sums over pixels, which several batches add up.

    ``dice`` is the share of soft dice in it, the rest the pixelwise part ``name``.
    """

    weights: Tensor | None

    def __init__(
        self, name: LossName = "focal-dice", weights: Tensor | None = None, dice: float = 0.25
    ) -> None:
        super().__init__()
        self.name, self.dice = name, dice
        shaped = None if weights is None else weights.float().view(1, -1, 1, 1)
        self.register_buffer("weights", shaped, persistent=False)

    def forward(self, logits: Tensor, target: Tensor, valid: Tensor) -> LossParts:
        """Return the loss of logits (n, channel, y, x) where ``valid`` (n, y, x).

        ``target`` has the shape of the logits; of classes it has their numbers (n, y, x).
        """
        return self.of_sums(self.sums(logits, target, valid))

    def sums(self, logits: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """Return sums over the pixels of a batch, fp32 (sum,), for `of_sums`; see `forward`."""
        raise NotImplementedError

    def of_sums(self, sums: Tensor) -> LossParts:
        """Return the loss of the `sums` of a batch, or of those of several, added up."""
        raise NotImplementedError


class RoadLoss(SummedLoss):
    """A pixelwise loss and soft dice over all channels of a batch together.

    ``focal-dice``: focal loss with gamma 2 and no alpha (Lin et al. 2017), for soft targets in the
    form |t - p|^2 BCE (Li et al. 2020), which is the same for hard ones. ``weights`` are those of
    channels, fp32 (channel,).
    """

    def sums(self, logits: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """See `SummedLoss`."""
        known = valid[:, None]
        weight = known.float() if self.weights is None else known * self.weights
        # Loops over the few channels of a pixel would fill half of a vector.
        x, t, weight = (
            value.expand_as(target).permute(0, 2, 3, 1).flatten().float()
            for value in (logits, target, weight)
        )
        p = torch.sigmoid(x)
        # -t ln p - (1 - t) ln(1 - p), written so that nothing overflows or cancels.
        pixel = functional.relu(x) - x * t + torch.log1p(torch.exp(-x.abs()))
        if self.name == "focal-dice":
            pixel = pixel * (t - p).square()
        count = (valid.sum() * target.shape[1]).float()
        both, either = (weight * p * t).sum(), (weight * (p + t)).sum()
        return torch.stack([(pixel * weight).sum(), count, both, either])

    def of_sums(self, sums: Tensor) -> LossParts:
        """See `SummedLoss`."""
        pixel, count, both, either = sums
        main = pixel / count.clamp(min=1)
        dice = 1 - (2 * both + _SMOOTH) / (either + _SMOOTH)
        return LossParts((1 - self.dice) * main + self.dice * dice, main, dice, count.detach())


class ClassLoss(SummedLoss):
    """A pixelwise loss of exclusive classes and the mean soft dice of the classes in the labels.

    ``focal-dice``: focal loss with gamma 2, (1 - p)^2 times cross-entropy (Lin et al. 2017).
    ``weights`` of classes, fp32 (class,), weight the pixels and the dice of each.
    """

    def sums(self, logits: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """See `SummedLoss`."""
        logp = functional.log_softmax(logits.float(), dim=1)
        numbers = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
        known = valid[:, None]
        truth = ((target[:, None] == numbers) & known).float()
        p = logp.exp() * known
        pixel = -logp * truth
        if self.name == "focal-dice":
            pixel = pixel * (1 - p).square()
        share = truth if self.weights is None else truth * self.weights
        if self.weights is not None:
            pixel = pixel * self.weights
        count = truth.sum(dim=(0, 2, 3))
        both, either = (p * truth).sum(dim=(0, 2, 3)), p.sum(dim=(0, 2, 3)) + count
        return torch.cat([torch.stack([pixel.sum(), share.sum()]), both, either, count])

    def of_sums(self, sums: Tensor) -> LossParts:
        """See `SummedLoss`."""
        pixel, share = sums[:2]
        both, either, count = sums[2:].view(3, -1)
        main = pixel / share.clamp(min=_SMOOTH)
        present = (count > 0).float()
        if self.weights is not None:
            present = present * self.weights.flatten().to(present)
        miss = 1 - (2 * both + _SMOOTH) / (either + _SMOOTH)
        dice = (miss * present).sum() / present.sum().clamp(min=_SMOOTH)
        return LossParts((1 - self.dice) * main + self.dice * dice, main, dice, share.detach())
