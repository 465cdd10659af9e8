"""Random scale, rotation, blur, noise and shadow of image and label, on the device.

Draws are hashed from the key of a sample. Functions such as cosine come from tables, since their
last bit depends on the position in a vector register.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from geoprep.errors import UsageError
from geoprep.speed import NODATA
from loaders.prep import unit_hash

STEPS = 1024
"""Number of different angles, scales and widths that are drawn from."""

_SCALE, _ANGLE, _BLUR, _NOISE, _SHADE, _TURN, _PLACE, _WIDTH, _PIXELS = range(1000, 1009)
"""Streams of the hash; those of `Jitter` are below."""

_BYTES_STD = math.sqrt(4 * (256**2 - 1) / 12)
"""Standard deviation of the sum of four random bytes; its mean is 510."""

_LIMITS = {"scale": (1, 4), "rotate": (0, 180), "blur": (0, 5), "noise": (0, 128), "shadow": (0, 1)}


class DeviceAugmentation(nn.Module):
    """Random scale, rotation, blur, noise and shadow. Every default switches its part off.

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
    blur
        Largest standard deviation of a Gaussian blur, 0 to 5 pixels.
    noise
        Largest standard deviation of noise, 0 to 128 grey values; independent for each pixel and
        band, and nearly Gaussian.
    shadow
        Largest share of light that a shadow takes away, 0 to 1. A shadow is a straight strip
        across the image, 0.1 to 0.5 of its side wide.

    Raises
    ------
    UsageError
        A value is out of range.
    """

    turn: Tensor
    scales: Tensor
    taps: Tensor
    strips: Tensor

    def __init__(
        self,
        *,
        scale: float = 1.0,
        rotate: float = 0.0,
        blur: float = 0.0,
        noise: float = 0.0,
        shadow: float = 0.0,
    ) -> None:
        super().__init__()
        given = {"scale": scale, "rotate": rotate, "blur": blur, "noise": noise, "shadow": shadow}
        for name, value in given.items():
            least, most = _LIMITS[name]
            if not least <= value <= most:
                raise UsageError(f"{name}={value} must be within {least} to {most}")
        self.scale, self.rotate = scale, rotate
        self.blur, self.noise, self.shadow = blur, noise, shadow
        drawn = np.linspace(-1, 1, STEPS)
        tables = {
            "turn": _directions(drawn * math.radians(rotate)),
            "scales": np.exp(-drawn * math.log(scale))[:, None],
            "taps": _gaussians(np.linspace(0, blur, STEPS)),
            "strips": _directions(np.linspace(0, math.pi, STEPS)),
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
        if self.blur > 0:
            pixels = self._blurred(pixels, key)
        if self.shadow > 0:
            pixels = pixels * self._light(pixels, key)
        if self.noise > 0:
            strength = self.noise / _BYTES_STD * unit_hash(key, _NOISE).view(-1, 1, 1, 1)
            pixels = _noise(pixels, key).mul_(strength).add_(pixels)
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

    def _blurred(self, pixels: Tensor, key: Tensor) -> Tensor:
        """Return the image under a Gaussian blur, one axis after the other."""
        taps = _drawn(self.taps, key, _BLUR)[:, :, None, None, None].unbind(1)
        reach = len(taps) - 1
        # Shifted sums, not a convolution, which autocast would compute in bf16.
        for axis, edges in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
            side = pixels.shape[axis]
            wide = functional.pad(pixels, edges, mode="replicate")
            pixels = pixels * taps[0]
            for k, tap in enumerate(taps[1:], start=1):
                both = wide.narrow(axis, reach - k, side) + wide.narrow(axis, reach + k, side)
                pixels = pixels.add_(both.mul_(tap))
        return pixels

    def _light(self, pixels: Tensor, key: Tensor) -> Tensor:
        """Return the share of light that reaches each pixel, fp32 (n, 1, y, x)."""
        y, x = _centred(pixels)
        side = max(pixels.shape[-2:])
        cos, sin = _drawn(self.strips, key, _TURN).view(-1, 2, 1, 1).unbind(1)
        place, width, depth = (
            unit_hash(key, stream).view(-1, 1, 1) for stream in (_PLACE, _WIDTH, _SHADE)
        )
        distance = (x * cos + y * sin - (place - 0.5) * side).abs()
        inside = ((0.05 + 0.2 * width) * side - distance + 0.5).clamp(0, 1)
        return (1 - self.shadow * depth * inside)[:, None]


def _drawn(table: Tensor, key: Tensor, stream: int) -> Tensor:
    """Return a row of the table for every key, (n, column)."""
    return table.index_select(0, (unit_hash(key, stream) * STEPS).long())


def _directions(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return cosine and sine of angles in radians, (angle, 2)."""
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _gaussians(widths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the centre and one side of Gaussian kernels with sum 1, (width, 1 + reach)."""
    reach = math.ceil(2.5 * widths.max())
    # A width of 0 leaves 1 at the centre and 0 elsewhere.
    value = np.exp(-(np.arange(reach + 1) ** 2) / (2 * np.maximum(widths, 1e-3)[:, None] ** 2))
    taps: NDArray[np.float64] = value / (2 * value.sum(axis=1, keepdims=True) - 1)
    return taps


def _centred(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (y, 1) and columns (1, x) of pixels, counted from the centre, fp32."""
    y, x = (
        torch.arange(side, device=pixels.device, dtype=torch.float32) - (side - 1) / 2
        for side in pixels.shape[-2:]
    )
    return y[:, None], x[None, :]


def _noise(pixels: Tensor, key: Tensor) -> Tensor:
    """Return sums of four random bytes minus their mean, fp32 (n, band, y, x); products wrap."""
    counter = torch.arange(pixels[0].numel(), device=pixels.device, dtype=torch.int32)
    seed = (unit_hash(key, _PIXELS) * 2**24).to(torch.int32) * _signed(0x85EBCA6B)
    x = counter * _signed(0x9E3779B1) + seed[:, None]
    x = x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
    x = x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(_signed(0x846CA68B))
    x = x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
    pairs = (x & 0xFF00FF).add_((x >> 8).bitwise_and_(0xFF00FF))
    total = (pairs & 0xFFFF).add_(pairs >> 16)
    return total.to(torch.float32).sub_(510).view(pixels.shape)


def _signed(constant: int) -> int:
    """Return the int32 with the bits of an unsigned constant."""
    return constant - 2**32 if constant >= 2**31 else constant
