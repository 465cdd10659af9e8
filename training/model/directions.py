"""The direction of roads as a second target, which only training uses.

A model that also learns in which direction a road runs finds more of its pixels (Batra et al. 2019,
"Improved road connectivity by joint learning of orientation and segmentation"). They classify 37
directions along label lines. Here the device computes the target from the labels of the batch: the
direction of the structure tensor (Bigun and Granlund 1987), as cosine and sine of twice its angle,
so that both directions of a road are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CHANNELS = 2
"""Cosine and sine of twice the angle."""

_EDGE, _TENSOR = 1.0, 2.0
"""Standard deviations of the Gaussians of edges and of the structure tensor in half pixels."""

_TINY = 1e-8


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
