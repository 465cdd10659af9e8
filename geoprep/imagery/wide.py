"""Wide dtypes: signed, 32-bit and floating-point imagery, whose values are too many for a table.

Values are counted as 32-bit floats in one histogram per band with 2,048 bins per factor of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

WIDE: Final = ("int8", "int16", "float32", "int32", "uint32", "int64", "uint64", "float64")
"""Source dtypes that are rescaled by limits rather than a table."""

_DROPPED_BITS: Final = 12
BINS: Final = 1 << (32 - _DROPPED_BITS)


def held_dtype(dtype: str) -> str:
    """Return the dtype that pixels of a source dtype are read into: it holds its values, or NaN."""
    return np.result_type(dtype, np.float32).name if dtype in WIDE else dtype


def is_held_wide(values: NDArray[Any]) -> bool:
    """Return whether values were read from a wide dtype."""
    return values.dtype.kind == "f"


def find_usable(
    values: NDArray[Any], nodata: float | Sequence[float | None] | None
) -> NDArray[np.bool_]:
    """Return where no band is NaN, infinite or its ``nodata``, bool (y, x)."""
    # One band suffices: a marker such as -9999 is not a valid value of other bands either.
    usable: NDArray[np.bool_] = np.isfinite(values).all(axis=2)
    of_bands = nodata if isinstance(nodata, Sequence) else [nodata] * values.shape[2]
    for band, value in enumerate(of_bands):
        if value is not None and np.isfinite(value):
            usable &= values[..., band] != values.dtype.type(value)
    return usable


def count_wide(values: NDArray[Any], valid: NDArray[np.uint8] | None) -> NDArray[np.int64]:
    """Return the number of valid pixels per bin, int64 (band, BINS)."""
    counts = np.zeros((values.shape[2], BINS), np.int64)
    for band, of_band in enumerate(counts):
        chosen = values[..., band]
        chosen = chosen.ravel() if valid is None else chosen[valid != 0]
        if len(bins := _bins(chosen)):
            first = bins.min()  # of the million bins only those between values are touched
            found = np.bincount(bins - first)
            of_band[first : first + len(found)] = found
    return counts


def _bins(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the bins of finite values, from the bits of floats in ascending order."""
    bits = np.clip(values, -_LARGEST, _LARGEST).astype(np.float32).view(np.uint32)
    ascending = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    bins: NDArray[np.int64] = (ascending >> _DROPPED_BITS).astype(np.int64)
    return bins


_LARGEST: Final = float(np.finfo(np.float32).max)


def _edge(number: int) -> float:
    """Return the least value of a bin."""
    ascending = np.array([min(number, BINS - 1) << _DROPPED_BITS], np.uint32)
    bits = np.where(ascending >> 31, ascending ^ np.uint32(1 << 31), ~ascending)
    return float(bits.astype(np.uint32).view(np.float32)[0])


def wide_percentiles(histogram: NDArray[np.int64], percents: Sequence[float]) -> list[float]:
    """Return percentiles (0 to 100) of values, taken as evenly spread within their bins."""
    used = np.flatnonzero(histogram)  # few of a million, in a small scene
    counts = histogram[used]
    below = np.cumsum(counts)
    return [_percentile(used, counts, below, percent) for percent in percents]


def _percentile(
    used: NDArray[np.int64], counts: NDArray[np.int64], below: NDArray[np.int64], percent: float
) -> float:
    if not len(used):
        return 0.0
    position = percent / 100 * float(below[-1] - 1)
    index = int(np.searchsorted(below, position, side="right"))
    before = float(below[index] - counts[index])
    share = (position - before + 0.5) / float(counts[index])
    low, high = _edge(int(used[index])), _edge(int(used[index]) + 1)
    if not np.isfinite(high):
        return low
    return low + (high - low) * min(share, 1.0)


def stretch(values: NDArray[Any], limits: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return values (..., band) as bytes 1 to 255, by the formula of `lookup_tables`."""
    low, high = limits[:, 0], limits[:, 1]
    scaled = np.floor((values - low) * 255 / (high - low) + 0.5)
    bytes_: NDArray[np.uint8] = np.clip(scaled, 1, 255).astype(np.uint8)
    return bytes_
