"""The layout of a synthetic city: its chips, how urban it is where, and the lattice of its streets.

Drawing uses metres (x eastwards, y southwards), files use degrees; one scale per city converts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple
from zlib import crc32

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray
from pyproj import Geod

from geoprep.sources.cities import City

Points = NDArray[np.float64]
Rank = Literal["motorway", "primary", "secondary", "tertiary", "minor"]
Zones = Callable[[Points], Points]
"""How urban points (..., 2) are: 0 fields and forest, 1 the dense centre. Smooth."""

PIXEL_DEG = 2.7e-6
"""Side of a pixel in degrees, in both axes (measured on SpaceNet 3 chips)."""
CENTRES: Final = {
    "vegas": (-115.17, 36.17),
    "paris": (2.33, 48.95),
    "shanghai": (121.45, 31.29),
    "khartoum": (32.54, 15.56),
    "moscow": (37.62, 55.75),
    "mumbai": (72.88, 19.07),
    "san_juan": (-66.06, 18.41),
}
"""Longitude and latitude of the north-west corner of each synthetic area of interest."""

_SPACING_M = (82.0, 138.0)
_MARGIN_M = 320.0
_VERTEX_M = 7.0
_JITTER_M = 5.0
# Each wave bends the lattice by at most this slope; three of them stay well short of a fold.
_WAVE_SLOPE = 0.13
# Ranks of the lines from the motorway on, seven in turn, and from the central row on, eight.
_COLUMNS: dict[int, Rank] = {5: "primary", 2: "secondary", 4: "tertiary"}
_ROWS: dict[int, Rank] = {0: "primary", 4: "secondary", 2: "tertiary", 6: "tertiary"}


def generator(seed: int, city: City, *key: int) -> np.random.Generator:
    """Return the random generator of one part of a city, independent of all the others."""
    words = (crc32(city.aoi.encode()), *key)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))


@dataclass(frozen=True, slots=True)
class Frame:
    """A near-square grid of chips that touch, filled row by row."""

    lon: float  # of the north-west corner, in degrees
    lat: float
    px: float  # metres per pixel eastwards
    py: float  # and southwards
    cols: int  # chips per row
    scenes: int
    size: int  # pixels per side of a chip

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height of the whole grid in metres."""
        rows = -(-self.scenes // self.cols)
        return self.cols * self.size * self.px, rows * self.size * self.py

    def box(self, index: int) -> shapely.Polygon:
        """Return the outline of a chip in metres."""
        row, col = divmod(index, self.cols)
        w, h = self.size * self.px, self.size * self.py
        return shapely.box(col * w, row * h, (col + 1) * w, (row + 1) * h)

    def to_pixels(self, index: int) -> Affine:
        """Return the affine of a chip from pixels to metres (both axes positive)."""
        x0, y0, _, _ = self.box(index).bounds
        return Affine(self.px, 0, x0, 0, self.py, y0)

    def georeference(self, index: int) -> Affine:
        """Return the affine of a chip from pixels to degrees (EPSG:4326, north up)."""
        row, col = divmod(index, self.cols)
        lon = self.lon + col * self.size * PIXEL_DEG
        lat = self.lat - row * self.size * PIXEL_DEG
        return Affine(PIXEL_DEG, 0, lon, 0, -PIXEL_DEG, lat)

    def to_degrees(self, xy: Points) -> Points:
        """Map points (n, 2) from metres to longitude and latitude."""
        scale = np.array([PIXEL_DEG / self.px, -PIXEL_DEG / self.py])
        degrees: Points = xy * scale + np.array([self.lon, self.lat])
        return degrees


def make_frame(city: City, scenes: int, size: int) -> Frame:
    """Lay out a city's chips."""
    lon, lat = CENTRES[city.name]
    earth = Geod(ellps="WGS84")
    px = earth.inv(lon, lat, lon + 100 * PIXEL_DEG, lat)[2] / 100
    py = earth.inv(lon, lat, lon, lat - 100 * PIXEL_DEG)[2] / 100
    return Frame(lon, lat, px, py, math.isqrt(scenes - 1) + 1, scenes, size)


def make_zones(frame: Frame, rng: np.random.Generator) -> Zones:
    """Draw how urban a city is where."""
    centre = np.array(frame.extent) / 2
    waves, phases = _waves((500, 900), 2, rng)

    def zones(xy: Points) -> Points:
        hills = np.sin(xy @ waves + phases).sum(-1)
        away = np.hypot(*np.moveaxis(xy - centre, -1, 0)) / np.hypot(*centre)
        return np.asarray(np.clip(0.66 + 0.22 * hills - 0.28 * away, 0, 1))

    return zones


def _waves(
    lengths: tuple[float, float], count: int, rng: np.random.Generator
) -> tuple[Points, Points]:
    """Draw waves in the plane: vectors (2, count) in radians per metre, and phases."""
    heading = rng.uniform(0, 2 * np.pi, count)
    vectors = np.stack((np.cos(heading), np.sin(heading))) * 2 * np.pi
    return vectors / rng.uniform(*lengths, count), rng.uniform(0, 2 * np.pi, count)


class Edge(NamedTuple):
    """A stretch between neighbouring nodes, the k-th of a column (axis 0) or of a row (axis 1)."""

    axis: int
    line: int
    k: int

    @property
    def ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The two nodes as (column, row)."""
        if self.axis == 0:
            return (self.line, self.k), (self.line, self.k + 1)
        return (self.k, self.line), (self.k + 1, self.line)


@dataclass(frozen=True, slots=True)
class Lattice:
    """Lines along which streets may run, smooth and nowhere crossing by accident."""

    nodes: Points  # (column, row, 2) in metres
    ranks: tuple[list[Rank], list[Rank]]  # of the columns and of the rows
    curves: dict[Edge, Points]
    motorway: int  # the column of the motorway's axis
    river: int  # the row before the river

    def rank(self, edge: Edge) -> Rank:
        """Return the rank of the line that an edge lies on."""
        return self.ranks[edge.axis][edge.line]

    def crosses(self, edge: Edge) -> bool:
        """Return whether an edge passes over the river or the motorway."""
        if edge.axis == 0:
            return edge.k == self.river
        return self.motorway in (edge.k, edge.k + 1)

    def sides(self, i: int, j: int) -> tuple[Edge, Edge, Edge, Edge]:
        """Return the edges around the block between columns i, i+1 and rows j, j+1."""
        return Edge(1, j, i), Edge(0, i + 1, j), Edge(1, j + 1, i), Edge(0, i, j)

    def block(self, i: int, j: int) -> shapely.Polygon:
        """Return the outline of a block, from its first node along its row."""
        first, second, third, fourth = (self.curves[edge] for edge in self.sides(i, j))
        return shapely.Polygon(joined([first, second, third[::-1], fourth[::-1]]))


def make_lattice(frame: Frame, rng: np.random.Generator) -> Lattice:
    """Draw the lattice of a city that covers its frame with room to spare."""
    width, height = frame.extent
    turn = np.deg2rad(rng.uniform(6, 28) * rng.choice([-1, 1]) + 90 * rng.integers(2))
    c, s = np.cos(turn), np.sin(turn)
    u = _lines(0.5 * (width * abs(c) + height * abs(s)) + _MARGIN_M, rng)
    v = _lines(0.5 * (width * abs(s) + height * abs(c)) + _MARGIN_M, rng)
    motorway = int(np.argmin(np.abs(u - 0.2 * min(width, height) * rng.choice([-1, 1]))))
    middle = int(np.argmin(np.abs(v)))
    away = [(i - motorway) * (1 if u[motorway] < 0 else -1) for i in range(len(u))]
    columns = [_COLUMNS.get(k % 7, "minor") if k else "motorway" for k in away]
    rows = [_ROWS.get((j - middle) % 8, "minor") for j in range(len(v))]
    river = int(np.clip(middle + rng.choice([-4, -3, 2, 3]), 0, len(v) - 2))

    uv = np.stack(np.meshgrid(u, v, indexing="ij"), axis=-1)
    waves, phases = _waves((480, 1100), 3, rng)
    push = rng.uniform(0, 2 * np.pi, 3)
    shifts = _WAVE_SLOPE / np.hypot(*waves) * np.stack((np.cos(push), np.sin(push)))
    uv += np.sin(uv @ waves + phases) @ shifts.T
    nodes = uv @ np.array([[c, s], [-s, c]]) + np.array([width, height]) / 2
    jitter = rng.normal(0, _JITTER_M, nodes.shape).clip(-2 * _JITTER_M, 2 * _JITTER_M)
    jitter[motorway] = 0
    nodes += jitter
    curves = {
        Edge(axis, line, k): curve
        for axis, knots in enumerate((nodes, nodes.swapaxes(0, 1)))
        for line in range(len(knots))
        for k, curve in enumerate(spline(knots[line]))
    }
    return Lattice(nodes, (columns, rows), curves, motorway, river)


def _lines(reach: float, rng: np.random.Generator) -> Points:
    """Draw where lines run, from beyond minus ``reach`` to beyond plus ``reach`` metres."""
    steps = rng.uniform(*_SPACING_M, (2, int(reach / _SPACING_M[0]) + 2))
    ahead, behind = (side[side < reach + _SPACING_M[1]] for side in np.cumsum(steps, axis=1))
    return np.concatenate((-behind[::-1], [0.0], ahead))


def joined(curves: list[Points]) -> Points:
    """Return curves, each of which begins where the one before ends, as one."""
    return np.concatenate([curve[:-1] for curve in curves] + [curves[-1][-1:]])


def spline(knots: Points) -> list[Points]:
    """Return one curve (n, 2) per gap between knots (k, 2), smooth across the knots."""
    tangent = np.gradient(knots, axis=0)
    return [
        hermite(knots[k], knots[k + 1], tangent[k], tangent[k + 1]) for k in range(len(knots) - 1)
    ]


def hermite(start: Points, end: Points, leave: Points, arrive: Points) -> Points:
    """Return a cubic (n, 2) between two points with given tangents, a vertex every few metres."""
    count = max(3, int(np.hypot(*(end - start)) / _VERTEX_M) + 1)
    t = np.linspace(0, 1, count)[:, None]
    curve: Points = (
        (2 * t**3 - 3 * t**2 + 1) * start
        + (t**3 - 2 * t**2 + t) * leave
        + (3 * t**2 - 2 * t**3) * end
        + (t**3 - t**2) * arrive
    )
    curve[0], curve[-1] = start, end
    return curve
