"""Streets: kinds of road with their speeds, and the shapes that they are drawn from.

Width, markings and roadside follow from class and lanes, so that speed can be learned from images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry.base import BaseGeometry

from geoprep.labels.attributes import HIGHWAY_TYPES
from geoprep.speed import table_mph
from geoprep.synth import shapes
from geoprep.synth.layout import Points, Rank
from geoprep.synth.shapes import LIFT, Layer, Sketch, strip, towards

# highway: metres per lane, metres beyond the lanes in all on roads of up to 2 lanes and of more.
# Beyond the lanes are the hard shoulders of motorways and of primaries, the cycle lanes of
# secondaries of 2 lanes.
_GEOMETRY: Final = {
    "motorway": (3.75, 3.0, 3.0),
    "motorway_link": (4.2, 1.4, 1.4),
    "primary": (3.6, 3.6, 3.0),
    "secondary": (3.3, 2.8, 1.0),
    "tertiary": (3.1, 0.6, 0.6),
    "residential": (2.9, 0.0, 0.0),
    "unclassified": (2.6, 0.0, 0.0),
    "service": (3.6, 0.0, 0.0),
    "track": (2.6, 0.0, 0.0),
}
URBAN, RURAL = 0.62, 0.34
"""Zone values above which a place is urban and below which it is rural."""
# Metres beyond the carriageway, and what is there.
_PLAIN: Final = ((0.9, "yard"),)
_ROADSIDES: Final = {
    "motorway": ((5.0, "meadow"), (1.0, "gravel")),
    "motorway_link": ((5.0, "meadow"), (1.0, "gravel")),
    "primary": ((4.8, "concrete"), (2.6, "lawn"), (0.4, "concrete")),
    "secondary": ((4.8, "concrete"), (2.6, "lawn"), (0.4, "concrete")),
    "tertiary": ((2.1, "concrete"),),
    "residential": ((2.1, "concrete"),),
}
_CAR_PAINTS: Final = ("white", "black", "steel", "tiles", "concrete", "blue", "asphalt")
_CAR_SHARES: Final = (0.26, 0.2, 0.22, 0.08, 0.1, 0.06, 0.08)
# Metres of lane per moving car.
_CAR_EVERY_M: Final = {"motorway": 38.0, "primary": 45.0, "secondary": 60.0, "tertiary": 90.0}
_MARKED: Final = ("motorway", "motorway_link", "primary", "secondary", "tertiary")


class Kind(NamedTuple):
    """Attributes that determine the appearance and the speed of a road."""

    highway: str
    lanes: int
    surface: Literal["paved", "unpaved"] | None

    @property
    def paved(self) -> bool:
        """True if the road is drawn and rated as paved; an unknown surface is rated as unpaved."""
        return self.surface == "paved"

    @property
    def lane(self) -> float:
        """Width of a lane in metres."""
        return _GEOMETRY[self.highway][0]

    @property
    def width(self) -> float:
        """Width of the carriageway in metres."""
        return self.lane * self.lanes + _GEOMETRY[self.highway][2 if self.lanes > 2 else 1]

    @property
    def mph(self) -> float:
        """Speed by the SpaceNet 5 rule (type, lanes, surface)."""
        return table_mph(HIGHWAY_TYPES[self.highway], self.lanes, self.paved)


@dataclass(frozen=True, slots=True)
class Road:
    """One stretch of road with equal attributes."""

    line: shapely.LineString  # in metres
    kind: Kind
    bridge: bool
    street: int  # stretches of one street have one age and colour of asphalt


MOTORWAY = Kind("motorway", 3, "paved")
RAMP = Kind("motorway_link", 1, "paved")
DRIVEWAY = Kind("service", 1, "paved")
FARM_TRACK = Kind("track", 1, "unpaved")

# Kinds of minor streets, each with the chance of it or of one before.
_URBAN = (0.85, Kind("residential", 2, "paved")), (1.0, Kind("unclassified", 2, "paved"))
_SUBURBAN = (
    (0.7, Kind("residential", 2, "paved")),
    (0.9, Kind("residential", 2, "unpaved")),
    (1.0, Kind("unclassified", 2, None)),
)
_RURAL = (
    (0.35, Kind("unclassified", 2, "paved")),
    (0.65, Kind("unclassified", 2, "unpaved")),
    (0.85, FARM_TRACK),
    (1.0, Kind("track", 1, None)),
)


def draw_kind(rank: Rank, zone: float, rng: np.random.Generator) -> Kind:
    """Draw the attributes of a stretch of street from its rank and how urban the place is."""
    chance = rng.random()
    if rank == "primary":
        return Kind("primary", 4 if zone > 0.42 else 2, "paved")
    if rank == "secondary":
        rough = zone < RURAL and chance > 0.8
        return Kind(rank, 4 if zone > 0.5 and chance < 0.55 else 2, None if rough else "paved")
    if rank == "tertiary":
        rough = zone < 0.5 and chance < 0.22
        return Kind(rank, 3 if chance > 0.88 else 2, "unpaved" if rough else "paved")
    minor = _URBAN if zone > URBAN else _SUBURBAN if zone > RURAL else _RURAL
    return next(kind for limit, kind in minor if chance < limit)


class Style(NamedTuple):
    """Appearance of one street along all of its length, bridges included."""

    material: str
    gain: float
    trees: bool
    parking: float


def asphalt_age(rng: np.random.Generator) -> float:
    """Draw the brightness of bituminous surface, fresh black to bleached; roofs and lots alike."""
    return float(np.clip(np.exp(rng.normal(0.05, 0.30)), 0.6, 1.8))


def draw_style(kind: Kind, zone: float, rng: np.random.Generator) -> Style:
    """Draw the appearance of a street."""
    gain, chance, rough = asphalt_age(rng), rng.random(4), rng.uniform(0.75, 1.2)
    if not kind.paved:
        material, gain = "dirt" if chance[0] < 0.5 else "gravel", rough
    elif chance[0] < 0.1:
        material, gain = "concrete", 0.62 + 0.25 * gain
    else:
        material = "asphalt"
    trees = kind.highway != "motorway" and chance[1] < (0.65 if zone > 0.3 else 0.3)
    local = kind.highway in ("residential", "unclassified") and kind.paved and zone > 0.4
    return Style(material, gain, trees, 0.1 + 0.4 * chance[2] if local else 0.0)


def draw_road(sketch: Sketch, road: Road, style: Style, junctions: NDArray[np.object_]) -> None:
    """Add one road with its roadside, markings, cars and trees; junctions have no markings."""
    kind, line, half = road.kind, road.line, road.kind.width / 2
    lift, fast = LIFT if road.bridge else 0, kind in (MOTORWAY, RAMP)
    if road.bridge:
        sketch.add(strip(line, half + 1.1, flat=True), "concrete", Layer.ROADSIDE + lift, gain=1.1)
    else:
        plain = not kind.paved or (kind.highway == "residential" and style.parking < 0.25)
        roadside = _PLAIN if plain else _ROADSIDES.get(kind.highway, _PLAIN)
        for layer, (extra, material) in enumerate(roadside, Layer.ROADSIDE):
            sketch.add(strip(line, half + extra, flat=fast), material, layer)
    surface = strip(line, half, flat=road.bridge or fast)
    if kind.highway == "track" and not road.bridge:  # two ruts
        surface = shapely.union_all(
            [strip(shapes.shifted(line, side), 0.42) for side in (-0.75, 0.75)]
        )
    # Of two crossing roads, the wider one is drawn last.
    layer = Layer.ROAD + int(kind.width / 2) + lift
    sketch.add(surface, style.material, layer, gain=style.gain)
    if kind.paved and kind.highway in _MARKED:
        unmarked = shapely.union_all(shapely.buffer(junctions, half + 3))
        marks = shapely.difference(_markings(kind, line), unmarked)
        sketch.add(marks, "white", Layer.PAINT + lift, gain=sketch.rng.uniform(0.5, 0.95))
    _draw_cars(sketch, road, style, Layer.CAR + lift)
    if style.trees and not road.bridge and line.length > 20:
        _plant_trees(sketch, road)


def _lanes(kind: Kind) -> Points:
    """Return the signed offsets of the lanes' middles from the centre line, in metres."""
    return np.asarray((np.arange(kind.lanes) - (kind.lanes - 1) / 2) * kind.lane)


