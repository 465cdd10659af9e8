"""Some pixels of a raster as they are stored, never those of its overviews.

A decimated read takes overviews, whose values are others: averages, cubic ones of GDAL's driver of
Cloud Optimised GeoTIFFs, wavelet levels of JPEG 2000. So values, classes and nodata are read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rasterio.io import DatasetReader
from rasterio.windows import Window

from geoprep.imagery.description import Raster

_WHOLE: Final = 1024
"""Pixels of an axis that are sampled completely; of a longer one as many, in runs."""
_RUNS: Final = 8
_STRIP_ROWS: Final = 512


def sample_pixels(dataset: DatasetReader, band: int) -> NDArray[Any]:
    """Return pixels of a band, counted from 1, of windows that are evenly spread; one axis.

    If they have one value, the first rows with another one follow.
    """
    height, width = dataset.shape
    windows = [
        Window(left, top, columns, rows)
        for top, rows in _runs(height)
        for left, columns in _runs(width)
    ]
    sample = np.concatenate([dataset.read(band, window=window).ravel() for window in windows])
    if len(sample) < height * width and (sample == sample[0]).all():
        for window in _strips(height, width):
            rows = dataset.read(band, window=window).ravel()
            if (rows != sample[0]).any():
                return np.concatenate([sample, rows])
    return sample


def nearest_pixels(
    read: Callable[..., NDArray[Any]],
    bands: int | Sequence[int] | None,
    window: Window,
    shape: tuple[int, ...],
) -> NDArray[Any]:
    """Return the pixels (..., y, x) nearest to the centres of another grid over a window.

    ``read`` is a data set's ``read`` or ``read_masks``, for the bands (None: all).
    """
    ys, xs = (
        (2 * np.arange(count) + 1) * length // (2 * count)
        for count, length in zip(shape, (window.height, window.width), strict=True)
    )
    of_strips = []
    for strip in _strips(window.height, window.width):
        rows = ys[(ys >= strip.row_off) & (ys < strip.row_off + strip.height)] - strip.row_off
        if len(rows):
            corner = window.col_off, window.row_off + strip.row_off
            values = read(bands, window=Window(*corner, strip.width, strip.height))
            of_strips.append(values[..., rows[:, None], xs])
    return np.concatenate(of_strips, axis=-2)


def nearest_imagery(
    dataset: DatasetReader, raster: Raster, bands: Sequence[int], shape: tuple[int, ...]
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the pixels (band, y, x) nearest to a coarser grid's, and which of them hold imagery.

    Nodata is what the file states, and not finite; black is imagery.
    """
    whole = Window(0, 0, dataset.width, dataset.height)
    values, masks = (
        nearest_pixels(read, bands, whole, shape) for read in (dataset.read, dataset.read_masks)
    )
    valid = masks.any(axis=0) & np.isfinite(values).any(axis=0)
    if raster.palette:
        valid &= raster.colours[values[0], 3] > 0
    return values, valid


def _runs(length: int) -> list[tuple[int, int]]:
    """Return the starts and lengths of the sampled runs of an axis."""
    if length <= _WHOLE:
        return [(0, length)]
    run = _WHOLE // _RUNS
    return [(round(i * (length - run) / (_RUNS - 1)), run) for i in range(_RUNS)]


def _strips(height: int, width: int) -> list[Window]:
    return [
        Window(0, top, width, min(_STRIP_ROWS, height - top))
        for top in range(0, height, _STRIP_ROWS)
    ]
