"""Shapes that a city is drawn from, each with a material and a height, and helpers to make them."""

from __future__ import annotations

from typing import Final, NamedTuple, cast

import numpy as np
import shapely
from numpy.typing import ArrayLike, NDArray
from shapely.geometry.base import BaseGeometry

from geoprep.synth.city.lattice import Points
from geoprep.synth.ground.spectra import INDEX

# Layers, drawn from low to high. A road's own is ROAD plus twice its order, wheel tracks one more.
# A bridge and all on it is raised by BRIDGE - ROADSIDE, above all traffic of the ground.
GROUND: Final = 0
DETAIL: Final = 5
SHORE: Final = 8
WATER: Final = 10
RAIL: Final = 15
ROADSIDE: Final = 20
VERGE: Final = 22
KERB: Final = 25
ROAD: Final = 30
PAINT: Final = 46
JUNCTION: Final = 47
CAR: Final = 50
BRIDGE: Final = 60
DECK: Final = BRIDGE + KERB - ROADSIDE
ROOF: Final = 100


ROW: Final = np.dtype(
    [
        ("layer", np.int16),
        ("material", np.uint8),  # its index
        ("gain", np.float32),  # brightness relative to the material
        ("height", np.float32),  # metres above ground
        ("facing", np.float32),  # to where a roof slopes down, radians; NaN where level
    ]
)


class Things(NamedTuple):
    """Shapes with their attributes, one row each, and trees."""

    geometry: NDArray[np.object_]  # polygons and lines, metres
    bounds: Points  # (n, 4)
    rows: NDArray[np.void]  # (n), of `ROW`
    trees: Points  # (m, 4): x, y, radius in metres, 1 for conifers

    def within(self, box: tuple[float, float, float, float], trees_m: float) -> Things:
        """Return the shapes that touch a box, and trees up to ``trees_m`` metres outside of it."""
        x0, y0, x1, y1 = box
        b, t = self.bounds, self.trees
        hit = (b[:, 0] <= x1) & (b[:, 2] >= x0) & (b[:, 1] <= y1) & (b[:, 3] >= y0)
        near = (t[:, 0] > x0 - trees_m) & (t[:, 0] < x1 + trees_m)
        near &= (t[:, 1] > y0 - trees_m) & (t[:, 1] < y1 + trees_m)
        return self._take(hit, t[near])

    def in_order(self) -> Things:
        """Return the same things, sorted by layer; within a layer the order stays."""
        return self._take(np.argsort(self.rows["layer"], kind="stable"), self.trees)

    def _take(self, chosen: NDArray[np.generic], trees: Points) -> Things:
        return Things(self.geometry[chosen], self.bounds[chosen], self.rows[chosen], trees)


def merge(parts: list[Things]) -> Things:
    """Return all things of several parts as one, in their order."""
    return Things(*map(np.concatenate, zip(*parts, strict=True)))


class Sketch:
    """Collects things one by one, or many alike at once, and has the random numbers for them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._geometry: list[NDArray[np.object_]] = []
        self._rows: list[NDArray[np.void]] = [np.empty(0, ROW)]
        self._trees: list[Points] = [np.empty((0, 4))]

    def add(
        self,
        geometry: object,
        material: str,
        layer: int,
        *,
        gain: float | Points = 1.0,
        height: float | Points = 0.0,
        facing: float | Points = np.nan,
    ) -> None:
        """Add a geometry, or an array of them; empty ones are left out."""
        shapes = np.atleast_1d(np.asarray(geometry, dtype=object))
        rows = np.empty(len(shapes), ROW)
        rows["layer"], rows["material"] = layer, INDEX[material]
        rows["gain"], rows["height"], rows["facing"] = gain, height, facing
        there = ~shapely.is_empty(shapes)
        self._geometry.append(shapes[there])
        self._rows.append(rows[there])

    def plant(self, xy: Points, radius: Points, conifer: bool | NDArray[np.bool_] = False) -> None:
        """Add trees of given crown radii."""
        trees = np.empty((len(xy), 4))
        trees[:, :2], trees[:, 2], trees[:, 3] = xy, radius, conifer
        self._trees.append(trees)

    def finish(self) -> Things:
        """Return everything added so far."""
        geometry = np.concatenate([np.empty(0, dtype=object), *self._geometry])
        bounds = shapely.bounds(geometry).reshape(-1, 4)
        return Things(geometry, bounds, np.concatenate(self._rows), np.concatenate(self._trees))


def rectangles(
    centre: Points, angle: ArrayLike, length: ArrayLike, width: ArrayLike
) -> NDArray[np.object_]:
    """Return turned rectangles around centres (n, 2); ``length`` runs along ``angle``."""
    n = len(centre)
    turn, half_l, half_w = (np.broadcast_to(value, n) for value in (angle, length, width))
    along = np.stack((np.cos(turn), np.sin(turn)), -1) * (half_l / 2)[:, None]
    across = np.stack((-np.sin(turn), np.cos(turn)), -1) * (half_w / 2)[:, None]
    corners = np.stack(
        [centre + along + across, centre - along + across, centre - along - across,
         centre + along - across], axis=1)  # fmt: skip
    return np.asarray(shapely.polygons(corners), dtype=object)


def along(line: shapely.LineString, distance: Points) -> tuple[Points, Points]:
    """Return points (n, 2) of a line at given distances, and its direction there in radians."""
    step = 0.5
    here = shapely.get_coordinates(shapely.line_interpolate_point(line, distance))
    lo = np.clip(distance - step, 0, line.length)
    hi = np.clip(distance + step, 0, line.length)
    delta = shapely.get_coordinates(shapely.line_interpolate_point(line, hi))
    delta -= shapely.get_coordinates(shapely.line_interpolate_point(line, lo))
    return here, np.arctan2(delta[:, 1], delta[:, 0])


def beside(line: shapely.LineString, distance: Points, offset: ArrayLike) -> tuple[Points, Points]:
    """Return points at a signed offset from a line (positive to the right on screen)."""
    here, angle = along(line, distance)
    side = np.stack((-np.sin(angle), np.cos(angle)), -1)
    return here + side * np.broadcast_to(np.asarray(offset, float), len(here))[:, None], angle


def segments(ends: Points) -> shapely.MultiLineString:
    """Return straight lines between pairs of points (n, 2, 2) as one geometry."""
    return shapely.MultiLineString(list(np.asarray(shapely.linestrings(ends), dtype=object)))


def shifted(line: BaseGeometry, offset: float) -> BaseGeometry:
    """Return a line parallel to another."""
    if offset == 0:
        return line
    return cast(BaseGeometry, shapely.offset_curve(line, offset, join_style="mitre"))


def dashes(line: BaseGeometry, dash: float, gap: float) -> BaseGeometry:
    """Return dashes along a line as one geometry."""
    if not isinstance(line, shapely.LineString) or line.length < dash:
        return line
    start = np.arange(gap / 2, line.length - dash, dash + gap)
    ends = np.stack((start, start + dash), axis=1).ravel()
    points = shapely.get_coordinates(shapely.line_interpolate_point(line, ends))
    return segments(points.reshape(-1, 2, 2))


def strip(line: BaseGeometry, half: float, *, flat: bool = False) -> BaseGeometry:
    """Return the area within ``half`` metres of a line; ends round, or cut square."""
    return line.buffer(half, quad_segs=4, cap_style="flat" if flat else "round")
