"""Compiled inner loops over pixels: counting, averaging and mapping to bytes.

``values`` is uint8 or uint16 (y, x, band); ``valid`` uint8 (y, x), or (0, 0) if all pixels are;
``tables`` uint8 (band, value). ``out`` (y, x, band) and ``out_valid`` (y, x) are at least as large
as the result. ``bands`` is a tuple whose length tells numba the number of bands when it compiles;
its items are not used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled

_ALL_VALID = np.empty((0, 0), np.uint8)


def bands_of(values: NDArray[Any]) -> tuple[int, ...]:
    """Return a tuple of zeros, one per band of values (y, x, band)."""
    count: int = values.shape[2]
    return (0,) * count


def mask_of(valid: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Return the ``valid`` argument for a validity mask; None means all pixels are valid."""
    return _ALL_VALID if valid is None else valid


@compiled
def count_values(
    values: NDArray[Any],
    valid: NDArray[np.uint8],
    bands: tuple[int, ...],
    counts: NDArray[np.int64],
) -> None:
    """Add the valid values to one histogram per band, int64 (band, value)."""
    masked = valid.shape[0] > 0
    for y in range(values.shape[0]):
        for x in range(values.shape[1]):
            if masked and valid[y, x] == 0:
                continue
            for k in range(len(bands)):
                counts[k, values[y, x, k]] += 1


@compiled
def any_differs(
    values: NDArray[Any], bands: tuple[int, ...], nodata: int, out: NDArray[np.uint8]
) -> None:
    """Write where pixels differ from ``nodata`` in a band."""
    for y in range(values.shape[0]):
        for x in range(values.shape[1]):
            differs = False
            for k in range(len(bands)):
                differs |= values[y, x, k] != nodata
            out[y, x] = differs


@compiled
def map_pixels(
    values: NDArray[Any],
    valid: NDArray[np.uint8],
    bands: tuple[int, ...],
    window: tuple[int, int, int, int],
    tables: NDArray[np.uint8],
    out: NDArray[np.uint8],
    out_valid: NDArray[np.uint8],
) -> None:
    """Map every pixel of a window (row, column, height, width) by the tables, nodata to 0."""
    row, col, height, width = window
    masked = valid.shape[0] > 0
    for y in range(height):
        for x in range(width):
            if masked:
                out_valid[y, x] = valid[row + y, col + x]
            if masked and valid[row + y, col + x] == 0:
                for k in range(len(bands)):
                    out[y, x, k] = 0
            else:
                for k in range(len(bands)):
                    out[y, x, k] = tables[k, values[row + y, col + x, k]]


@compiled
def map_quads(
    values: NDArray[Any],
    valid: NDArray[np.uint8],
    bands: tuple[int, ...],
    window: tuple[int, int, int, int],
    tables: NDArray[np.uint8],
    out: NDArray[np.uint8],
    out_valid: NDArray[np.uint8],
) -> None:
    """Average blocks of 2 x 2 pixels as `area_means`, four times as fast; sides are even."""
    row, col, height, width = window
    masked = valid.shape[0] > 0
    for y in range(height // 2):
        i = row + 2 * y
        for x in range(width // 2):
            j = col + 2 * x
            count = 4
            if masked:
                count = np.int64(valid[i, j]) + valid[i, j + 1]
                count += np.int64(valid[i + 1, j]) + valid[i + 1, j + 1]
                out_valid[y, x] = 1 if count >= 2 else 0
            for k in range(len(bands)):
                a, b = np.int64(values[i, j, k]), np.int64(values[i, j + 1, k])
                c, d = np.int64(values[i + 1, j, k]), np.int64(values[i + 1, j + 1, k])
                if count == 4:
                    out[y, x, k] = tables[k, (a + b + c + d + 2) >> 2]
                elif count >= 2:
                    total = a * valid[i, j] + b * valid[i, j + 1]
                    total += c * valid[i + 1, j] + d * valid[i + 1, j + 1]
                    out[y, x, k] = tables[k, (2 * total + count) // (2 * count)]
                else:
                    out[y, x, k] = 0


@compiled
def area_means(
    values: NDArray[Any],
    valid: NDArray[np.uint8],
    bands: tuple[int, ...],
    ys: NDArray[np.float64],
    xs: NDArray[np.float64],
    out: NDArray[np.float64],
    out_valid: NDArray[np.uint8],
) -> None:
    """Average the valid source under every output pixel; less than half valid is 0.

    ``ys`` and ``xs`` are the edges of the output pixels in source pixels, ascending.
    """
    masked, count = valid.shape[0] > 0, len(xs) - 1
    # How much of each source column an output column covers: one after the other, from `begins` on.
    share = np.empty(int(np.ceil(xs[-1]) - np.floor(xs[0])) + 2 * count, np.float64)
    begins, first = np.zeros(count + 1, np.int64), np.empty(count, np.int64)
    for c in range(count):
        at, (x0, x1) = begins[c], (xs[c], xs[c + 1])
        first[c] = int(np.floor(x0))
        for j in range(first[c], min(int(np.ceil(x1)), values.shape[1])):
            share[at] = min(j + 1.0, x1) - max(float(j), x0)
            at += 1
        begins[c + 1] = at
    sums = np.zeros(len(bands), np.float64)
    for r in range(len(ys) - 1):
        y0, y1 = ys[r], ys[r + 1]
        for c in range(count):
            area = 0.0
            for k in range(len(bands)):
                sums[k] = 0.0
            for i in range(int(np.floor(y0)), min(int(np.ceil(y1)), values.shape[0])):
                high = min(i + 1.0, y1) - max(float(i), y0)
                for n in range(begins[c + 1] - begins[c]):
                    j = first[c] + n
                    if masked and valid[i, j] == 0:
                        continue
                    weight = high * share[begins[c] + n]
                    area += weight
                    for k in range(len(bands)):
                        sums[k] += weight * values[i, j, k]
            whole = (y1 - y0) * (xs[c + 1] - xs[c])
            # The tolerance keeps exactly half valid blocks valid.
            keep = area > 0.0 and area >= 0.5 * whole - 1e-9
            out_valid[r, c] = 1 if keep else 0
            for k in range(len(bands)):
                out[r, c, k] = sums[k] / area if keep else 0.0


@compiled
def map_means(
    means: NDArray[np.float64],
    valid: NDArray[np.uint8],
    bands: tuple[int, ...],
    tables: NDArray[np.uint8],
    out: NDArray[np.uint8],
) -> None:
    """Map the means of `area_means` to bytes, nodata to 0."""
    for y in range(means.shape[0]):
        for x in range(means.shape[1]):
            for k in range(len(bands)):
                if valid[y, x] != 0:
                    # Rounding errors must not push a true half below it.
                    out[y, x, k] = tables[k, int(np.floor(means[y, x, k] + 0.5 + 1e-9))]
                else:
                    out[y, x, k] = 0
