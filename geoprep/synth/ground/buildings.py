"""Buildings and the ground between them: houses, slabs, halls, parking lots."""

from __future__ import annotations

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry.base import BaseGeometry

from geoprep.synth.city.lattice import Points
from geoprep.synth.ground.pavement import add_cars, asphalt_age
from geoprep.synth.ground.things import (
    DETAIL,
    GROUND,
    ROOF,
    Sketch,
    along,
    rectangles,
    segments,
    strip,
)

_FLAT_ROOFS = ("roofing", "concrete", "gravel", "white", "steel", "dirt")
_FLAT_SHARES = np.array([0.5, 0.16, 0.15, 0.08, 0.06, 0.05])
_HALL_ROOFS = ("roofing", "steel", "blue", "white", "green", "tiles", "concrete")
_HALL_SHARES = np.array([0.36, 0.18, 0.1, 0.1, 0.06, 0.06, 0.14])
_HOUSE_ROOFS = ("tiles", "brown", "roofing", "steel", "green", "blue", "concrete")
_HOUSE_SHARES = np.array([0.2, 0.2, 0.3, 0.1, 0.06, 0.05, 0.09])


def fitting(boxes: NDArray[np.object_], room: BaseGeometry, apart: float) -> NDArray[np.intp]:
    """Return the boxes that lie within a room, at least ``apart`` metres from each other."""
    shapely.prepare(room)
    chosen: list[int] = []
    for k in np.flatnonzero(shapely.contains(room, boxes)):
        if not chosen or not shapely.dwithin(boxes[chosen], boxes[k], apart).any():
            chosen.append(int(k))
    return np.array(chosen, dtype=np.intp)


def add_houses(sketch: Sketch, room: shapely.Polygon, _angle: float) -> BaseGeometry:
    """Add detached houses around a block, with drives and sheds; return their ground."""
    rng = sketch.rng
    ring = room.buffer(-rng.uniform(7.5, 9.5))
    if ring.is_empty:
        return shapely.Polygon()
    line = max(shapely.get_parts(ring), key=lambda p: p.length).exterior
    slots = np.arange(rng.uniform(0, 8), line.length, rng.uniform(14, 19))
    slots = slots[rng.random(len(slots)) < 0.92]
    where, angle = along(line, slots)
    angle = angle + rng.choice([0, np.pi / 2], len(angle))
    length, width = rng.uniform(9, 14.5, len(slots)), rng.uniform(7.5, 10.5, len(slots))
    boxes = rectangles(where, angle, length, width)
    own = fitting(boxes, room.buffer(-1.5), 3.0)
    _add_lots(sketch, where[own], angle[own], room)
    _add_drives(sketch, where[own], room)
    height = rng.uniform(4.5, 8.0, len(own))
    _add_pitched(sketch, where[own], angle[own], length[own], width[own], height)
    sheds = rectangles(
        where[own] + rng.uniform(-11, 11, (len(own), 2)), angle[own], 3.8, rng.uniform(2.4, 5)
    )
    sheds = sheds[shapely.contains(room, sheds)]
    sketch.add(sheds, "roofing", ROOF, gain=rng.uniform(0.8, 2.0, len(sheds)), height=2.5)
    return shapely.union_all(boxes[own])


def _add_lots(sketch: Sketch, where: Points, angle: Points, room: shapely.Polygon) -> None:
    """Add the plot of each house: lawn, beds or bare earth, some behind a hedge."""
    rng = sketch.rng
    lots = rectangles(
        where + rng.normal(0, 2, where.shape), angle, 17.0, rng.uniform(16, 24, len(where))
    )
    for lot in shapely.intersection(lots, room):
        ground = str(
            rng.choice(["lawn", "meadow", "yard", "dirt", "tilled"], p=[0.4, 0.25, 0.2, 0.08, 0.07])
        )
        sketch.add(lot, ground, GROUND + 1, gain=rng.uniform(0.75, 1.2))
        if rng.random() < 0.4:
            sketch.add(
                strip(lot.boundary, 0.6),
                "crown",
                GROUND + 2,
                gain=rng.uniform(0.8, 1.3),
                height=1.6,
            )


def _add_drives(sketch: Sketch, where: Points, room: shapely.Polygon) -> None:
    """Add a drive from each house straight to the street."""
    rng = sketch.rng
    edge = room.exterior
    for house in where[rng.random(len(where)) < 0.6]:
        gate = shapely.get_coordinates(edge.interpolate(edge.project(shapely.Point(house))))[0]
        line = shapely.LineString((house, house + 1.25 * (gate - house)))
        material = str(rng.choice(["concrete", "asphalt", "gravel", "dirt"]))
        sketch.add(line.buffer(1.5, cap_style="flat"), material, DETAIL, gain=rng.uniform(0.7, 1.2))
        if rng.random() < 0.5:
            turn = np.arctan2(*(gate - house)[::-1])
            add_cars(sketch, (0.45 * house + 0.55 * gate)[None], np.array([turn]))


