"""Random scale, rotation and boxes of other samples (CutMix), on the device.

Draws are hashed from the key of a sample. Functions such as cosine come from tables, since their
last bit depends on the position in a vector register.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from geoprep.errors import UsageError
from geoprep.speed import NODATA
from loaders.prep import unit_hash

STEPS = 1024
"""Number of different angles and scales that are drawn from."""

_SCALE, _ANGLE, _BOX = 1000, 1001, 1002
"""Streams of the hash; those of `Jitter` are below. A box has five."""

_LIMITS = {"scale": (1, 4), "rotate": (0, 180), "cutmix": (0, 1)}


class DeviceAugmentation(nn.Module):
    """Random scale, rotation and boxes of other samples. Every default switches its part off.

    Image and label are resampled together, once: the image by bilinear interpolation, the label
    from the nearest pixel, since speeds and classes are codes. Where the source pixel is outside
    the image, the label is nodata, which is not valid, and the image is mirrored.

    A box comes with its label from anywhere in the next sample of the batch, as after scale and
    rotation (CutMix, Yun et al. 2019, for labels of pixels): what a model learns by heart of the
    surroundings of a pixel is wrong then. It is the one change that depends on the batch.

    Parameters
    ----------
    scale
        Roads become up to this factor larger or smaller, 1 to 4, with equal chances.
    rotate
        Rotation is within +- this angle, 0 to 180 degrees. Angles refer to the pixel grid, as
        of the symmetries ``d4``, even where pixels are not square on the ground.
    cutmix
        A box takes up to this share of a sample, 0 to 1, with equal chances.

    Raises
    ------
    UsageError
        A value is out of range.
    """

    turn: Tensor
    scales: Tensor

    def __init__(self, *, scale: float = 1.0, rotate: float = 0.0, cutmix: float = 0.0) -> None:
        super().__init__()
        for name, value in {"scale": scale, "rotate": rotate, "cutmix": cutmix}.items():
            least, most = _LIMITS[name]
            if not least <= value <= most:
                raise UsageError(f"{name}={value} must be within {least} to {most}")
        self.scale, self.rotate, self.cutmix = scale, rotate, cutmix
        drawn = np.linspace(-1, 1, STEPS)
        angles = drawn * math.radians(rotate)
        tables = {
            "turn": np.stack([np.cos(angles), np.sin(angles)], axis=1),
            "scales": np.exp(-drawn * math.log(scale))[:, None],
        }
        for name, table in tables.items():
            self.register_buffer(name, torch.tensor(table, dtype=torch.float32), persistent=False)

    def forward(self, image: Tensor, label: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return image and label of the same shapes and dtypes.

        Parameters
        ----------
        image
            uint8 (n, band, y, x); the result is in channels-last order.
        label
            uint8 (n, y, x), speeds or classes; 255 nodata.
        key
            int64 (n,), `Batch.key`.
        """
        if self.scale > 1 or self.rotate > 0:
            image, label = self._warp(image, label, key)
        if self.cutmix > 0:
            image, label = self._mix(image, label, key)
        return image.contiguous(memory_format=torch.channels_last), label

    def extra_repr(self) -> str:
        """Return the settings for the repr of this module."""
        return ", ".join(f"{name}={getattr(self, name):g}" for name in _LIMITS)

    def _warp(self, image: Tensor, label: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return image and label, scaled and rotated about the centre."""
        pixels = image.to(torch.float32, memory_format=torch.contiguous_format)
        rows, columns = pixels.shape[-2:]
        factor = _drawn(self.scales, key, _SCALE)
        cos, sin = (_drawn(self.turn, key, _ANGLE) * factor).view(-1, 2, 1, 1).unbind(1)
        y, x = _centred(pixels)
        # No matrix product, such as affine_grid has: autocast would round positions to bf16.
        source = ((x * cos - y * sin) * (2 / columns), (x * sin + y * cos) * (2 / rows))
        grid = torch.stack(source, dim=-1)
        options = {"align_corners": False}
        pixels = functional.grid_sample(pixels, grid, "bilinear", "reflection", **options)
        # Outside is 0: the label is sampled as its distance from nodata.
        known = (NODATA - label)[:, None].to(torch.float32)
        known = functional.grid_sample(known, grid, "nearest", "zeros", **options)
        pixels = pixels.round_().clamp_(0, 255).to(torch.uint8)
        return pixels, NODATA - known[:, 0].to(torch.uint8)

    def _mix(self, image: Tensor, label: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return image and label with a box of the next sample in each."""
        share, y, x, of_y, of_x = (unit_hash(key, _BOX + n).view(-1, 1, 1) for n in range(5))
        side = (share * self.cutmix).sqrt()
        top, height, up = _placed(side, y, of_y, label.shape[1])
        left, width, back = _placed(side, x, of_x, label.shape[2])
        own = torch.arange(label.numel(), device=label.device).view_as(label)
        row, column = own[0] // label.shape[2], own[0] % label.shape[2]
        inside = (row >= top) & (row < top + height) & (column >= left) & (column < left + width)
        # Of every pixel the number, over the whole batch, of the one that it is a copy of.
        source = torch.where(inside, own.roll(-1, 0) - up * label.shape[2] - back, own).flatten()
        pixels = image.permute(0, 2, 3, 1)
        mixed = pixels.flatten(0, 2).index_select(0, source).view(pixels.shape)
        return mixed.permute(0, 3, 1, 2), label.flatten().index_select(0, source).view(label.shape)


def _placed(share: Tensor, to: Tensor, of: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return where boxes begin, their lengths, and how far they were moved, along one axis."""
    length = (share * side).long()
    first, source = ((place * (side - length + 1)).long() for place in (to, of))
    return first, length, first - source


def _drawn(table: Tensor, key: Tensor, stream: int) -> Tensor:
    """Return a row of the table for every key, (n, column)."""
    return table.index_select(0, (unit_hash(key, stream) * STEPS).long())


def _centred(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (y, 1) and columns (1, x) of pixels, counted from the centre, fp32."""
    y, x = (
        torch.arange(side, device=pixels.device, dtype=torch.float32) - (side - 1) / 2
        for side in pixels.shape[-2:]
    )
    return y[:, None], x[None, :]
