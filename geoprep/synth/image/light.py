"""Light and sensor: sun, haze and contrast of one chip, and the noise fields all chips share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.synth.city.lattice import Points

Field = NDArray[np.float32]

_SLACK: Final = 256
"""Pixels by which noise fields exceed a chip: every chip gets a window of its own."""
# Blue light reaches shaded ground from the sky; infrared hardly does. Per WorldView-3 band, then
# panchromatic.
SKYLIGHT: Final = np.array([0.50, 0.47, 0.41, 0.38, 0.36, 0.31, 0.26, 0.24, 0.37])
HAZE: Final = np.array([1.0, 0.85, 0.62, 0.5, 0.42, 0.33, 0.25, 0.2, 0.5])


@dataclass(frozen=True, slots=True)
class Light:
    """Light and recording of one chip."""

    sun: Points  # unit vector towards it, x eastwards and y southwards
    rise: float  # tangent of its elevation
    gain: Points  # per band (eight, then panchromatic)
    haze: float  # path radiance in the coastal band, as reflectance
    dark: float  # range of reflectance that 8-bit products stretch
    bright: float
    gamma: float


def draw_light(rng: np.random.Generator) -> Light:
    """Draw the light of one chip: a morning's sun in the south, more or less haze."""
    azimuth = np.deg2rad(rng.uniform(135, 200))
    rise = float(np.tan(np.deg2rad(rng.uniform(32, 58))))
    gain = rng.uniform(0.82, 1.18) * rng.normal(1, 0.025, 9)
    return Light(
        np.array([np.sin(azimuth), -np.cos(azimuth)]),
        rise,
        gain,
        float(rng.uniform(0.0, 0.03)),
        float(rng.uniform(0.005, 0.025)),
        float(rng.uniform(0.28, 0.40)),
        float(rng.uniform(0.62, 0.85)),
    )


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise fields of unit variance, larger than a chip: white, about 1.5 m, about 12 m."""

    white: Field
    medium: Field
    coarse: Field

    def window(self, field: Field, size: int, rng: np.random.Generator) -> Field:
        """Return a view (size, size) of a field, from a place and mirrored as drawn."""
        y, x = rng.integers(0, field.shape[0] - size + 1, 2)
        part = field[y : y + size, x : x + size]
        return part[:: rng.choice([-1, 1]), :: rng.choice([-1, 1])]


def make_noise(size: int, px: float, py: float, rng: np.random.Generator) -> Noise:
    """Make the fields for chips of a size; scales are metres, pixels need not be square."""
    side = size + _SLACK
    return Noise(
        rng.standard_normal((side, side), dtype=np.float32),
        smooth_field(side, 0.55 / py, 0.55 / px, rng),
        smooth_field(side, 5.0 / py, 5.0 / px, rng),
    )


def smooth_field(side: int, sigma_y: float, sigma_x: float, rng: np.random.Generator) -> Field:
    """Return Gaussian noise (side, side) of unit variance smoothed over some pixels."""
    steps = [max(1, int(sigma / 2)) for sigma in (sigma_y, sigma_x)]
    shape = [side // step + 24 for step in steps]
    field = rng.standard_normal(shape, dtype=np.float32)
    for axis, (sigma, step) in enumerate(zip((sigma_y, sigma_x), steps, strict=True)):
        field = _blur(field, sigma / step, axis)
        field = _stretch(field, side, step, axis)
    field -= field.mean()
    field /= field.std()
    return field


def _blur(field: Field, sigma: float, axis: int) -> Field:
    reach = max(1, int(3 * sigma))
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights /= weights.sum()
    rolled = (w * np.roll(field, int(k) - reach, axis) for k, w in enumerate(weights))
    return sum(rolled, np.zeros_like(field)).astype(np.float32)


def _stretch(field: Field, side: int, step: int, axis: int) -> Field:
    """Interpolate linearly along an axis to ``side`` samples, ``step`` to each given one."""
    at = np.arange(side) / step + 1
    low = at.astype(int)
    t = (at - low).astype(np.float32)
    t = t[:, None] if axis == 0 else t[None, :]
    here, there = np.take(field, low, axis), np.take(field, low + 1, axis)
    stretched: Field = here + t * (there - here)
    return stretched
