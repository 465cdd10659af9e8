"""Resample source pixels to a level by area averages, and map them to bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.imagery import kernels
from geoprep.imagery.decoding import ImageWindow
from geoprep.imagery.wide import is_held_wide, stretch


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

    The upper left of ``out`` (y, x, band) and ``out_valid`` is written. Equal whole steps between
    edges are faster. ``tables`` come from `lookup_tables`.
    """
    height, width = len(ys) - 1, len(xs) - 1
    factor = 0 if is_held_wide(pixels.values) else _whole_step(ys, xs)
    if factor:
        if pixels.valid is None:
            out_valid[:height, :width] = 1
        row, col = int(ys[0]), int(xs[0])
        window = row, col, int(ys[-1]) - row, int(xs[-1]) - col
        map_block_means(pixels, window, factor, tables, out, out_valid)
        return
    values, bands = pixels.values, kernels.bands_of(pixels.values)
    means = np.empty((height, width, len(bands)), np.float64)
    kernels.area_means(values, kernels.mask_of(pixels.valid), bands, ys, xs, means, out_valid)
    if is_held_wide(values):
        out[:height, :width] = stretch(means, tables) * (out_valid[:height, :width, None] != 0)
    else:
        kernels.map_means(means, out_valid, bands, tables, out)


def map_block_means(
    pixels: ImageWindow,
    window: tuple[int, int, int, int],
    factor: int,
    tables: NDArray[np.uint8],
    out: NDArray[np.uint8],
    out_valid: NDArray[np.uint8],
) -> None:
    """Average blocks of ``factor`` x ``factor`` pixels and map the means to bytes."""
    values, valid = pixels.values, kernels.mask_of(pixels.valid)
    bands = kernels.bands_of(values)
    even = window[2] % 2 == 0 and window[3] % 2 == 0
    if factor == 1 and pixels.valid is None and _keeps_bytes(tables):
        kernels.keep_bytes(values, window, out)
    elif factor == 1:
        kernels.map_pixels(values, valid, bands, window, tables, out, out_valid)
    elif factor == 2 and even:
        kernels.map_quads(values, valid, bands, window, tables, out, out_valid)
    else:
        kernels.map_blocks(values, valid, bands, window, factor, tables, out, out_valid)


def _keeps_bytes(tables: NDArray[np.uint8]) -> bool:
    """Return whether tables map every byte to itself, and 0 to 1."""
    return tables.shape[1] == 256 and bool((tables == np.maximum(np.arange(256), 1)).all())


def _whole_step(ys: NDArray[np.float64], xs: NDArray[np.float64]) -> int:
    """Return the step between edges if it is the same whole number everywhere, else 0."""
    step = ys[1] - ys[0]
    if step != np.floor(step) or xs[1] - xs[0] != step or ys[0] % 1 or xs[0] % 1 or step < 1:
        return 0
    regular = all((np.diff(edges[:-1]) == step).all() and edges[-1] % 1 == 0 for edges in (ys, xs))
    return int(step) if regular else 0
