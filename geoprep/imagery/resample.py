"""Resample source pixels to a level by area averages, and map them to bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.imagery import kernels
from geoprep.imagery.decoding import ImageWindow
from geoprep.imagery.wide import is_held_wide, stretch

_MEANS_BYTES = 4 << 20
"""Bytes of averages of rows that are mapped at a time."""


def pixel_edges(
    start: int, count: int, step: int, scale: float, length: int
) -> NDArray[np.float64]:
    """Return the edges of output pixels along one axis in source pixels, at most ``length``.

    ``start`` and ``step`` are in pixels of the finest level, each of ``scale`` source pixels.
    """
    edges: NDArray[np.float64] = (start + step * np.arange(count + 1, dtype=np.float64)) * scale
    return np.minimum(edges, np.float64(length))


def render(
    pixels: ImageWindow,
    tables: NDArray[Any],
    ys: NDArray[np.float64],
    xs: NDArray[np.float64],
    out: NDArray[np.uint8],
    out_valid: NDArray[np.uint8],
) -> None:
    """Average the source under every output pixel and map the mean to a byte.

    The upper left of ``out`` (y, x, band) and ``out_valid`` is written. Steps of one or two
    pixels are faster. ``tables`` come from `lookup_tables`.
    """
    height, width = len(ys) - 1, len(xs) - 1
    values, bands = pixels.values, kernels.bands_of(pixels.values)
    valid, step = kernels.mask_of(pixels.valid), _whole_step(ys, xs)
    if step and not is_held_wide(values):
        if pixels.valid is None:
            out_valid[:height, :width] = 1
        window = int(ys[0]), int(xs[0]), step * height, step * width
        if step == 2:
            kernels.map_quads(values, valid, bands, window, tables, out, out_valid)
        else:
            kernels.map_pixels(values, valid, bands, window, tables, out, out_valid)
        return
    rows = max(1, _MEANS_BYTES // (8 * width * len(bands)))
    means = np.empty((min(rows, height), width, len(bands)), np.float64)
    for top in range(0, height, rows):
        some = means[: height - top]
        image, known = out[top : top + len(some)], out_valid[top : top + len(some)]
        kernels.area_means(values, valid, bands, ys[top : top + rows + 1], xs, some, known)
        if is_held_wide(values):
            image[:, :width] = stretch(some, tables) * (known[:, :width, None] != 0)
        else:
            kernels.map_means(some, known, bands, tables, image)


def rendered(
    pixels: ImageWindow,
    tables: NDArray[Any],
    ys: NDArray[np.float64],
    xs: NDArray[np.float64],
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the bytes (y, x, band) and their validity (y, x) that `render` writes."""
    shape = len(ys) - 1, len(xs) - 1
    image, valid = np.empty((*shape, pixels.values.shape[2]), np.uint8), np.empty(shape, np.uint8)
    render(pixels, tables, ys, xs, image, valid)
    return image, valid


def _whole_step(ys: NDArray[np.float64], xs: NDArray[np.float64]) -> int:
    """Return the step between edges if it is 1 everywhere, or 2, from whole pixels on; else 0."""
    steps = np.unique([*np.diff(ys), *np.diff(xs)])
    whole = len(steps) == 1 and steps[0] in (1, 2) and ys[0] % 1 == xs[0] % 1 == 0
    return int(steps[0]) if whole else 0
