"""The losses of roads and of classes, from logits, targets and which pixels are labelled.

0.75 focal + 0.25 soft dice is the recipe of the CRESI baseline. It is computed in fp32 from the
logits of labelled pixels, without loops over channels or values that the host waits for, so that a
compiler can fuse it into one pass.

Roads have their direction as a second target, which only training uses. A model that also learns in
which direction a road runs finds more of its pixels (Batra et al. 2019, "Improved road connectivity
by joint learning of orientation and segmentation"). They classify 37 directions along label lines.
Here the device computes the target from the labels of the batch: the direction of the structure
tensor (Bigun and Granlund 1987), as cosine and sine of twice its angle, so that both directions of
a road are the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from geoprep.errors import UsageError
from training.setting_texts import LossName

_SMOOTH = 1e-5
"""Added to both sides of the dice fraction, so that a batch without roads has a defined loss."""

DIRECTION_CHANNELS = 2
"""Cosine and sine of twice the angle."""

_EDGE, _TENSOR = 1.0, 2.0
"""Standard deviations of the Gaussians of edges and of the structure tensor in half pixels."""

_TINY = 1e-8


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


class RoadLoss(nn.Module):
    """A pixelwise loss and soft dice over all channels of a batch together.

    ``focal-dice``: focal loss with gamma 2 and no alpha (Lin et al. 2017), for soft targets in the
    form |t - p|^2 BCE (Li et al. 2020), which is the same for hard ones. The loss of directions
    adds to the gradient of the total and not to its value, so that losses of training and
    validation compare.
    """

    weights: Tensor | None

    def __init__(
        self,
        name: LossName = "focal-dice",
        channel_weights: Tensor | None = None,
        dice: float = 0.25,
        direction: float = 0.0,
    ) -> None:
        super().__init__()
        self.name, self.dice, self.direction = name, dice, direction
        weights = None if channel_weights is None else channel_weights.float().view(1, -1, 1, 1)
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, logits: Tensor, target: Tensor, valid: Tensor) -> LossParts:
        """Return the loss of logits and target (n, channel, y, x) where ``valid`` (n, y, x).

        Logits may have two channels more than the target, which are directions of roads.
        """
        parts = self.of_sums(self.sums(logits, target, valid))
        if logits.shape[1] > target.shape[1]:
            road = ((target[:, -1:] > 0) & valid[:, None]).float()
            turned = direction_loss(logits[:, target.shape[1] :], road)
            parts = parts._replace(total=parts.total + self.direction * (turned - turned.detach()))
        return parts

    def sums(self, logits: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """Return sums over the pixels of a batch, fp32 (4,), for `of_sums`; arguments as above."""
        known = valid[:, None]
        weight = known.float() if self.weights is None else known * self.weights
        # Loops over the few channels of a pixel would fill half of a vector.
        x, t, weight = (
            value.expand_as(target).permute(0, 2, 3, 1).flatten().float()
            for value in (logits[:, : target.shape[1]], target, weight)
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
        """Return the loss of the `sums` of a batch, or of those of several, added up."""
        pixel, count, both, either = sums
        main = pixel / count.clamp(min=1)
        dice = 1 - (2 * both + _SMOOTH) / (either + _SMOOTH)
        return LossParts((1 - self.dice) * main + self.dice * dice, main, dice, count.detach())


class ClassLoss(nn.Module):
    """A pixelwise loss of exclusive classes and the mean soft dice of the classes in the labels.

    ``focal-dice``: focal loss with gamma 2, (1 - p)^2 times cross-entropy (Lin et al. 2017).
    Weights of classes, fp32 (class,), weight the pixels and the dice of each.
    """

    weights: Tensor | None

    def __init__(
        self, name: LossName = "focal-dice", class_weights: Tensor | None = None, dice: float = 0.25
    ) -> None:
        super().__init__()
        if name == "bce-dice":
            raise UsageError("`loss` bce-dice is for roads: use ce-dice or focal-dice for classes")
        self.name, self.dice = name, dice
        weights = None if class_weights is None else class_weights.float().view(1, -1, 1, 1)
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, logits: Tensor, target: Tensor, valid: Tensor) -> LossParts:
        """Return the loss of logits (n, class, y, x) and numbers of classes (n, y, x) if valid."""
        return self.of_sums(self.sums(logits, target, valid))

    def sums(self, logits: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """Return sums over the pixels of a batch, fp32 (2 + 3 class,), for `of_sums`."""
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
        """Return the loss of the `sums` of a batch, or of those of several, added up."""
        pixel, share = sums[:2]
        both, either, count = sums[2:].view(3, -1)
        main = pixel / share.clamp(min=_SMOOTH)
        present = (count > 0).float()
        if self.weights is not None:
            present = present * self.weights.flatten().to(present)
        miss = 1 - (2 * both + _SMOOTH) / (either + _SMOOTH)
        dice = (miss * present).sum() / present.sum().clamp(min=_SMOOTH)
        return LossParts((1 - self.dice) * main + self.dice * dice, main, dice, share.detach())


def road_directions(road: Tensor) -> tuple[Tensor, Tensor]:
    """Return direction and weight, at half the size, of roads fp32 (n, 1, y, x) of 0 and 1.

    The direction is cosine and sine of twice the angle from the x axis to the road, against the y
    axis that points down. The weight is the share of road times coherence, which is 1 on a straight
    road and 0 where no direction prevails, such as in the middle of a junction.
    """
    share = functional.avg_pool2d(road, 2)
    smooth = _gaussian(share, _EDGE)
    dy = functional.pad(smooth[:, :, 2:] - smooth[:, :, :-2], (0, 0, 1, 1))
    dx = functional.pad(smooth[..., 2:] - smooth[..., :-2], (1, 1, 0, 0))
    tensor = _gaussian(torch.cat([dx * dx, dy * dy, dx * dy], 1), _TENSOR)
    xx, yy, xy = (tensor[:, channel : channel + 1] for channel in range(3))
    # The gradient is across the road: its angle plus 90 degrees, twice: plus 180 degrees.
    cosine, sine = yy - xx, -2 * xy
    length = torch.hypot(cosine, sine)
    weights = share * length / (xx + yy + _TINY)
    return torch.cat([cosine, sine], 1) / (length + _TINY), weights


def direction_loss(predicted: Tensor, road: Tensor) -> Tensor:
    """Return the mean squared error of directions on roads, fp32 without dimensions."""
    with torch.autocast(road.device.type, enabled=False):  # it would convolve in half precision
        wanted, weights = road_directions(road)
    error = (functional.avg_pool2d(predicted.float(), 2) - wanted).square().sum(1, keepdim=True)
    return (weights * error).sum() / (weights.sum() + 1)


def _gaussian(image: Tensor, sigma: float) -> Tensor:
    """Return an image smoothed by a Gaussian of three standard deviations to each side."""
    reach, channels = int(3 * sigma), image.shape[1]
    at = torch.arange(-reach, reach + 1, device=image.device, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (at / sigma).square())
    kernel = (kernel / kernel.sum()).expand(channels, 1, 1, -1)
    for pad, weight in (((reach, reach, 0, 0), kernel), ((0, 0, reach, reach), kernel.mT)):
        edge = functional.pad(image, pad, mode="replicate")
        image = functional.conv2d(edge, weight, groups=channels)
    return image
