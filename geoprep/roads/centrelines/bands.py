"""Bands of rasters, read by the window: from memory, from files, from several rasters at once."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import ImageError
from geoprep.grid import Grid
from geoprep.quiet import no_georeference_warning
from geoprep.roads.centrelines.cover import Box, Cover, clipped_range
from geoprep.roads.centrelines.kernels import put_deepest

_CACHE_BYTES: Final = 64 << 20
_MOST_OPEN: Final = 16
"""Number of files that a thread keeps open."""
_OUTSIDE: Final = -1
"""Value of pixels of whole numbers outside a resampled raster."""


class Bands(Protocol):
    """Bands of a raster of some height and width in pixels, read by the window."""

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""

    @property
    def cover(self) -> Cover:
        """The pixels that exist."""

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a window (y, x) of one band, counted from 1."""


@dataclass(frozen=True, slots=True)
class ArrayBands:
    """Bands in memory: an array (band, y, x)."""

    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return cast(tuple[int, int], self.values.shape[1:])

    @property
    def cover(self) -> Cover:
        """All pixels of the array."""
        return Cover(((0, 0, *self.shape),))

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a copy of a window."""
        return self.values[band - 1, top : top + height, left : left + width].copy()


class OpenRasters:
    """Open raster files: up to 16 per thread, each thread with its own."""

    def __init__(self) -> None:
        self._own = threading.local()
        # Those of threads that have ended close by themselves.
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()

    def get(self, path: Path, grid: Grid | None = None, *, smooth: bool = False) -> Any:  # noqa: ANN401 - rasterio has no types
        """Return the calling thread's dataset of a file, resampled onto a grid if one is given."""
        opened: OrderedDict[Any, Any] | None = getattr(self._own, "opened", None)
        if opened is None:
            opened = self._own.opened = OrderedDict()
        key = path, grid, smooth
        if key not in opened:
            if len(opened) >= _MOST_OPEN:
                _close(opened.popitem(last=False)[1])
            dataset = open_dataset(path)
            opened[key] = dataset if grid is None else _resampled(dataset, grid, smooth=smooth)
            self._all.add(opened[key])
        opened.move_to_end(key)
        return opened[key]

    def close(self) -> None:
        """Close the files of all threads; none may be reading."""
        for dataset in list(self._all):
            _close(dataset)


def open_dataset(path: Path) -> Any:  # noqa: ANN401 - rasterio has no types
    """Return an open rasterio dataset; ImageError if the file is not a raster."""
    import rasterio
    from rasterio.errors import RasterioError

    try:
        with no_georeference_warning(), rasterio.Env():
            return rasterio.open(path)
    except RasterioError as error:
        raise ImageError(f"{path}: not readable as a raster: {error}") from error


def _resampled(dataset: Any, grid: Grid, *, smooth: bool) -> Any:  # noqa: ANN401 - as above
    from rasterio.enums import Resampling
    from rasterio.vrt import WarpedVRT

    return WarpedVRT(
        dataset,
        crs=grid.crs,
        transform=grid.transform,
        width=grid.width,
        height=grid.height,
        resampling=Resampling.bilinear if smooth else Resampling.nearest,
        add_alpha=dataset.nodata is None,
    )


def _close(dataset: Any) -> None:  # noqa: ANN401 - as above
    dataset.close()
    if source := getattr(dataset, "src_dataset", None):
        source.close()