def _add_pitched(
    sketch: Sketch, where: Points, angle: Points, length: Points, width: Points, height: Points
) -> None:
    """Add roofs of two slopes, whose brightness depends on the position of the sun."""
    kinds = sketch.rng.choice(len(_HOUSE_ROOFS), len(where), p=_HOUSE_SHARES)
    gain = sketch.rng.uniform(0.75, 1.3, len(where))
    across = np.stack((-np.sin(angle), np.cos(angle)), -1) * (width / 4)[:, None]
    for side in (-1, 1):
        slopes = rectangles(where + side * across, angle, length, width / 2)
        for k, roof in enumerate(_HOUSE_ROOFS):
            own = kinds == k
            facing = angle[own] + side * np.pi / 2
            sketch.add(slopes[own], roof, ROOF, gain=gain[own], height=height[own], facing=facing)


def add_flat_roof(
    sketch: Sketch, centre: Points, angle: float, size: tuple[float, float], height: float
) -> None:
    """Add one flat roof with its parapet, and machine rooms and vents on it."""
    rng = sketch.rng
    material = str(rng.choice(_FLAT_ROOFS, p=_FLAT_SHARES))
    gain = asphalt_age(rng) if material == "roofing" else float(rng.uniform(0.7, 1.15))
    middle = np.asarray(centre, dtype=np.float64)[None]
    length, width = size
    sketch.add(rectangles(middle, angle, length, width), "concrete", ROOF, height=height + 0.6)
    inner = rectangles(middle, angle, length - 1.0, width - 1.0)
    sketch.add(inner, material, ROOF + 1, gain=gain, height=height)
    count = int(rng.integers(2, 4 + int(length * width / 120)))
    spots = rng.uniform(-0.42, 0.42, (count, 2)) * np.array([length, width])
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    boxes = rectangles(middle + spots @ turn, angle, rng.uniform(1, 4.5, count), 1.6)
    tone = rng.uniform(0.5, 1.3, count)
    sketch.add(boxes, "concrete", ROOF + 2, gain=tone, height=height + rng.uniform(0.8, 2.6))


def add_slabs(sketch: Sketch, room: shapely.Polygon, angle: float) -> BaseGeometry:
    """Add rows of apartment slabs with strips of parking beside them; return what they cover."""
    rng = sketch.rng
    width, length = rng.uniform(11, 15), rng.uniform(34, 72)
    along_step, across_step = length + rng.uniform(8, 14), width + rng.uniform(16, 25)
    centres = _grid(room, angle, along_step, across_step)
    lengths = length * rng.choice([1.0, 0.7, 0.45], len(centres), p=[0.6, 0.25, 0.15])
    boxes = rectangles(centres, angle, lengths, width)
    own = fitting(boxes, room.buffer(-1.0), 9.0)
    levels = 2.9 * float(rng.choice([5, 5, 9, 12]))
    lots = rectangles(centres + _across(angle, width / 2 + 6.5), angle, lengths + 6, 8.0)
    own_lots = own[shapely.contains(room, lots[own]) & (rng.random(len(own)) < 0.75)]
    tone = asphalt_age(rng)
    sketch.add(lots[own_lots], "asphalt", DETAIL, gain=tone)
    for k in own:
        add_flat_roof(sketch, centres[k], angle, (lengths[k], width), levels)
    for k in own_lots:
        row = centres[k] + _across(angle, width / 2 + 8.0)
        park(sketch, row, angle, lengths[k] + 4, 0.7)
    return shapely.union_all(np.concatenate((boxes[own], lots[own_lots])))


def _across(angle: float, distance: float) -> Points:
    return distance * np.array([-np.sin(angle), np.cos(angle)])


def _grid(room: shapely.Polygon, angle: float, step_u: float, step_v: float) -> Points:
    """Return the points of a turned grid that lie in a room."""
    reach = 0.5 * float(np.hypot(room.bounds[2] - room.bounds[0], room.bounds[3] - room.bounds[1]))
    centre = shapely.get_coordinates(room.centroid)[0]
    u, v = (np.arange(-int(reach / s), int(reach / s) + 1) * s for s in (step_u, step_v))
    local = np.stack(np.meshgrid(u, v), axis=-1).reshape(-1, 2)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    points: Points = local @ turn + centre
    inside: NDArray[np.bool_] = shapely.contains_xy(room, points[:, 0], points[:, 1])
    return points[inside]


def park(sketch: Sketch, centre: Points, angle: float, length: float, share: float) -> None:
    """Add one row of parked cars, side by side across ``angle``."""
    places = np.arange(-length / 2 + 1.4, length / 2 - 1.2, 2.6)
    places = places[sketch.rng.random(len(places)) < share]
    where = centre + places[:, None] * np.array([np.cos(angle), np.sin(angle)])
    add_cars(sketch, where, np.full(len(where), angle + np.pi / 2))


