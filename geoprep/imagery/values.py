"""Values of rasters as they are stored: of masks, classes, roads, and of samples of images.

A decimated read takes overviews, whose values are others: averages, cubic ones of GDAL's driver of
Cloud Optimised GeoTIFFs, wavelet levels of JPEG 2000. So values, classes and nodata are read here.
What they mean is up to the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window

from geoprep.imagery.decoding import ImageWindow, joined, read_pixels
from geoprep.imagery.description import Raster
from geoprep.imagery.wide import find_usable, held_dtype, is_held_wide
from geoprep.storage.inputs import open_image

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

    from geoprep.grid import Grid

_CACHE_BYTES: Final = 64 << 20
"""Bytes of blocks that GDAL keeps: rows of blocks are read window by window."""
_WHOLE: Final = 1024
"""Pixels of an axis that are sampled completely; of a longer one as many, in runs."""
_RUNS: Final = 8
_STRIP_ROWS: Final = 512


@dataclass(frozen=True, slots=True)
class ValueRaster:
    """An open raster whose values are read, and what it states about itself.

    Bands are numbered from 1; by default they are all but alpha.
    """

    dataset: DatasetReader
    raster: Raster

    @property
    def bands(self) -> list[int]:
        """All bands but alpha."""
        return [n for n in range(1, len(self.raster.bands) + 1) if n != self.raster.alpha]

    def read(self, window: Window | None = None) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return a window (band, y, x), and where alpha or a mask show it; None: everywhere.

        Values that a nodata tag or a palette mark are shown.
        """
        raster, values = self.raster, self.dataset.read(self.bands, window=window)
        if raster.alpha is not None:
            return values, self.dataset.read(raster.alpha, window=window) != 0
        if raster.has_mask or raster.has_band_masks:  # where any band is, as in images
            masks = self.dataset.read_masks(self.bands, window=window)
            return values, (masks != 0).any(axis=0)
        return values, None

    def on_grid(
        self,
        grid: Grid,
        bands: Sequence[int] | None = None,
        window: Window | None = None,
        *,
        smooth: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return bands (band, y, x) on another grid, or a window of it, and where they have data.

        Pixels are the nearest ones, or interpolated if ``smooth``.
        """
        place = {"crs": grid.crs, "transform": grid.transform}
        place |= {"width": grid.width, "height": grid.height}
        with WarpedVRT(
            self.dataset,
            **place,
            resampling=Resampling.bilinear if smooth else Resampling.nearest,
            add_alpha=self.dataset.nodata is None and self.raster.alpha is None,
        ) as warped:
            values = warped.read(bands or self.bands, window=window)
            return values, warped.dataset_mask(window=window) > 0

    def sample(self, band: int) -> NDArray[Any]:
        """Return pixels of a band, of windows that are evenly spread; one axis.

        If they have one value, the first rows with another one follow.
        """
        height, width = self.dataset.shape
        windows = [
            Window(left, top, columns, rows)
            for top, rows in _runs(height)
            for left, columns in _runs(width)
        ]
        parts = [self.dataset.read(band, window=window).ravel() for window in windows]
        sample = np.concatenate(parts)
        if len(sample) < height * width and (sample == sample[0]).all():
            for window in _strips(height, width):
                rows = self.dataset.read(band, window=window).ravel()
                if (rows != sample[0]).any():
                    return np.concatenate([sample, rows])
        return sample

    def nearest(
        self,
        shape: tuple[int, ...],
        bands: Sequence[int] | None = None,
        window: Window | None = None,
    ) -> NDArray[Any]:
        """Return the pixels (band, y, x) nearest to the centres of another grid over a window."""
        bands = bands or self.bands
        parts = [
            self.dataset.read(bands, window=strip)[:, rows, cols]
            for strip, rows, cols in _nearest(shape, window or self._whole)
        ]
        return np.concatenate(parts, axis=1)

    def imagery(
        self, shape: tuple[int, ...], bands: Sequence[int], window: Window | None = None
    ) -> ImageWindow:
        """Return pixels of an image as `nearest` does, and which of them hold imagery.

        They are read as by a build: bands of a palette are its colours. Nodata is what the file
        states, and not finite; black is imagery.
        """
        parts = [
            read_pixels(self.dataset, bands, strip, nodata="none").part(rows, cols)
            for strip, rows, cols in _nearest(shape, window or self._whole)
        ]
        return joined(parts)

    def picture(
        self, shape: tuple[int, ...], bands: Sequence[int], window: Window | None = None
    ) -> ImageWindow:
        """Return `imagery` to be looked at: of overviews, unless the file states nodata."""
        if self.raster.palette is not None or self.raster.states_nodata:
            return self.imagery(shape, bands, window)
        read = self.dataset.read(bands, out_shape=(len(bands), *shape), window=window)
        values = np.ascontiguousarray(np.moveaxis(read, 0, 2), held_dtype(read.dtype.name))
        usable = find_usable(values, None) if is_held_wide(values) else None
        return ImageWindow(values, None if usable is None else usable.view(np.uint8))

    @property
    def _whole(self) -> Window:
        return Window(0, 0, self.dataset.width, self.dataset.height)


@contextmanager
def open_values(address: str) -> Iterator[ValueRaster]:
    """Open a raster to read its values; errors of GDAL until it is closed name the file."""
    with rasterio.Env(GDAL_CACHEMAX=_CACHE_BYTES), open_image(address) as dataset:
        yield ValueRaster(dataset, Raster.of(dataset, address))


def _nearest(
    shape: tuple[int, ...], window: Window
) -> Iterator[tuple[Window, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield strips of a window, and the rows (y, 1) and columns in them at the centres of pixels.

    The pixels are those of a grid of a shape over the window.
    """
    ys, xs = (
        (2 * np.arange(count) + 1) * length // (2 * count)
        for count, length in zip(shape, (window.height, window.width), strict=True)
    )
    for strip in _strips(window.height, window.width):
        rows = ys[(ys >= strip.row_off) & (ys < strip.row_off + strip.height)] - strip.row_off
        if len(rows):
            corner = window.col_off, window.row_off + strip.row_off
            yield Window(*corner, strip.width, strip.height), rows[:, None], xs


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
