"""Where the pixels of rasters are read from: memory, files, and many files side by side."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import ImageError
from geoprep.roads.centrelines.cover import Box, Cover, within

_CACHE_BYTES: Final = 64 << 20
_MOST_OPEN: Final = 16
"""Files that a thread keeps open."""


class Pixels(Protocol):
    """Bands of pixels, read by the window."""

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width."""

    @property
    def cover(self) -> Cover:
        """Which pixels there are."""

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return the pixels (y, x) of a window of one band, counted from 1."""


@dataclass(frozen=True, slots=True)
class ArrayPixels:
    """Bands in memory: (band, y, x)."""

    bands: NDArray[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width."""
        return cast(tuple[int, int], self.bands.shape[1:])

    @property
    def cover(self) -> Cover:
        """All of it."""
        return Cover(((0, 0, *self.shape),))

    def read(self, band: int, top: int, left: int, height: int, width: int) -> NDArray[Any]:
        """Return a copy of a window."""
        return self.bands[band - 1, top : top + height, left : left + width].copy()


class Files:
    """Rasters that are open, a few at a time in every thread that reads them."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._all: list[Any] = []

    def get(self, path: Path) -> Any:  # noqa: ANN401 - rasterio has no types
        """Return the calling thread's dataset of a file."""
        import rasterio

        opened: OrderedDict[Path, Any] | None = getattr(self._own, "opened", None)
        if opened is None:
            opened = self._own.opened = OrderedDict()
        if path not in opened:
            if len(opened) >= _MOST_OPEN:
                opened.popitem(last=False)[1].close()
            opened[path] = rasterio.open(path)
            self._all.append(opened[path])
        opened.move_to_end(path)
        return opened[path]

    def close(self) -> None:
        """Close the files of all threads, none of which reads any more."""
        for dataset in self._all:
            dataset.close()
        self._all.clear()


class FilePixels:
    """Bands of a file."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path, self._files = path, files
        dataset = files.get(path)
        self.shape = (int(dataset.height), int(dataset.width))

    @property
    def cover(self) -> Cover:
        """All of it."""
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


class MosaicPixels:
    """Rasters side by side, or on top of each other, on one grid of pixels.

    Every pixel is that of the raster deepest within which it lies; beyond ``rim`` pixels from all
    borders, the first one's. So what a raster says next to its border, where it saw half of things,
    counts where no other saw more. Pixels without data are those of the next raster. Pixels that no
    raster covers are like the nearest that is covered, and 0 beyond ``reach``.

    Parameters
    ----------
    parts
        Rasters, and the box of each in the mosaic.
    nodata
        Value of pixels of which nothing is known.
    rim, reach
        Pixels.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Pixels, Box]],
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
        depth = np.full((height, width), -self._reach - 1.0, np.float32)
        low = np.maximum(self._boxes[:, :2] - self._reach, (top, left))
        high = np.minimum(self._boxes[:, 2:] + self._reach, (top + height, left + width))
        for number in np.flatnonzero((low < high).all(axis=1)).tolist():
            pixels, (y0, x0, _, _) = self._parts[number]
            (y, x), (tall, wide) = low[number].tolist(), (high - low)[number].tolist()
            values = drawn_on(pixels, band, (y - y0, x - x0, tall, wide))
            mine = self._depth(values, (y - y0, x - x0), pixels.shape)
            here = slice(y - top, y - top + tall), slice(x - left, x - left + wide)
            better = mine > depth[here]
            out[here][better], depth[here][better] = values[better], mine[better]
        return out

    def _depth(
        self, values: NDArray[Any], start: tuple[int, int], size: tuple[int, int]
    ) -> NDArray[np.float32]:
        """Return how far within a raster's border pixels lie, at most the rim; negative outside.

        Pixels without data lie between those that have some and what is outside.
        """
        sides = [
            np.minimum(at, side - 1 - at).astype(np.float32)
            for at, side in zip(
                (start[i] + np.arange(values.shape[i]) for i in (0, 1)), size, strict=True
            )
        ]
        depth = np.minimum(np.minimum(sides[0][:, None], sides[1]), self._rim)
        unknown = np.zeros(values.shape, np.bool_)
        if np.issubdtype(values.dtype, np.floating):
            unknown |= np.isnan(values)
        if self._nodata is not None:
            unknown |= values == self._nodata
        return np.where(unknown & (depth >= 0), np.float32(-0.5), depth)


def drawn_on(pixels: Pixels, band: int, window: tuple[int, int, int, int]) -> NDArray[Any]:
    """Return a window that may reach past the border, where pixels are like the nearest within."""
    top, left, height, width = window
    y0, y1, above, below = within(top, height, pixels.shape[0])
    x0, x1, before, behind = within(left, width, pixels.shape[1])
    values = pixels.read(band, y0, x0, y1 - y0, x1 - x0)
    if not any((above, below, before, behind)):
        return values
    return np.pad(values, ((above, below), (before, behind)), mode="edge")
