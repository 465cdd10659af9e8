"""Photometric jitter on the device, at no cost: it changes two numbers per sample and band.

What a sample gets is hashed from its key, thus a function of (seed, epoch, position) like its
crop, and the same on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from geoprep.errors import UsageError

_M32 = 0xFFFFFFFF


def _unit(key: Tensor, stream: int) -> Tensor:
    """Return fp32 in [0, 1) for every key, by a 32-bit hash in int64, which all devices have.

    The mixing function is "lowbias32" of C. Wellons' hash prospector (2018).
    """
    x = ((key ^ (key >> 32)) + stream * 0x9E3779B9) & _M32
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _M32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _M32
    return (x ^ (x >> 16)).bitwise_right_shift(8).to(torch.float32) * 2.0**-24


class Jitter(nn.Module):
    """Random brightness, contrast and band gain, in units of a band's standard deviation.

    A pixel ``v`` of a normalised band becomes ``v * contrast * gain + brightness``: contrast and
    brightness are one draw per sample, gain one per sample and band.

    Parameters
    ----------
    brightness
        Summand within +- this many standard deviations.
    contrast, gain
        Factor within 1 +- this, below 1.
    """

    def __init__(self, brightness: float = 0.2, contrast: float = 0.2, gain: float = 0.05) -> None:
        super().__init__()
        if brightness < 0 or not (0 <= contrast < 1 and 0 <= gain < 1):
            raise UsageError(
                f"brightness={brightness} must be at least 0, contrast={contrast} and gain={gain} "
                "within 0..1"
            )
        self.brightness = brightness
        self.contrast = contrast
        self.gain = gain

    def forward(self, key: Tensor, bands: int) -> tuple[Tensor, Tensor]:
        """Return gain and bias of each sample and band, fp32 (n, band, 1, 1).

        Parameters
        ----------
        key
            int64 (n,), `Batch.key`.
        bands
            How many.
        """
        gains = torch.stack([_unit(key, 2 + band) for band in range(bands)], dim=1)
        gain = 1 + self.gain * (2 * gains - 1)
        gain = gain * (1 + self.contrast * (2 * _unit(key, 0)[:, None] - 1))
        bias = (self.brightness * (2 * _unit(key, 1) - 1))[:, None].expand_as(gain)
        return gain[:, :, None, None], bias[:, :, None, None]
