"""What a city is drawn from: polygons with a material, and trees; kept as columns, not objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True)
class Things:
    """Columns of equal length, one row a polygon or line.

    Attributes
    ----------
    geometry, bounds
        Shape and its bounding box (n, 4) in metres.
    layer, material
        Drawing layer and index of the material.
    gain, height, facing
        Brightness relative to the material, metres above ground, and the direction that a roof
        slopes down to (radians, NaN where level).
    trees
        Columns x, y, radius in metres, and 1 for conifers, (m, 4).
    """

    geometry: NDArray[np.object_]
    bounds: Points
    layer: NDArray[np.int16]
    material: NDArray[np.uint8]
    gain: NDArray[np.float32]
    height: NDArray[np.float32]
    facing: NDArray[np.float32]
    trees: Points

    def within(self, box: tuple[float, float, float, float], trees_m: float) -> Things:
        """Return what touches a box; trees up to ``trees_m`` outside of it too."""
        x0, y0, x1, y1 = box
        b, t = self.bounds, self.trees
        hit = (b[:, 0] <= x1) & (b[:, 2] >= x0) & (b[:, 1] <= y1) & (b[:, 3] >= y0)
        near = (t[:, 0] > x0 - trees_m) & (t[:, 0] < x1 + trees_m)
        near &= (t[:, 1] > y0 - trees_m) & (t[:, 1] < y1 + trees_m)
        return self._take(hit, t[near])

    def in_order(self) -> Things:
        """Return the same things, sorted by layer; within a layer the order stays."""
        return self._take(np.argsort(self.layer, kind="stable"), self.trees)

    def _take(self, rows: NDArray[np.generic], trees: Points) -> Things:
        return Things(
            self.geometry[rows], self.bounds[rows], self.layer[rows], self.material[rows],
            self.gain[rows], self.height[rows], self.facing[rows], trees,
        )  # fmt: skip


def merge(parts: list[Things]) -> Things:
    """Return all things of several parts as one, in their order."""
    return Things(
        np.concatenate([p.geometry for p in parts]),
        np.concatenate([p.bounds for p in parts]),
        np.concatenate([p.layer for p in parts]),
        np.concatenate([p.material for p in parts]),
        np.concatenate([p.gain for p in parts]),
        np.concatenate([p.height for p in parts]),
        np.concatenate([p.facing for p in parts]),
        np.concatenate([p.trees for p in parts]),
    )


class Sketch:
    """Collects things one by one, or many alike at once."""

    def __init__(self) -> None:
        self._geometry: list[NDArray[np.object_]] = []
        self._rows: list[NDArray[np.float64]] = []
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
        rows = np.empty((len(shapes), 5))
        rows[:, 0], rows[:, 1] = layer, INDEX[material]
        rows[:, 2], rows[:, 3], rows[:, 4] = gain, height, facing
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
        rows = np.concatenate([np.empty((0, 5)), *self._rows])
        return Things(
            geometry,
            shapely.bounds(geometry).reshape(-1, 4),
            rows[:, 0].astype(np.int16),
            rows[:, 1].astype(np.uint8),
            rows[:, 2].astype(np.float32),
            rows[:, 3].astype(np.float32),
            rows[:, 4].astype(np.float32),
            np.concatenate(self._trees),
        )
