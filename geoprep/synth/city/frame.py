"""Location of a synthetic city: its grid of chips, in degrees and in metres.

Drawing uses metres (x eastwards, y southwards), files use degrees; one scale per city converts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.sources import City

PIXEL_DEG = 2.7e-6
"""Side of a pixel in degrees, in both axes (measured on SpaceNet 3 chips)."""

SIZES = (64, 4096)
"""Fewest and most pixels per side of a chip; 16-bit ids tell the things in it apart."""

CENTRES: dict[str, tuple[float, float]] = {
    "vegas": (-115.17, 36.17),
    "paris": (2.33, 48.95),
    "shanghai": (121.45, 31.29),
    "khartoum": (32.54, 15.56),
    "moscow": (37.62, 55.75),
    "mumbai": (72.88, 19.07),
    "san_juan": (-66.06, 18.41),
}
"""Longitude and latitude of the north-west corner of each synthetic area of interest."""


def generator(seed: int, city: City, *key: int) -> np.random.Generator:
    """Return the random generator of one part of a city, independent of all the others."""
    words = (crc32(city.aoi.encode()), *key)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))


@dataclass(frozen=True, slots=True)
class Frame:
    """A near-square lattice of chips that touch, filled row by row."""

    lon: float  # of the north-west corner, in degrees
    lat: float
    px: float  # metres per pixel eastwards
    py: float  # and southwards
    cols: int  # chips per row
    scenes: int
    size: int  # pixels per side of a chip

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height of the whole lattice in metres."""
        rows = -(-self.scenes // self.cols)
        return self.cols * self.size * self.px, rows * self.size * self.py

    def bounds(self, index: int) -> tuple[float, float, float, float]:
        """Return ``(x0, y0, x1, y1)`` of a chip in metres, ``y`` southwards."""
        row, col = divmod(index, self.cols)
        w, h = self.size * self.px, self.size * self.py
        return col * w, row * h, (col + 1) * w, (row + 1) * h

    def boxes(self) -> NDArray[np.object_]:
        """Return the outlines of all chips as polygons in metres."""
        return np.array([shapely.box(*self.bounds(i)) for i in range(self.scenes)], dtype=object)

    def to_pixels(self, index: int) -> Affine:
        """Return the affine of a chip from pixels to metres (both axes positive)."""
        x0, y0, _, _ = self.bounds(index)
        return Affine(self.px, 0, x0, 0, self.py, y0)

    def georeference(self, index: int) -> Affine:
        """Return the affine of a chip from pixels to degrees (EPSG:4326, north up)."""
        row, col = divmod(index, self.cols)
        lon = self.lon + col * self.size * PIXEL_DEG
        lat = self.lat - row * self.size * PIXEL_DEG
        return Affine(PIXEL_DEG, 0, lon, 0, -PIXEL_DEG, lat)

    def to_degrees(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map points (n, 2) from metres to longitude and latitude."""
        scale = np.array([PIXEL_DEG / self.px, -PIXEL_DEG / self.py])
        degrees: NDArray[np.float64] = xy * scale + np.array([self.lon, self.lat])
        return degrees


def metres_per_degree(lat: float) -> tuple[float, float]:
    """Return metres per degree of longitude and of latitude on WGS 84."""
    # The series of the US National Geospatial-Intelligence Agency ("Length of a degree").
    phi = math.radians(lat)
    east = 111412.84 * math.cos(phi) - 93.5 * math.cos(3 * phi) + 0.118 * math.cos(5 * phi)
    north = 111132.92 - 559.82 * math.cos(2 * phi) + 1.175 * math.cos(4 * phi)
    return east, north


def make_frame(city: City, scenes: int, size: int) -> Frame:
    """Lay out a city's chips."""
    if scenes < 1 or not SIZES[0] <= size <= SIZES[1]:
        raise UsageError(
            f"cannot draw {scenes} scenes of {size} pixels: ask for at least 1 of "
            f"{SIZES[0]} to {SIZES[1]} pixels"
        )
    lon, lat = CENTRES[city.name]
    east, north = metres_per_degree(lat)
    cols = math.isqrt(scenes - 1) + 1
    return Frame(lon, lat, PIXEL_DEG * east, PIXEL_DEG * north, cols, scenes, size)