def _markings(kind: Kind, line: shapely.LineString) -> list[BaseGeometry]:
    """Return painted lines, one pixel wide when drawn: between lanes, and edges of fast roads."""
    lanes = _lanes(kind)
    marks = [
        shapes.dashes(shapes.shifted(line, float(d)), 3, 6) for d in (lanes[1:] + lanes[:-1]) / 2
    ]
    if kind.highway not in ("secondary", "tertiary"):
        marks += [shapes.shifted(line, side * kind.lane * kind.lanes / 2) for side in (-1, 1)]
    return [*marks, line] if kind.highway in ("primary", "secondary") else marks


def _draw_cars(sketch: Sketch, road: Road, style: Style, layer: int) -> None:
    """Add moving cars in their lanes and parked ones at the kerb."""
    rng, length, kind = sketch.rng, road.line.length, road.kind
    count = rng.poisson(kind.lanes * length / _CAR_EVERY_M.get(kind.highway, 260.0))
    places, lanes = rng.uniform(0, length, count), rng.choice(_lanes(kind), count)
    add_cars(sketch, *shapes.beside(road.line, places, lanes), layer)
    if style.parking and not road.bridge:
        slots = np.arange(8.0, length - 8, 6.5)
        slots = slots[rng.random(len(slots)) < style.parking]
        side = rng.choice([-1, 1], len(slots)) * (kind.width / 2 - 0.9)
        add_cars(sketch, *shapes.beside(road.line, slots, side), layer)


def add_cars(sketch: Sketch, where: Points, angle: Points, layer: int) -> None:
    """Add cars with a darker windscreen across, a few of them lorries."""
    rng, n = sketch.rng, len(where)
    length = np.where(rng.random(n) < 0.05, 9.0, rng.uniform(4.0, 4.9, n))
    bodies, gain = shapes.rectangles(where, angle, length, 1.9), rng.uniform(0.7, 1.3, n)
    sketch.add(bodies, rng.choice(_CAR_PAINTS, n, p=_CAR_SHARES), layer, gain=gain, height=1.5)
    glass = shapes.rectangles(where + towards(angle, 0.2 * length), angle, 0.7, 1.5)
    sketch.add(glass, "black", layer + 1, height=1.5)


def _plant_trees(sketch: Sketch, road: Road) -> None:
    """Add rows of trees whose crowns reach over the kerb."""
    rng = sketch.rng
    slots = np.repeat(np.arange(6.0, road.line.length - 6, rng.uniform(8, 14)), 2)
    side = np.where(np.arange(len(slots)) % 2, -1.0, 1.0)
    kept = rng.random(len(slots)) < rng.uniform(0.35, 0.85)
    slots, side = slots[kept] + rng.normal(0, 1.0, kept.sum()), side[kept]
    offset = side * (road.kind.width / 2 + rng.uniform(1.2, 3.2, len(slots)))
    where, _ = shapes.beside(road.line, slots, offset)
    sketch.plant(where, rng.uniform(1.4, 3.6, len(slots)))
