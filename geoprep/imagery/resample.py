"""Source pixels -> the pixels of a level: area averages, each mapped to bytes once."""

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
    """Return where wanted pixels lie along one axis of the source.

    Parameters
    ----------
    start
        Where the first one begins, in pixels of the finest level.
    count
        How many are wanted.
    step
        Pixels of the finest level in each: 1, or 2, 4, ... at coarser levels.
    scale
        Source pixels per pixel of the finest level.
    length
        Pixels of the source; edges past it are moved onto it.

    Returns
    -------
    ndarray
        float64 (count + 1), in source pixels.
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
    """Average the source under every wanted pixel and map it to bytes, once.

    Parameters
    ----------
    pixels
        The source, or the window of it that the edges refer to.
    tables
        uint8 (band, value), or float64 (band, 2) limits for wide values, from
        :func:`geoprep.imagery.lookup_tables`.
    ys, xs
        From :func:`pixel_edges`. Whole steps of one size take a faster path.
    out
        uint8 (y, x, band), at least as large as wanted; its upper left is written, 0 where there
        is no imagery and only there.
    out_valid
        uint8 (y, x), likewise: 1 where there is imagery.
    """
    if is_held_wide(pixels.values):
        _stretch_means(pixels, tables, ys, xs, out, out_valid)
        return
    if pixels.valid is None:
        out_valid[: len(ys) - 1, : len(xs) - 1] = 1
    factor = _whole_step(ys, xs)
    if factor:
        row, col = int(ys[0]), int(xs[0])
        window = row, col, int(ys[-1]) - row, int(xs[-1]) - col
        map_block_means(pixels, window, factor, tables, out, out_valid)
    else:
        values, bands = pixels.values, kernels.bands_of(pixels.values)
        valid = kernels.mask_of(pixels.valid)
        kernels.map_area_means(values, valid, bands, ys, xs, tables, out, out_valid)


def _stretch_means(
    pixels: ImageWindow,
    limits: NDArray[Any],
    ys: NDArray[np.float64],
    xs: NDArray[np.float64],
    out: NDArray[np.uint8],
    out_valid: NDArray[np.uint8],
) -> None:
    values, bands = pixels.values, kernels.bands_of(pixels.values)
    height, width = len(ys) - 1, len(xs) - 1
    means = np.empty((height, width, len(bands)), np.float64)
    kernels.area_means(values, kernels.mask_of(pixels.valid), bands, ys, xs, means, out_valid)
    valid = out_valid[:height, :width, None]
    out[:height, :width] = stretch(means, limits) * (valid != 0)


def map_block_means(
    pixels: ImageWindow,
    window: tuple[int, int, int, int],
    factor: int,
    tables: NDArray[np.uint8],
    out: NDArray[np.uint8],
    out_valid: NDArray[np.uint8],
) -> None:
    """Average blocks of ``factor`` x ``factor`` pixels and map the means, by the fastest loop.

    Parameters
    ----------
    pixels, window, factor, tables, out, out_valid
        As in :func:`geoprep.imagery.kernels.map_blocks`; ``out_valid`` is not written where
        everything is valid.
    """
    values, valid = pixels.values, kernels.mask_of(pixels.valid)
    bands = kernels.bands_of(values)
    even = window[2] % 2 == 0 and window[3] % 2 == 0
    if factor == 1 and pixels.valid is None and kernels.keeps_bytes(tables):
        kernels.keep_bytes(values, window, out)
    elif factor == 1:
        kernels.map_pixels(values, valid, bands, window, tables, out, out_valid)
    elif factor == 2 and even:
        kernels.map_quads(values, valid, bands, window, tables, out, out_valid)
    else:
        kernels.map_blocks(values, valid, bands, window, factor, tables, out, out_valid)


def _whole_step(ys: NDArray[np.float64], xs: NDArray[np.float64]) -> int:
    """Return the step between edges if it is one whole number, 0 otherwise.

    Only a last pixel cut short by the image's edge may differ.
    """
    step = ys[1] - ys[0]
    if step != np.floor(step) or xs[1] - xs[0] != step or ys[0] % 1 or xs[0] % 1 or step < 1:
        return 0
    regular = all((np.diff(edges[:-1]) == step).all() and edges[-1] % 1 == 0 for edges in (ys, xs))
    return int(step) if regular else 0