@dataclass(frozen=True, slots=True)
class FileBands:
    """Bands of a file, or of a file resampled onto a grid: -1 or NaN where it has no data."""

    path: Path
    files: OpenRasters
    shape: tuple[int, int]
    grid: Grid | None = None
    smooth: bool = False

    @property
    def cover(self) -> Cover:
        """All pixels of the file."""
        return Cover(((0, 0, *self.shape),))

    def warped(self, grid: Grid, *, smooth: bool) -> tuple[FileBands, float]:
        """Return the bands resampled onto another grid, and their value without data."""
        shape = grid.height, grid.width
        return replace(self, shape=shape, grid=grid, smooth=smooth), _OUTSIDE

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a window; ImageError if the file is damaged."""
        import rasterio
        from rasterio.errors import RasterioError
        from rasterio.windows import Window

        window = Window(left, top, width, height)
        try:
            with rasterio.Env(GDAL_CACHEMAX=_CACHE_BYTES):
                dataset = self.files.get(self.path, self.grid, smooth=self.smooth)
                pixels: NDArray[Any] = dataset.read(band, window=window)
                known = None if self.grid is None else dataset.dataset_mask(window=window) > 0
        except RasterioError as error:
            raise ImageError(
                f"{self.path}: damaged, band {band} cannot be read: {error}"
            ) from error
        if known is None:
            return pixels
        if np.issubdtype(pixels.dtype, np.floating):
            return np.where(known, pixels, pixels.dtype.type(np.nan))
        return np.where(known, pixels.astype(np.result_type(pixels, np.int16)), _OUTSIDE)


@dataclass(frozen=True, slots=True)
class Part:
    """A raster of a mosaic: its bands, their value without data, and its box in the mosaic."""

    bands: Bands
    nodata: float | None
    box: Box

    def moved(self, down: int, right: int) -> Part:
        """Return the part with its box moved by some pixels."""
        top, left, bottom, last = self.box
        return replace(self, box=(top + down, left + right, bottom + down, last + right))


class MosaicBands:
    """Bands of neighbouring or overlapping rasters on one pixel grid.

    A pixel comes from the raster in which it is farthest from the border; if several are more than
    ``rim`` pixels away from theirs, from the first of these. Near its border a raster may have seen
    only half of a road. Nodata pixels come from the next raster. Pixels outside all rasters repeat
    the nearest covered pixel, and are 0 more than ``reach`` pixels away.
    """

    def __init__(
        self, parts: Sequence[Part], *, nodata: float | None, rim: int, reach: int
    ) -> None:
        self._parts, self._nodata, self._rim, self._reach = parts, nodata, rim, reach
        self._boxes = np.array([part.box for part in parts])
        self._alike = np.array([str(part.nodata) == str(nodata) for part in parts])  # NaN too
        self.cover = Cover.joining(self._boxes, reach)
        self.shape = (int(self._boxes[:, 2].max()), int(self._boxes[:, 3].max()))

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a window."""
        out = np.zeros((height, width), self._parts[0].bands.read(band, 0, 0, 1, 1).dtype)
        least = -self._reach - 2
        depth = np.full(out.shape, least, np.min_scalar_type(min(least, -self._rim - 1)))
        reach = np.where(self._alike, self._reach, 0)[:, None]  # others may end in no data
        low = np.maximum(self._boxes[:, :2] - reach, (top, left))
        high = np.minimum(self._boxes[:, 2:] + reach, (top + height, left + width))
        for number in np.flatnonzero((low < high).all(axis=1)).tolist():
            part = self._parts[number]
            (y, x), (tall, wide) = low[number].tolist(), (high - low)[number].tolist()
            at, start = (y - top, x - left), (y - part.box[0], x - part.box[1])
            values = read_extended(part.bands, band, (*start, tall, wide))
            nodata = np.nan if part.nodata is None else float(part.nodata)
            if np.issubdtype(values.dtype, np.floating):
                nodata = float(values.dtype.type(nodata))
            put_deepest(values, out, depth, at, start, part.bands.shape, self._rim, nodata)
        if not self._alike.all():
            out[depth == -1] = 0 if self._nodata is None else self._nodata
        return out


def read_extended(bands: Bands, band: int, window: tuple[int, int, int, int]) -> NDArray[Any]:
    """Return a window (top, left, height, width) that may reach outside: nearest pixels repeat."""
    top, left, height, width = window
    y0, y1, above, below = clipped_range(top, height, bands.shape[0])
    x0, x1, before, behind = clipped_range(left, width, bands.shape[1])
    values = bands.read(band, y0, x0, y1 - y0, x1 - x0)
    if not any((above, below, before, behind)):
        return values
    return np.pad(values, ((above, below), (before, behind)), mode="edge")
