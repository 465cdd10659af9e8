"""What a city is drawn from: materials, and shapes of a material at a height.

Roads share their materials with roofs, parking lots, yards and bare soil: they are found by shape.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, cast

import numpy as np
import shapely
from numpy.typing import ArrayLike, NDArray
from shapely.geometry.base import BaseGeometry

from geoprep.synth.layout import Points

# Reflectance in percent in the bands of WorldView-3 (coastal, blue, green, yellow, red, red edge,
# two of near infrared), round figures in the manner of USGS and ECOSTRESS; then relative variation
# at about 0.3, 1.5 and 12 m.
MATERIALS: Final[dict[str, tuple[float, ...]]] = {
    "asphalt": (9.4, 10.2, 11.0, 11.4, 11.6, 11.9, 12.4, 12.6, 0.05, 0.07, 0.08),
    "concrete": (14.6, 16.4, 18.2, 19.0, 19.5, 20.0, 20.8, 21.2, 0.05, 0.06, 0.07),
    "gravel": (11.6, 13.6, 16.2, 18.2, 19.2, 20.4, 22.0, 22.8, 0.09, 0.10, 0.10),
    "dirt": (9.2, 11.6, 15.0, 17.8, 19.5, 21.6, 24.6, 26.0, 0.08, 0.12, 0.10),
    "steel": (17.0, 18.5, 20.5, 22.0, 23.0, 24.0, 25.0, 25.5, 0.05, 0.05, 0.05),
    "white": (29.0, 34.0, 37.0, 38.0, 38.5, 39.0, 39.5, 39.5, 0.05, 0.12, 0.07),
    "tiles": (5.0, 6.2, 8.8, 14.0, 18.5, 21.0, 24.0, 26.0, 0.07, 0.06, 0.04),
    "brown": (5.5, 6.5, 8.5, 11.0, 13.0, 15.0, 18.0, 20.0, 0.07, 0.06, 0.04),
    "blue": (14.0, 19.0, 16.5, 13.5, 12.0, 13.0, 18.0, 20.0, 0.04, 0.05, 0.05),
    "black": (3.0, 3.0, 3.1, 3.1, 3.2, 3.2, 3.4, 3.5, 0.05, 0.00, 0.00),
    "lawn": (3.4, 4.6, 8.6, 7.9, 6.4, 19.0, 37.0, 39.0, 0.10, 0.12, 0.18),
    "meadow": (4.4, 6.2, 10.6, 11.2, 10.8, 20.0, 31.0, 33.0, 0.12, 0.14, 0.18),
    "yard": (4.6, 6.6, 10.8, 11.2, 10.8, 19.5, 29.0, 31.0, 0.14, 0.18, 0.16),
    "crop": (3.2, 4.4, 8.2, 6.8, 5.0, 18.0, 42.0, 45.0, 0.06, 0.07, 0.10),
    "straw": (7.2, 9.6, 14.6, 18.2, 20.4, 24.0, 32.0, 35.0, 0.07, 0.07, 0.10),
    "tilled": (7.0, 8.6, 11.2, 13.6, 15.4, 17.4, 20.6, 22.0, 0.10, 0.07, 0.08),
    "water": (5.4, 5.6, 5.4, 4.2, 3.0, 2.0, 1.2, 0.9, 0.03, 0.03, 0.10),
    "leaves": (2.2, 3.0, 5.8, 4.9, 3.9, 15.0, 33.0, 36.0, 0.20, 0.16, 0.22),
}
INDEX: Final = {name: k for k, name in enumerate(MATERIALS)}
DRYNESS: Final = {"vegas": 0.85, "khartoum": 0.8, "san_juan": 0.1, "mumbai": 0.25}
"""How far a city's greenery has withered: 0 (also where none is given) lush, 1 bare ground."""

LIFT: Final = 40
"""What raises a bridge and all on it above all traffic of the ground, in layers."""
_DECK_M: Final = 2.5


class Layer(IntEnum):
    """Drawn from low to high; what is higher than one of these is drawn over it."""

    GROUND = 0
    DETAIL = 5
    WATER = 10
    ROADSIDE = 20
    ROAD = 30
    PAINT = 45
    CAR = 50
    ROOF = 100


