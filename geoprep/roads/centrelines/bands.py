"""Bands of rasters, read by the window: from memory, from files, from several rasters at once."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import ImageError
from geoprep.roads.centrelines.cover import Box, Cover, clipped_range
from geoprep.roads.centrelines.kernels import put_deepest

_CACHE_BYTES: Final = 64 << 20
_MOST_OPEN: Final = 16
"""Number of files that a thread keeps open."""


class Bands(Protocol):
    """Bands of a raster, read by the window."""

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
        self._all: list[Any] = []

    def get(self, path: Path) -> Any:  # noqa: ANN401 - rasterio has no types
        """Return the calling thread's dataset of a file, opened if needed."""
        opened: OrderedDict[Path, Any] | None = getattr(self._own, "opened", None)
        if opened is None:
            opened = self._own.opened = OrderedDict()
        if path not in opened:
            if len(opened) >= _MOST_OPEN:
                opened.popitem(last=False)[1].close()
            opened[path] = open_dataset(path)
            self._all.append(opened[path])
        opened.move_to_end(path)
        return opened[path]

    def close(self) -> None:
        """Close the files of all threads; none may be reading."""
        for dataset in self._all:
            dataset.close()
        self._all.clear()


def open_dataset(path: Path) -> Any:  # noqa: ANN401 - rasterio has no types
    """Return an open rasterio dataset.

    Raises
    ------
    ImageError
        The file is not a raster.
    """
    import rasterio
    from rasterio.errors import NotGeoreferencedWarning, RasterioError

    # Rasters without georeference are allowed. Not by `catch_warnings`, which is not thread-safe:
    # it would put back filters that other threads have changed meanwhile.
    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)
    try:
        with rasterio.Env():
            return rasterio.open(path)
    except RasterioError as error:
        raise ImageError(f"{path}: not readable as a raster: {error}") from error


class FileBands:
    """Bands of a file."""

    def __init__(self, path: Path, files: OpenRasters) -> None:
        self._path, self._files = path, files
        dataset = files.get(path)
        self.shape = (int(dataset.height), int(dataset.width))

    @property
    def cover(self) -> Cover:
        """All pixels of the file."""
        return Cover(((0, 0, *self.shape),))

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a window.

        Raises
        ------
        ImageError
            The file is damaged.
        """
        import rasterio
        from rasterio.errors import RasterioError
        from rasterio.windows import Window

        window = Window(left, top, width, height)
        try:
            with rasterio.Env(GDAL_CACHEMAX=_CACHE_BYTES):
                pixels: NDArray[Any] = self._files.get(self._path).read(band, window=window)
        except RasterioError as error:
            raise ImageError(
                f"{self._path}: damaged, band {band} cannot be read: {error}"
            ) from error
        return pixels


class MosaicBands:
    """Bands of neighbouring or overlapping rasters on one pixel grid.

    A pixel comes from the raster in which it is farthest from the border; if several are more than
    ``rim`` pixels away from theirs, from the first of these. Near its border a raster may have seen
    only half of a road. Nodata pixels come from the next raster. Pixels outside all rasters repeat
    the nearest covered pixel, and are 0 more than ``reach`` pixels away.

    Parameters
    ----------
    parts
        Rasters, and the box of each in the mosaic.
    nodata
        Value of pixels without data; None: there is none.
    rim, reach
        Distances in pixels.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Bands, Box]],
        *,
        nodata: float | None,
        rim: int,
        reach: int,
    ) -> None:
        self._parts, self._nodata, self._rim, self._reach = parts, nodata, rim, reach
        self._boxes = np.array([box for _, box in parts])
        self.cover = Cover.joining(self._boxes, reach)
        self.shape = (int(self._boxes[:, 2].max()), int(self._boxes[:, 3].max()))

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a window."""
        out = np.zeros((height, width), self._parts[0][0].read(band, 0, 0, 1, 1).dtype)
        nodata = np.nan if self._nodata is None else float(self._nodata)
        if np.issubdtype(out.dtype, np.floating):
            nodata = float(out.dtype.type(nodata))
        least = -self._reach - 2
        depth = np.full(out.shape, least, np.min_scalar_type(min(least, -self._rim - 1)))
        low = np.maximum(self._boxes[:, :2] - self._reach, (top, left))
        high = np.minimum(self._boxes[:, 2:] + self._reach, (top + height, left + width))
        for number in np.flatnonzero((low < high).all(axis=1)).tolist():
            bands, (y0, x0, _, _) = self._parts[number]
            (y, x), (tall, wide) = low[number].tolist(), (high - low)[number].tolist()
            values = read_extended(bands, band, (y - y0, x - x0, tall, wide))
            at, start = (y - top, x - left), (y - y0, x - x0)
            put_deepest(values, out, depth, at, start, bands.shape, self._rim, nodata)
        return out


def read_extended(bands: Bands, band: int, window: tuple[int, int, int, int]) -> NDArray[Any]:
    """Return a window that may reach outside, where the nearest pixels are repeated.

    Parameters
    ----------
    window
        Top, left, height, width.
    """
    top, left, height, width = window
    y0, y1, above, below = clipped_range(top, height, bands.shape[0])
    x0, x1, before, behind = clipped_range(left, width, bands.shape[1])
    values = bands.read(band, y0, x0, y1 - y0, x1 - x0)
    if not any((above, below, before, behind)):
        return values
    return np.pad(values, ((above, below), (before, behind)), mode="edge")
