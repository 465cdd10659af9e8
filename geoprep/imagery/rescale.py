"""Limits of a scene's values, and lookup tables that map values to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.imagery.wide import BINS, wide_percentiles

PERCENTILES = (2.0, 98.0)
"""Percentiles of a band that become black and white, from CRESI's create_8bit_images."""

MOST_AT_ENDS = 0.95
"""Share of stretched values that are 1 or 255 above which limits do not suit the images."""

SIZES = {"uint8": 256, "uint16": 65536}
"""Number of values of each dtype that is mapped by a table."""


def percentile_limits(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the values that become black and white, float64 (band, 2), from histograms.

    As in CRESI's create_8bit_images: percentiles 2 and 98 of the values above 0, linearly
    interpolated, with a lower limit of at least 1. Equal to ``np.percentile`` over the pixels.
    """
    limits = np.empty((len(counts), 2))
    for band, histogram in enumerate(counts):
        if len(histogram) == BINS:
            low, high = wide_percentiles(histogram, PERCENTILES)
            limits[band] = low, high if high > low else low + 1.0
            continue
        below = np.cumsum(histogram[1:])  # value v sits at index v - 1
        low, high = (_percentile(below, p) for p in PERCENTILES)
        low = max(1.0, low)
        limits[band] = low, high if high > low else low + 1.0
    return limits


def _percentile(below: NDArray[np.int64], percent: float) -> float:
    total = int(below[-1])
    if total == 0:
        return 1.0
    # The "linear" method of NumPy in its order of operations, for equal bits.
    position = percent / 100 * (total - 1)
    index = int(np.floor(position))
    part = position - index
    a, b = (float(np.searchsorted(below, min(i, total - 1) + 1) + 1) for i in (index, index + 1))
    return b - (b - a) * (1 - part) if part >= 0.5 else a + (b - a) * part


def source_limits(
    limits: Sequence[object], bands: int, units: Sequence[tuple[float, float]]
) -> NDArray[np.float64]:
    """Return the values of a source that limits in its unit mean, float64 (band, 2).

    ``limits`` are a pair for all bands, or one for each. ``units`` are scale and offset of each
    band, empty where values have no other meaning.

    Examples
    --------
    >>> source_limits((0.0, 0.5), 1, [(0.0001, -0.1)]).round(6).tolist()
    [[1000.0, 6000.0]]
    """
    scales, offsets = np.array(units or [(1.0, 0.0)] * bands).T[..., None]
    known: NDArray[np.float64] = (np.array(limits) - offsets) / scales  # falling if scales are < 0
    return known


def value_kind(dtype: str, *, scaled: bool) -> str:
    """Return what limits of a dtype belong to; values with scale and offset have a ``unit``."""
    if scaled or dtype.startswith("float"):
        return "unit"
    return "8 bits" if dtype.endswith("int8") else "integers"


def lookup_tables(limits: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """Return the byte for every value of a dtype, uint8 (band, value); of wide dtypes the limits.

    ``clip(floor((v - lo) * 255 / (hi - lo) + 0.5), 1, 255)``: as GDAL's ``-scale``, but 0 is
    reserved for nodata.
    """
    if dtype not in SIZES:
        return limits
    table = np.ones((len(limits), SIZES[dtype]), np.uint8)
    for of_band, (low, high) in zip(table, limits.tolist(), strict=True):
        # Compute only between the limits: few of 65536 values in an 11-bit image.
        first = min(max(int(np.floor(min(low, high))), 0), len(of_band))
        last = min(max(int(np.ceil(max(low, high))) + 1, first), len(of_band))
        values = np.arange(first, last, dtype=np.float64)
        scaled = np.floor((values - low) * 255 / (high - low) + 0.5)
        of_band[first:last] = np.clip(scaled, 1, 255)
        of_band[slice(last, None) if high > low else slice(first)] = 255
    return table