def add_mall(sketch: Sketch, room: shapely.Polygon, angle: float) -> BaseGeometry:
    """Add a big flat building in its own parking lot: asphalt, stalls, rows of cars."""
    rng = sketch.rng
    material = str(rng.choice(["asphalt", "patched", "concrete"], p=[0.55, 0.3, 0.15]))
    tone = asphalt_age(rng) if material != "concrete" else 0.8
    sketch.add(room.buffer(1.0), material, GROUND + 2, gain=tone)
    centres = _grid(room, angle, 9.0, 9.0)
    size = (rng.uniform(30, 58), rng.uniform(22, 42))
    boxes = rectangles(centres[rng.permutation(len(centres))], angle, *size)
    own = fitting(boxes, room.buffer(-2), 12.0)[:1]
    for box in boxes[own]:
        middle = shapely.get_coordinates(box.centroid)[0]
        add_flat_roof(sketch, middle, angle, size, rng.uniform(6, 13))
    taken = shapely.union_all(shapely.buffer(boxes[own], 5.0))
    rows = rectangles(_grid(room, angle, 26.0, 15.5), angle, 23.5, 10.2)
    shapely.prepare(taken)
    rows = rows[shapely.contains(room, rows) & ~shapely.intersects(taken, rows)]
    for row in rows:
        _add_stalls(sketch, row, angle)
    return shapely.union_all(np.concatenate((boxes[own], rows)))


def _add_stalls(sketch: Sketch, row: shapely.Polygon, angle: float) -> None:
    """Add a double row of stalls: painted lines and the cars between them."""
    middle = shapely.get_coordinates(row.centroid)[0]
    places = np.arange(-11.7, 11.8, 2.6)[:, None] * np.array([np.cos(angle), np.sin(angle)])
    ends = np.stack([middle + places + _across(angle, d) for d in (-5.0, 5.0)], axis=1)
    lines = segments(ends)
    sketch.add(lines, "paint", DETAIL + 1, gain=sketch.rng.uniform(0.5, 0.95))
    share = sketch.rng.uniform(0.1, 0.85)
    for side in (-2.5, 2.5):
        park(sketch, middle + _across(angle, side), angle, 23.0, share)


def add_works(sketch: Sketch, room: shapely.Polygon, angle: float) -> BaseGeometry:
    """Add halls with low pitched roofs in a paved or gravel yard, containers and heaps."""
    rng = sketch.rng
    ground = str(rng.choice(["concrete", "gravel", "patched", "dirt"], p=[0.3, 0.15, 0.4, 0.15]))
    tone = asphalt_age(rng) if ground == "patched" else float(rng.uniform(0.6, 0.95))
    sketch.add(room.buffer(0.5), ground, GROUND + 2, gain=tone)
    centres = _grid(room, angle, 11.0, 11.0)[:: int(rng.integers(1, 3))]
    centres = centres[rng.permutation(len(centres))]
    length, width = rng.uniform(22, 50, len(centres)), rng.uniform(12, 22, len(centres))
    boxes = rectangles(centres, angle, length, width)
    own = fitting(boxes, room.buffer(-1.5), 7.0)
    for k in own:
        _add_hall(sketch, centres[k], angle, (length[k], width[k]))
    taken = shapely.union_all(shapely.buffer(boxes[own], 1.5))
    spots = rng.uniform(room.bounds[:2], room.bounds[2:], (26, 2))
    crates = rectangles(spots, angle, 6.1, 2.4)
    crates = crates[shapely.contains(room, crates) & ~shapely.intersects(taken, crates)]
    paint = np.array(["tiles", "blue", "green", "white", "roofing"])
    for name in paint:
        own_crates = crates[rng.random(len(crates)) < 0.3]
        sketch.add(own_crates, str(name), ROOF, height=2.6)
    return shapely.union_all(np.concatenate((boxes[own], crates)))


def _add_hall(sketch: Sketch, centre: Points, angle: float, size: tuple[float, float]) -> None:
    rng = sketch.rng
    material = str(rng.choice(_HALL_ROOFS, p=_HALL_SHARES))
    gain = asphalt_age(rng) if material == "roofing" else float(rng.uniform(0.7, 1.1))
    height = float(rng.uniform(6, 11))
    for side in (-1, 1):
        middle = (centre + side * _across(angle, size[1] / 4))[None]
        slope = rectangles(middle, angle, size[0], size[1] / 2)
        facing = angle + side * np.pi / 2
        sketch.add(slope, material, ROOF, gain=gain, height=height, facing=facing)
    lights = np.arange(-size[0] / 2 + 3, size[0] / 2 - 2, 6.0)[:, None]
    where = centre + lights * np.array([np.cos(angle), np.sin(angle)])
    sketch.add(rectangles(where, angle, 1.2, 4.0), "white", ROOF + 1, gain=0.8, height=height)
