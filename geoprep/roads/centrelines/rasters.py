"""Rasters of roads: probabilities, speeds or a plain mask, read by the window or along lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import ImageError
from geoprep.grid import Grid
from geoprep.roads.centrelines.bands import ArrayBands, Bands, read_extended
from geoprep.roads.centrelines.cover import Cover
from geoprep.roads.network import Plane
from geoprep.roads.options import Kind

_STRIP: Final = 1024
_MOST_DECODED: Final = 64 << 20
_MANY_PIXELS: Final = 4 << 20
"""Rasters of more pixels are thinned in cells."""
_CELL_M: Final = 0.6
"""Size that these cells come near to: roads are metres wide."""


@dataclass(frozen=True, slots=True)
class RoadRaster:
    """A raster of roads and the meaning of its bands and values."""

    name: str  # name in messages
    bands: Bands  # source of pixels
    gsd_m: tuple[float, float]  # pixel width and height on the ground in metres
    grid: Grid | None  # position on the ground; None for a raster that is not georeferenced
    # ``probability``, ``speed`` (mph; 0 background, 254 unknown, 255 nodata) or ``mask`` (road
    # where not 0)
    kind: Kind
    road_bands: tuple[int, ...]  # bands, counted from 1, whose maximum is the probability of a road
    # Bands of the probabilities of speed classes, each with its speed in mph
    speed_classes: tuple[tuple[int, float], ...] = ()
    speed_band: int = 0  # band of speeds, counted from 1; 0 for none
    # Value that means a probability of 1; of a raster that looks like a mask, its value on roads
    full_value: float = 255.0
    # Value of road pixels in a mask of classes; None: all but 0
    road_value: int | None = None
    nodata: float | None = None  # value of pixels without data; None: there is none
    # Rows and columns of the image that a prediction was made from, which may have finer pixels;
    # None if unknown
    image_shape: tuple[int, int] | None = None
    # Minimum probability of road pixels that a prediction states; None: not stated
    threshold: float | None = None
    warning: str = ""  # why roads of this raster may be missing; empty if there is no doubt
    # (y, x): the probability of a road of all pixels, if it is in memory (`decoded`)
    probabilities: NDArray[np.uint8] | None = None

    @property
    def image(self) -> tuple[Grid | None, tuple[float, float]]:
        """Grid and pixel size in metres (x, y) of the predicted image, or of the raster itself."""
        (rows, columns), (height, width) = self.shape, self.image_shape or self.shape
        grid = self.grid and self.grid.resized(height, width)
        return grid, (self.gsd_m[0] * columns / width, self.gsd_m[1] * rows / height)

    @property
    def plane(self) -> Plane:
        """The raster's plane in metres."""
        return Plane(self.gsd_m)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.bands.shape

    @property
    def cover(self) -> Cover:
        """The pixels that exist."""
        return self.bands.cover

    @property
    def cell(self) -> int:
        """Pixels per side of the cells in which roads are thinned: 1 but in large fine rasters.

        Thinning in cells of two pixels takes a seventh of the time.
        """
        height, width = self.shape
        several = max(1, round(_CELL_M / max(self.gsd_m)))
        return several if height * width > _MANY_PIXELS else 1

    @property
    def area_m2(self) -> float:
        """Area of the covered ground in square metres."""
        return self.cover.area * self.gsd_m[0] * self.gsd_m[1]

    def highest(self) -> float | None:
        """Return the highest probability of a road, 0 to 1; None if no pixel has data."""
        height, width = self.shape
        highest = []
        for top in range(0, height, _STRIP):
            window = (top, 0, min(_STRIP, height - top), width)
            if any(
                self._has_data(self.bands.read(band, *window)).any() for band in self.road_bands
            ):
                highest.append(float(self.probability(*window).max()) / 255)
        return max(highest, default=None)

    def _has_data(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values are finite and not nodata."""
        known: NDArray[np.bool_] = np.isfinite(values)
        return known if self.nodata is None else known & (values != self.nodata)

    def probability(self, top: int, left: int, height: int, width: int) -> NDArray[np.uint8]:
        """Return the probability of a road, 0 to 255, in a window that may reach outside.

        Pixels outside repeat the nearest pixel inside. Nodata pixels have the probability 0.
        """
        window = (top, left, height, width)
        if self.probabilities is not None:
            return read_extended(ArrayBands(self.probabilities[None]), 1, window)
        values = self._probability(self.road_bands[0], window)
        for band in self.road_bands[1:]:
            np.maximum(values, self._probability(band, window), out=values)
        return values

    def decoded(self) -> RoadRaster:
        """Return the raster with its probabilities in memory, if they take at most 64 MiB.

        Tracing reads most pixels ten times. Without this, every time they are decompressed, and
        nodata is set to 0.
        """
        height, width = self.shape
        if height * width > _MOST_DECODED:
            return self
        return replace(self, probabilities=self.probability(0, 0, height, width))

    def _probability(self, band: int, window: tuple[int, int, int, int]) -> NDArray[np.uint8]:
        values = read_extended(self.bands, band, window)
        if self.kind == "probability" and values.dtype == np.uint8 and self.full_value == 255:
            if self.nodata is not None and 0 <= self.nodata <= 255:
                np.putmask(values, values == self.nodata, 0)
            return np.asarray(values, np.uint8)
        road = values != 0 if self.road_value is None else values == self.road_value
        road &= self._has_data(values)
        if self.kind != "probability":
            return np.where(road, np.uint8(255), np.uint8(0))
        scaled = np.where(road, values, 0) * (255.0 / self.full_value)
        if scaled.size and not (scaled.min() >= 0 and scaled.max() <= 255.5):
            wrong = scaled.min() if scaled.min() < 0 else scaled.max()
            raise ImageError(
                f"{self.name}: {wrong / 255:g} is not a probability. Set `kind` to mask or speed "
                "if the values are that."
            )
        return np.rint(scaled).astype(np.uint8)


Floats = NDArray[np.float64]

_CELL: Final = 2048
"""Side in pixels of the cells that are read one at a time."""
_STEP_M: Final = 1.0

Read = Callable[[int, int, int, int], NDArray[Any]]


def values_at(raster: RoadRaster, xy: Floats, read: Read) -> NDArray[Any]:
    """Return the values under points of a raster's plane, (point, ...)."""
    if not len(xy):
        return read(0, 0, 1, 1)[:0, 0]
    height, width = raster.shape
    at = np.clip(raster.plane.to_pixels(xy), 0, (width - 1, height - 1)).astype(np.int64)
    col, row = at.T
    cell = row // _CELL * (width // _CELL + 1) + col // _CELL
    order = np.argsort(cell, kind="stable")
    parts, back = [], np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    for mine in np.split(order, np.flatnonzero(np.diff(cell[order])) + 1):
        top, left = int(row[mine].min()), int(col[mine].min())
        size = int(row[mine].max()) - top + 1, int(col[mine].max()) - left + 1
        parts.append(read(top, left, *size)[row[mine] - top, col[mine] - left])
    return np.concatenate(parts)[back]


def mean_probability(raster: RoadRaster, start: Floats, stop: Floats) -> Floats:
    """Return the mean probability of a road, 0 to 1, along straight lines in a raster's plane."""
    count = max(2, int(np.ceil(np.linalg.norm(stop - start, axis=1).max(initial=0) / _STEP_M)))
    share = (np.arange(count) + 0.5) / count
    xy = start[:, None] + share[None, :, None] * (stop - start)[:, None]
    values = values_at(raster, xy.reshape(-1, 2), raster.probability)
    mean: Floats = values.reshape(len(start), count).mean(axis=1) / 255
    return mean
