"""Read a window of an image in its own dtype, with the pixels that hold imagery."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.io import DatasetReader
from rasterio.windows import Window

from geoprep.imagery import kernels
from geoprep.imagery.description import Raster
from geoprep.imagery.validity import Nodata, edge_black
from geoprep.imagery.wide import find_usable, held_dtype, is_held_wide


@dataclass(frozen=True, slots=True)
class ImageWindow:
    """Decoded pixels of a window of an image."""

    values: NDArray[Any]  # (y, x, band), uint8, uint16, or floats of wide dtypes; C-contiguous
    valid: NDArray[np.uint8] | None = None  # (y, x), 1 where there is imagery; None: everywhere
    # bool (y, x), pixels that are nodata only because they are black; None: there are none. Those
    # of a window are a guess, until the whole image has decided.
    black: NDArray[np.bool_] | None = None

    @property
    def area(self) -> int:
        """Number of pixels."""
        return int(self.values.shape[0] * self.values.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of the mask."""
        return self.values.nbytes + (0 if self.valid is None else self.valid.nbytes)

    @property
    def valid_pixels(self) -> int:
        """Number of pixels that hold imagery."""
        return self.area if self.valid is None else int(np.count_nonzero(self.valid))

    @property
    def black_pixels(self) -> int:
        """Number of pixels that are nodata only because they are black."""
        return 0 if self.black is None else int(np.count_nonzero(self.black))

    def part(
        self, rows: slice | NDArray[Any], cols: slice | NDArray[Any] = slice(None)
    ) -> ImageWindow:
        """Return a part of the window, without its undecided black pixels."""
        valid = None if self.valid is None else self.valid[rows, cols]
        return ImageWindow(self.values[rows, cols], valid)


def joined(parts: Sequence[ImageWindow]) -> ImageWindow:
    """Return windows below each other as one."""
    values = [part.values for part in parts]
    whole = np.ascontiguousarray(values[0]) if len(values) == 1 else np.concatenate(values)
    if all(part.valid is None for part in parts):
        return ImageWindow(whole)
    masks = [
        np.ones(part.values.shape[:2], np.uint8) if part.valid is None else part.valid
        for part in parts
    ]
    return decided(ImageWindow(whole), np.concatenate(masks))


def read_pixels(
    dataset: DatasetReader,
    bands: Sequence[int],
    window: Window | None = None,
    *,
    nodata: Nodata = None,
    mask: NDArray[np.uint8] | None = None,
) -> ImageWindow:
    """Read 1-based bands and find the valid pixels, by the rules of `geoprep.imagery.validity`.

    ``mask``, uint8 (y, x), has them if they are decided already. Without it all black pixels of a
    window are guessed to be nodata where black decides; of a whole image it is decided here.
    """
    raster = Raster.of(dataset).reading(bands)
    values, extra = _read_bands(dataset, raster, bands, window, with_alpha=mask is None)
    if mask is not None:
        return decided(ImageWindow(values), mask)
    marker = None if nodata == "none" else nodata
    black = None
    if marker is not None:  # of a palette the colour, as in other images
        valid = find_valid(values, marker)
    elif raster.has_mask:
        valid = (dataset.read_masks(1, window=window) != 0).view(np.uint8)
    elif raster.alpha is not None:
        valid = (extra != 0).view(np.uint8)
    elif raster.has_band_masks:
        masks = dataset.read_masks([1] if raster.palette else [*bands], window=window)
        valid = (masks != 0).any(axis=0).view(np.uint8)
    elif raster.palette is not None and raster.states_nodata:
        marked = raster.colours[:, 3] == 0
        if raster.bands[0].nodata is not None:
            marked |= np.arange(256) == raster.bands[0].nodata
        valid = (~marked)[extra].view(np.uint8)
    elif raster.states_nodata:
        valid = _differs(values, raster, bands)
    elif nodata == "none":
        valid = np.ones(values.shape[:2], np.uint8)
    else:
        valid = find_valid(values, 0)
        black = _black(values, valid)
        if black is not None and window is None:
            outer = edge_black(black)
            valid |= black & ~outer
            black = outer if outer.any() else None
    if is_held_wide(values):
        valid &= find_usable(values, raster.nodata_of(bands) if marker is None else marker)
    return ImageWindow(values, None if valid.all() else valid, black)


def decided(pixels: ImageWindow, mask: NDArray[np.uint8]) -> ImageWindow:
    """Return a window with the validity, uint8 (y, x), that the whole image has decided."""
    return replace(pixels, valid=None if mask.all() else mask, black=None)


def _black(values: NDArray[Any], valid: NDArray[np.uint8]) -> NDArray[np.bool_] | None:
    """Return the pixels that are 0 in all bands; None: there are none. NaN is not black."""
    black = valid == 0
    if is_held_wide(values):
        black &= find_usable(values, None)
    return black if black.any() else None


def _read_bands(
    dataset: DatasetReader,
    raster: Raster,
    bands: Sequence[int],
    window: Window | None,
    *,
    with_alpha: bool,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the bands (y, x, band), and alpha or else the indexes of a palette (y, x)."""
    if raster.palette is not None:
        indexes, *alphas = dataset.read([1, raster.alpha] if raster.alpha else [1], window=window)
        values = raster.colours[:, [band - 1 for band in bands]][indexes]
        return values, alphas[0] if alphas else indexes
    alpha = [raster.alpha] if with_alpha and raster.alpha is not None else []
    shape = raster.grid.shape if window is None else (int(window.height), int(window.width))
    dtype = held_dtype(raster.bands[bands[0] - 1].dtype)
    values = np.empty((*shape, len(bands) + len(alpha)), dtype)
    # Read into the final axis order: GDAL fills pixel-interleaved buffers directly.
    dataset.read([*bands, *alpha], out=values.transpose(2, 0, 1), window=window)
    return np.ascontiguousarray(values[..., : len(bands)]), values[..., -1]


def _differs(values: NDArray[Any], raster: Raster, bands: Sequence[int]) -> NDArray[np.uint8]:
    """Return where any band differs from its own nodata value, as rasterio's dataset_mask."""
    stated = {band.nodata for band in raster.bands}
    if len(stated) == 1:
        return find_valid(values, float(stated.pop() or 0))
    valid = np.ones(values.shape[:2], np.bool_)
    nodata = raster.nodata_of(bands)
    if None not in nodata:  # a band without one is valid everywhere
        valid = np.logical_or.reduce([values[..., k] != marker for k, marker in enumerate(nodata)])
    return valid.view(np.uint8)


def find_valid(values: NDArray[Any], nodata: float) -> NDArray[np.uint8]:
    """Return uint8 (y, x), 1 where any band of (y, x, band) differs from a value."""
    if is_held_wide(values):
        nodata = float(values.dtype.type(nodata))
        differs = (values != nodata) & np.isfinite(values)
        anywhere: NDArray[np.uint8] = differs.any(axis=2).view(np.uint8)
        return anywhere
    if not 0 <= nodata <= np.iinfo(values.dtype).max or nodata != int(nodata):
        return np.ones(values.shape[:2], np.uint8)  # the dtype cannot hold it, as NaN
    if "numba" not in sys.modules:  # it takes long to import, and a device needs none of it
        bands = (values[..., k] != int(nodata) for k in range(values.shape[2]))
        return np.asarray(reduce(np.logical_or, bands)).view(np.uint8)
    valid = np.empty(values.shape[:2], np.uint8)
    kernels.any_differs(values, kernels.bands_of(values), values.dtype.type(nodata), valid)
    return valid
