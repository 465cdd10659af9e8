"""Shapes of roads: kerbs, carriageway, wear, markings, cars, trees along the street."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry.base import BaseGeometry

from geoprep.synth.city.kinds import Kind, Road
from geoprep.synth.city.lattice import Points
from geoprep.synth.ground.things import (
    BRIDGE,
    CAR,
    DECK,
    JUNCTION,
    KERB,
    PAINT,
    ROAD,
    ROADSIDE,
    VERGE,
    Sketch,
    along,
    beside,
    dashes,
    rectangles,
    segments,
    shifted,
    strip,
)

_LIFT = BRIDGE - ROADSIDE
CAR_PAINTS = ("white", "black", "steel", "red", "concrete", "blue", "roofing")
_CAR_SHARES = np.array([0.26, 0.2, 0.22, 0.08, 0.1, 0.06, 0.08])


@dataclass(frozen=True, slots=True)
class Style:
    """Appearance of one street along all of its length, bridges included."""

    material: str
    gain: float
    markings: float
    kerb: bool
    trees: bool
    parking: float


def asphalt_age(rng: np.random.Generator) -> float:
    """Draw the brightness of bituminous surface, fresh black to bleached; roofs and lots alike."""
    return float(np.clip(np.exp(rng.normal(0.05, 0.30)), 0.6, 1.8))


def draw_style(kind: Kind, zone: float, rng: np.random.Generator) -> Style:
    """Draw the appearance of a street."""
    material = str(rng.choice(["asphalt", "patched", "concrete"], p=[0.62, 0.28, 0.10]))
    gain = asphalt_age(rng)
    if material == "concrete":
        gain = 0.62 + 0.25 * gain
    if not kind.paved:
        material, gain = str(rng.choice(["dirt", "gravel"])), float(rng.uniform(0.75, 1.2))
    local = kind.highway in ("residential", "unclassified")
    return Style(
        material,
        gain,
        float(rng.uniform(0.55, 1.15)),
        kind.paved and kind.highway not in ("service", "unclassified", "track"),
        kind.highway != "motorway" and rng.random() < (0.65 if zone > 0.3 else 0.3),
        float(rng.uniform(0.1, 0.5)) if local and kind.paved and zone > 0.4 else 0.0,
    )


def draw_road(sketch: Sketch, road: Road, style: Style) -> None:
    """Add one road with its roadside, markings and cars."""
    lift = _LIFT if road.bridge else 0
    if road.bridge:
        edge = strip(road.line, road.kind.width / 2 + 1.1, flat=True)
        sketch.add(edge, "concrete", DECK, gain=1.1)
    elif road.kind.paved:
        _draw_roadside(sketch, road, style)
    else:
        soft = strip(road.line, road.kind.width / 2 + 0.9)
        sketch.add(soft, "worn", ROADSIDE, gain=0.9)
    if road.kind.highway == "track" and not road.bridge:
        for side in (-0.75, 0.75):
            rut = strip(shifted(road.line, side), 0.42)
            sketch.add(rut, style.material, ROAD, gain=style.gain)
    else:
        _draw_carriageway(sketch, road, style, lift)
    if road.kind.paved:
        sketch.add(marking_lines(road), "paint", PAINT + lift, gain=style.markings)
    _draw_cars(sketch, road, style, lift)


def _draw_roadside(sketch: Sketch, road: Road, style: Style) -> None:
    """Add pavement, verge and kerb; the higher the class, the wider."""
    half, line, name = road.kind.width / 2, road.line, road.kind.highway
    if name in ("primary", "secondary"):
        sketch.add(strip(line, half + 4.8), "concrete", ROADSIDE, gain=0.85)
        sketch.add(strip(line, half + 2.6), "lawn", VERGE)
    elif name == "tertiary" or (name == "residential" and style.parking > 0.25):
        sketch.add(strip(line, half + 2.1), "concrete", ROADSIDE, gain=0.8)
    elif name.startswith("motorway"):
        sketch.add(strip(line, half + 5, flat=True), "meadow", ROADSIDE)
        sketch.add(strip(line, half + 1.0, flat=True), "gravel", VERGE, gain=0.75)
    else:
        sketch.add(strip(line, half + 0.9), "worn", ROADSIDE, gain=0.85)
    if style.kerb and not name.startswith("motorway"):
        sketch.add(strip(line, half + 0.4), "concrete", KERB, gain=1.15)


def _draw_carriageway(sketch: Sketch, road: Road, style: Style, lift: int) -> None:
    """Add the surface, and the lanes' wheel tracks on it."""
    kind, line = road.kind, road.line
    flat = road.bridge or kind.highway.startswith("motorway")
    layer = ROAD + 2 * kind.order + lift
    surface = strip(line, kind.width / 2, flat=flat)
    sketch.add(surface, style.material, layer, gain=style.gain)
    spread, shade = (0.85, 0.9) if kind.paved else (0.8, 1.12)
    for centre in lane_offsets(kind):
        for side in (-spread, spread):
            track = strip(shifted(line, centre + side), 0.32, flat=True)
            sketch.add(track, style.material, layer + 1, gain=style.gain * shade)


def lane_offsets(kind: Kind) -> Points:
    """Return the signed offsets of the lanes' middles from the centre line, in metres."""
    offsets = (np.arange(kind.lanes) - (kind.lanes - 1) / 2) * kind.lane
    offsets += np.sign(offsets) * kind.median / 2
    return offsets.astype(np.float64)