ROW: Final = np.dtype(
    {
        "names": ["shape", "layer", "material", "gain", "height", "facing"],
        "formats": [object, np.int16, np.uint8, np.float32, np.float32, np.float32],
    }
)
"""A shape in metres with its layer, the index of its material, its brightness relative to that, its
height in metres, and to where a roof slopes down in radians, NaN where level."""


class Things(NamedTuple):
    """Shapes with their attributes, and trees."""

    rows: NDArray[np.void]  # (n), of `ROW`
    trees: Points  # (m, 3): x, y, radius in metres


class Sketch:
    """Collects things one by one, or many alike at once, and has the random numbers for them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._rows: list[NDArray[np.void]] = [np.empty(0, ROW)]
        self._trees: list[Points] = [np.empty((0, 3))]

    def add(
        self,
        shapes: object,
        material: ArrayLike,
        layer: int,
        *,
        gain: ArrayLike = 1.0,
        height: ArrayLike = 0.0,
        facing: ArrayLike = np.nan,
    ) -> None:
        """Add a geometry, or an array of them; empty ones are left out."""
        geometry = np.atleast_1d(np.asarray(shapes, dtype=object))
        rows = np.empty(len(geometry), ROW)
        rows["shape"], rows["layer"], rows["gain"], rows["facing"] = geometry, layer, gain, facing
        rows["material"] = [INDEX[name] for name in np.atleast_1d(np.asarray(material)).tolist()]
        on_bridge = Layer.ROADSIDE + LIFT <= layer < Layer.ROOF
        rows["height"] = np.asarray(height) + _DECK_M * on_bridge
        self._rows.append(rows[~shapely.is_empty(geometry)])

    def plant(self, xy: Points, radius: Points) -> None:
        """Add trees of given crown radii."""
        self._trees.append(np.column_stack((xy, radius)))

    def finish(self) -> Things:
        """Return everything added so far."""
        return Things(np.concatenate(self._rows), np.concatenate(self._trees))


def towards(angle: ArrayLike, distance: ArrayLike = 1.0) -> Points:
    """Return vectors (..., 2) of a length in a direction."""
    turn = np.asarray(angle, dtype=float)
    vectors: Points = np.stack((np.cos(turn), np.sin(turn)), -1) * np.asarray(distance)[..., None]
    return vectors


def rectangles(
    centre: Points, angle: ArrayLike, length: ArrayLike, width: ArrayLike
) -> NDArray[np.object_]:
    """Return turned rectangles around centres (n, 2); ``length`` runs along ``angle``."""
    turn = np.broadcast_to(np.asarray(angle, dtype=float), len(centre))
    along = towards(turn, np.asarray(length) / 2)
    across = towards(turn + np.pi / 2, np.asarray(width) / 2)
    corners = (along + across, across - along, -along - across, along - across)
    return np.asarray(shapely.polygons(np.stack([centre + c for c in corners], 1)), dtype=object)


def beside(line: shapely.LineString, distance: Points, offset: ArrayLike) -> tuple[Points, Points]:
    """Return points (n, 2) at a signed offset from a line, and its direction there in radians."""
    here, before, after = (
        shapely.get_coordinates(shapely.line_interpolate_point(line, at.clip(0, line.length)))
        for at in (distance, distance - 0.5, distance + 0.5)
    )
    angle = np.arctan2(*(after - before).T[::-1])
    return here + towards(angle + np.pi / 2, offset), angle


def shifted(line: BaseGeometry, offset: float) -> BaseGeometry:
    """Return a line parallel to another."""
    return cast(BaseGeometry, shapely.offset_curve(line, offset, join_style="mitre"))


def dashes(line: BaseGeometry, dash: float, gap: float) -> BaseGeometry:
    """Return dashes along a line as one geometry."""
    if not isinstance(line, shapely.LineString) or line.length < dash:
        return line
    start = np.arange(gap / 2, line.length - dash, dash + gap)
    ends = shapely.line_interpolate_point(line, np.stack((start, start + dash), axis=1))
    return shapely.MultiLineString([*shapely.get_coordinates(ends).reshape(-1, 2, 2)])


def strip(line: BaseGeometry, half: float, *, flat: bool = False) -> BaseGeometry:
    """Return the area within ``half`` metres of a line; ends round, or cut square."""
    return line.buffer(half, quad_segs=4, cap_style="flat" if flat else "round")
