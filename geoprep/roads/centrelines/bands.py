"""Bands of rasters, read by the window: from memory, from files, from several rasters at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from geoprep.grid import Grid
from geoprep.roads.centrelines.cover import Box, Cover, clipped_range

OUTSIDE: Final = -1
"""Value of pixels of whole numbers outside a resampled raster."""


class Bands(Protocol):
    """Bands of a raster of some height and width in pixels, read by the window."""

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""

    @property
    def cover(self) -> Cover:
        """The pixels that exist: all, unless a class says otherwise."""
        return Cover(((0, 0, *self.shape),))

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a window (y, x) of one band, counted from 1."""


@dataclass(frozen=True, slots=True)
class ArrayBands(Bands):
    """Bands in memory: an array (band, y, x)."""

    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return cast(tuple[int, int], self.values.shape[1:])

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a copy of a window."""
        return self.values[band - 1, top : top + height, left : left + width].copy()


@dataclass(frozen=True, slots=True)
class FileBands(Bands):
    """Bands of a file, or of a file resampled onto a grid: -1 or NaN where it has no data.

    The file is opened for every window: so threads share nothing, and any number of files is read.
    """

    path: Path
    shape: tuple[int, int]
    grid: Grid | None = None
    smooth: bool = False

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a window; ImageError if the file is damaged."""
        from rasterio.windows import Window

        from geoprep.imagery.values import open_values

        window = Window(left, top, width, height)
        with open_values(str(self.path)) as source:
            if self.grid is None:
                return np.asarray(source.dataset.read(band, window=window))
            read, known = source.on_grid(self.grid, [band], window, smooth=self.smooth)
        pixels: NDArray[Any] = read[0]
        if np.issubdtype(pixels.dtype, np.floating):
            return np.where(known, pixels, pixels.dtype.type(np.nan))
        return np.where(known, pixels.astype(np.result_type(pixels, np.int16)), OUTSIDE)


@dataclass(frozen=True, slots=True)
class Part:
    """A raster of a mosaic: its bands, their value without data, and its box in any pixel grid."""

    bands: Bands
    nodata: float | None
    box: Box


class MosaicBands:
    """Bands of neighbouring or overlapping rasters on one pixel grid.

    A pixel comes from the raster in which it is farthest from the border; if several are more than
    ``rim`` pixels away from theirs, from the first of these. Near its border a raster may have seen
    only half of a road. Nodata pixels come from the next raster. Pixels outside all rasters repeat
    the nearest covered pixel, and have no data (or are 0) more than ``reach`` pixels away.
    """

    def __init__(
        self, parts: Sequence[Part], *, nodata: float | None, rim: int, reach: int
    ) -> None:
        self._parts, self._nodata, self._rim, self._reach = parts, nodata, rim, reach
        boxes = np.array([part.box for part in parts])
        top, left = boxes[:, :2].min(axis=0).tolist()
        self.origin: tuple[int, int] = top, left  # row and column of the first pixel, in the grid
        self._boxes = boxes - (top, left, top, left)
        self._dtype = parts[0].bands.read(1, 0, 0, 1, 1).dtype
        self._alike = np.array([str(part.nodata) == str(nodata) for part in parts])  # NaN too
        self.cover = Cover.joining(self._boxes, reach)
        self.shape = (int(self._boxes[:, 2].max()), int(self._boxes[:, 3].max()))

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a window."""
        outside = 0 if self._nodata is None else self._nodata
        out = np.full((height, width), outside, self._dtype)
        depth = np.full(out.shape, -self._reach - 2)
        reach = np.where(self._alike, self._reach, 0)[:, None]  # others may end in no data
        low = np.maximum(self._boxes[:, :2] - reach, (top, left))
        high = np.minimum(self._boxes[:, 2:] + reach, (top + height, left + width))
        for number in np.flatnonzero((low < high).all(axis=1)).tolist():
            part, box = self._parts[number], self._boxes[number].tolist()
            (y, x), (tall, wide) = low[number].tolist(), (high - low)[number].tolist()
            window = (y - box[0], x - box[1], tall, wide)
            values = read_extended(part.bands, band, window)
            mine = self._depth(part, values, window)
            place = np.s_[y - top : y - top + tall, x - left : x - left + wide]
            deeper = mine > depth[place]
            np.copyto(depth[place], mine, where=deeper)
            np.copyto(out[place], values, where=deeper, casting="unsafe")
        if not self._alike.all():
            out[depth == -1] = outside
        return out

    def _depth(
        self, part: Part, values: NDArray[Any], window: tuple[int, int, int, int]
    ) -> NDArray[np.int64]:
        """Return the distance of a window's pixels to the raster's border, at most the rim.

        Pixels without data have -1: they count less than pixels with data, more than those outside,
        which have -2 and less.
        """
        distances = [
            np.minimum(pixel := np.arange(start, start + count), size - 1 - pixel)
            for start, count, size in zip(window[:2], window[2:], part.bands.shape, strict=True)
        ]
        depth = np.minimum.outer(*distances).clip(max=self._rim)
        known = values == values  # not NaN
        if part.nodata is not None:
            known &= values != values.dtype.type(part.nodata)
        return np.where(depth < 0, depth - 1, np.where(known, depth, -1))


def read_extended(bands: Bands, band: int, window: tuple[int, int, int, int]) -> NDArray[Any]:
    """Return a window (top, left, height, width) that may reach outside: nearest pixels repeat."""
    top, left, height, width = window
    y0, y1, above, below = clipped_range(top, height, bands.shape[0])
    x0, x1, before, behind = clipped_range(left, width, bands.shape[1])
    values = bands.read(band, y0, x0, y1 - y0, x1 - x0)
    if not any((above, below, before, behind)):
        return values
    return np.pad(values, ((above, below), (before, behind)), mode="edge")