def marking_lines(road: Road) -> list[BaseGeometry]:
    """Return the painted lines of a paved road, one pixel wide when drawn.

    Small streets have none, only fast roads have edge lines.
    """
    kind, line = road.kind, road.line
    lanes = lane_offsets(kind)
    between = [float(d) for d in (lanes[1:] + lanes[:-1]) / 2]
    edge = kind.lane * kind.lanes / 2 + kind.median / 2
    edges = [shifted(line, side * edge) for side in (-1, 1)]
    if kind.highway in ("motorway", "motorway_link"):
        return edges + [dashes(shifted(line, d), 4, 8) for d in between]
    inner = [dashes(shifted(line, d), 3, 6) for d in between if abs(d) > 0.1]
    if kind.highway == "primary":
        apart = max(kind.median / 2, 0.25)
        middle = [shifted(line, side * apart) for side in (-1, 1)]
        return edges + inner + middle + ([_hatching(road)] if kind.median else [])
    if kind.highway == "secondary":
        strips = [] if kind.lanes > 2 else [dashes(part, 1.2, 1.2) for part in edges]
        return [line, *inner, *strips]
    if kind.highway == "tertiary":
        return [dashes(shifted(line, d), 3, 5) for d in between]
    return []


def _hatching(road: Road) -> BaseGeometry:
    """Return slanted strokes across a median."""
    half = road.kind.median / 2
    places = np.arange(2.0, road.line.length - 3.0, 3.2)
    left, _ = beside(road.line, places, -half)
    right, _ = beside(road.line, places + 1.6, half)
    return segments(np.stack((left, right), axis=1))


def _draw_cars(sketch: Sketch, road: Road, style: Style, lift: int) -> None:
    """Add moving cars in their lanes and parked ones at the kerb."""
    rng = sketch.rng
    length, kind = road.line.length, road.kind
    every = {"motorway": 38.0, "primary": 45.0, "secondary": 60.0, "tertiary": 90.0}
    count = rng.poisson(kind.lanes * length / every.get(kind.highway, 260.0))
    offsets = rng.choice(lane_offsets(kind), count)
    where, angle = beside(road.line, rng.uniform(0, length, count), offsets)
    add_cars(sketch, where, angle, layer=CAR + lift)
    if style.parking and not road.bridge:
        slots = np.arange(8.0, length - 8, 6.5)
        slots = slots[rng.random(len(slots)) < style.parking]
        side = rng.choice([-1, 1], len(slots)) * (kind.width / 2 - 0.9)
        where, angle = beside(road.line, slots, side)
        add_cars(sketch, where, angle)


def add_cars(sketch: Sketch, where: Points, angle: Points, *, layer: int = CAR) -> None:
    """Add cars, a few of them lorries, with a darker windscreen across."""
    rng = sketch.rng
    n = len(where)
    paints = rng.choice(len(CAR_PAINTS), n, p=_CAR_SHARES)
    lorry = rng.random(n) < 0.05
    length = np.where(lorry, rng.uniform(7, 11, n), rng.uniform(4.0, 4.9, n))
    width = np.where(lorry, 2.4, 1.8)
    gain, roof = rng.uniform(0.7, 1.3, n), np.where(lorry, 3.2, 1.5)
    bodies = rectangles(where, angle, length, width)
    for k, paint in enumerate(CAR_PAINTS):
        own = paints == k
        sketch.add(bodies[own], paint, layer, gain=gain[own], height=roof[own])
    ahead = np.stack((np.cos(angle), np.sin(angle)), -1) * (0.2 * length)[:, None]
    glass = rectangles(where + ahead, angle, 0.7, width * 0.8)
    sketch.add(glass, "black", layer + 1, height=roof)


def street_trees(road: Road, style: Style, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return where trees stand along a street (n, 2), and radii that reach over the kerb."""
    if not style.trees or road.bridge or road.line.length < 20:
        return np.empty((0, 2)), np.empty(0)
    slots = np.arange(6.0, road.line.length - 6, rng.uniform(8, 14))
    slots = np.concatenate((slots, slots))
    side = np.repeat([-1.0, 1.0], len(slots) // 2)
    keep = rng.random(len(slots)) < rng.uniform(0.35, 0.85)
    slots, side = slots[keep] + rng.normal(0, 1.0, keep.sum()), side[keep]
    offset = side * (road.kind.width / 2 + rng.uniform(1.2, 3.2, len(slots)))
    where, _ = beside(road.line, slots, offset)
    return where, rng.uniform(1.4, 3.6, len(slots))


def draw_junction(sketch: Sketch, xy: Points, road: Road, style: Style, crossing: float) -> None:
    """Add the unmarked middle where the widest road joins or crosses, and pedestrian crossings."""
    half = road.kind.width / 2
    disc = strip(shapely.Point(xy), max(half, crossing / 2) + 1.0)
    disc = disc.intersection(strip(road.line, half))
    sketch.add(disc, style.material, JUNCTION, gain=style.gain)
    if sketch.rng.random() >= 0.6:
        return
    at = road.line.project(shapely.Point(xy))
    for side in (-1, 1):
        place = at + side * (crossing / 2 + 3.6)
        if 3 < place < road.line.length - 3:
            sketch.add(_zebra(road, place), "paint", JUNCTION, gain=style.markings)


def _zebra(road: Road, place: float) -> NDArray[np.object_]:
    here, angle = along(road.line, np.array([place]))
    across = np.array([-np.sin(angle[0]), np.cos(angle[0])])
    steps = np.arange(0.6 - road.kind.width / 2, road.kind.width / 2 - 0.3, 1.1)
    return rectangles(here + steps[:, None] * across, angle[0], 3.2, 0.55)
