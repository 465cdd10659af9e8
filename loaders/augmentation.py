"""Random scale and rotation of image and label, on the device.

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

_SCALE, _ANGLE = 1000, 1001
"""Streams of the hash; those of `Jitter` are below."""

_LIMITS = {"scale": (1, 4), "rotate": (0, 180)}


class DeviceAugmentation(nn.Module):
    """Random scale and rotation. Every default switches its part off.

    Image and label are resampled together, once: the image by bilinear interpolation, the label
    from the nearest pixel, since speeds and classes are codes. Where the source pixel is outside
    the image, the label is nodata, which is not valid, and the image is mirrored.

    Parameters
    ----------
    scale
        Roads become up to this factor larger or smaller, 1 to 4, with equal chances.
    rotate
        Rotation is within +- this angle, 0 to 180 degrees. Angles refer to the pixel grid, as
        of the symmetries ``d4``, even where pixels are not square on the ground.

    Raises
    ------
    UsageError
        A value is out of range.
    """

    turn: Tensor
    scales: Tensor

    def __init__(self, *, scale: float = 1.0, rotate: float = 0.0) -> None:
        super().__init__()
        for name, value in {"scale": scale, "rotate": rotate}.items():
            least, most = _LIMITS[name]
            if not least <= value <= most:
                raise UsageError(f"{name}={value} must be within {least} to {most}")
        self.scale, self.rotate = scale, rotate
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
        pixels = image.to(torch.float32, memory_format=torch.contiguous_format)
        if self.scale > 1 or self.rotate > 0:
            pixels, label = self._warp(pixels, label, key)
        pixels = pixels.round_().clamp_(0, 255)
        return pixels.to(torch.uint8, memory_format=torch.channels_last), label

    def extra_repr(self) -> str:
        """Return the settings for the repr of this module."""
        return ", ".join(f"{name}={getattr(self, name):g}" for name in _LIMITS)

    def _warp(self, pixels: Tensor, label: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return image and label, scaled and rotated about the centre."""
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
        return pixels, NODATA - known[:, 0].to(torch.uint8)


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
