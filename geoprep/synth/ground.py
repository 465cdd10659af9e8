"""The ground: shapes to draw in any chip of a planned city, computed on demand.

City blocks have a use, which decides on their ground, buildings, trees and paths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry.base import BaseGeometry

from geoprep.synth import streets
from geoprep.synth.city import BLOCK, ROAD, STREET, CityPlan
from geoprep.synth.layout import Points, generator, hermite
from geoprep.synth.shapes import Layer, Sketch, Things, rectangles, strip, towards
from geoprep.synth.streets import RURAL, URBAN, Road, asphalt_age

_URBAN: Final = {"slabs": 0.36, "mall": 0.29, "works": 0.2, "park": 0.07, "houses": 0.08}
_SUBURBAN: Final = {
    **{"houses": 0.48, "slabs": 0.12, "mall": 0.1, "works": 0.14},
    **{"park": 0.08, "field": 0.04, "forest": 0.04},
}
_RURAL: Final = {"field": 0.54, "forest": 0.19, "houses": 0.14, "park": 0.05, "works": 0.08}
_ROADLESS: Final = {"field": 0.5, "forest": 0.5}
_ROOFS: Final = ("asphalt", "concrete", "gravel", "white", "steel", "tiles", "brown", "blue")
_FLAT_SHARES: Final = (0.48, 0.17, 0.15, 0.08, 0.07, 0.0, 0.02, 0.03)
_PITCHED_SHARES: Final = (0.4, 0.1, 0.0, 0.05, 0.12, 0.14, 0.14, 0.05)
# Lengths, widths, heights of buildings and the least distance between them in metres; whether
# their roofs slope; what may be between them, lots where nothing is named.
_BUILDINGS: Final = {
    "houses": ((9, 14.5), (7.5, 10.5), (4.5, 8), 4, True, ()),
    "slabs": ((24, 72), (11, 15), (14, 34), 12, False, ("lawn",)),
    "mall": ((28, 54), (20, 38), (6, 13), 18, False, ("asphalt", "asphalt", "asphalt", "concrete")),
    "works": ((15, 42), (10, 20), (5, 10), 6, True, ("asphalt", "concrete", "gravel", "dirt")),
}


class Ground:
    """All shapes of a city; those of roads and blocks are computed on demand and cached."""

    def __init__(self, plan: CityPlan) -> None:
        self._plan = plan
        lines = np.array([road.line for road in plan.roads], dtype=object)
        width = np.array([road.kind.width for road in plan.roads])
        self._surfaces = shapely.STRtree(shapely.buffer(lines, width / 2 + 0.5, quad_segs=2))
        # Beside a road is room for its roadside: the wider, the more.
        self._clear = shapely.STRtree(shapely.buffer(lines, 1.1 * width, quad_segs=2))
        self._blocks = list(np.ndindex(*np.subtract(plan.lattice.nodes.shape[:2], 1)))
        self._outlines = [plan.lattice.block(i, j) for i, j in self._blocks]
        self._tree = shapely.STRtree([outline.buffer(0) for outline in self._outlines])
        self._junctions = shapely.STRtree(_junctions(plan.roads))
        self._corridors = shapely.union_all([strip(plan.river, 8.0), strip(plan.motorway, 9.0)])
        # Chips are drawn row by row: shapes that reach into the next row are still cached there.
        self._road = lru_cache(60 + 24 * plan.frame.cols)(self._draw_road)
        self._block = lru_cache(40 + 16 * plan.frame.cols)(self._draw_block)
        sketch = Sketch(np.random.default_rng())  # draws no numbers
        sketch.add(strip(plan.river, 5.0), "meadow", Layer.WATER - 1)
        sketch.add(plan.river, "water", Layer.WATER, gain=0.9)
        self._river = sketch.finish()

    def things(self, index: int) -> Things:
        """Return the shapes in a chip, in drawing order, and trees in and near it."""
        box = self._plan.frame.box(index)
        shapely.prepare(box)
        parts = [self._block(int(k)) for k in np.sort(self._tree.query(box))]
        parts += [self._river, *(self._road(int(k)) for k in np.sort(self._clear.query(box)))]
        rows, trees = (np.concatenate(column) for column in zip(*parts, strict=True))
        rows = rows[shapely.intersects(rows["shape"], box)]
        return Things(rows[np.argsort(rows["layer"], kind="stable")], trees)

    def _draw_road(self, k: int) -> Things:
        road = self._plan.roads[k]
        sketch = Sketch(generator(self._plan.seed, self._plan.city, ROAD, k))
        near = self._junctions.query(road.line, predicate="dwithin", distance=1.0)
        middle = np.array(road.line.interpolate(0.5, normalized=True).coords[0])
        rng = generator(self._plan.seed, self._plan.city, STREET, road.street)
        style = streets.draw_style(road.kind, float(self._plan.zones(middle)), rng)
        streets.draw_road(sketch, road, style, self._junctions.geometries[near])
        things = sketch.finish()
        hit, _ = self._surfaces.query(shapely.points(things.trees[:, :2]), predicate="within")
        return things._replace(trees=np.delete(things.trees, hit, axis=0))

    def _draw_block(self, k: int) -> Things:
        """Draw the contents of a block in its rooms, the parts that are free of roads."""
        plan, outline, block = self._plan, self._outlines[k], self._tree.geometries[k]
        sketch = Sketch(rng := generator(plan.seed, plan.city, BLOCK, *self._blocks[k]))
        zone = float(plan.zones(np.array(block.centroid.coords[0])))
        shares = _URBAN if zone > URBAN else _SUBURBAN if zone > RURAL else _RURAL
        if plan.empty is not None and block.intersects(plan.frame.box(plan.empty)):
            shares = _ROADLESS
        use = str(rng.choice(list(shares), p=list(shares.values())))
        ground, draw, density = _CONTENTS[use]
        sketch.add(block, ground, Layer.GROUND)
        ring = shapely.get_coordinates(outline)
        angle = float(np.arctan2(*(ring[3] - ring[0])[::-1]))
        near = self._clear.geometries[np.sort(self._clear.query(block))]
        for room in shapely.get_parts(block - shapely.union_all([*near, self._corridors])):
            if room.geom_type == "Polygon" and room.area > 200:
                taken = draw(sketch, room, angle, use)
                # Trees stand in clumps, outside of what is taken.
                count = rng.poisson(room.area * density)
                clumps = rng.uniform(room.bounds[:2], room.bounds[2:], (max(count // 5, 1), 2))
                where = clumps[rng.integers(0, len(clumps), count)] + rng.normal(0, 6, (count, 2))
                where = where[shapely.contains_xy(room - taken.buffer(1.8), *where.T)]
                sketch.plant(where, rng.gamma(6, 0.45, len(where)).clip(1, 6))
        return sketch.finish()


def _junctions(roads: list[Road]) -> NDArray[np.object_]:
    """Return the points where three arms of roads or more meet."""
    xy, road = shapely.get_coordinates([road.line for road in roads], return_index=True)
    # A vertex at the end of a road is one arm, others are two.
    arms = (np.diff(road, prepend=-1) == 0) + 1.0 * (np.diff(road, append=-1) == 0)
    points, number = np.unique(xy, axis=0, return_inverse=True)
    met = np.bincount(number.ravel(), arms) >= 3
    return np.asarray(shapely.points(points[met]), dtype=object)


def _grid(room: BaseGeometry, angle: float, step_u: float, step_v: float) -> Points:
    """Return the points (n, 2) of a turned grid that lie in a room."""
    x0, y0, x1, y1 = room.bounds
    reach = np.hypot(x1 - x0, y1 - y0) / 2
    u, v = (np.arange(-(reach // s), reach // s + 1) * s for s in (step_u, step_v))
    u, v = (part.ravel() for part in np.meshgrid(u, v))
    points = towards(angle, u) + towards(angle + np.pi / 2, v) + room.centroid.coords[0]
    return points[shapely.contains_xy(room, *points.T)]


def _add_buildings(sketch: Sketch, room: shapely.Polygon, angle: float, use: str) -> BaseGeometry:
    """Add buildings of one kind with what is between them; return their ground."""
    rng = sketch.rng
    lengths, widths, heights, apart, pitched, grounds = _BUILDINGS[use]
    where = rng.permutation(_grid(room, angle, 6.5, 6.5))
    if not grounds:  # houses stand along the streets
        where = where[shapely.distance(shapely.points(where), room.exterior) < 20]
    low, high = zip(lengths, widths, strict=True)
    size = rng.uniform(low, high, (len(where), 2))
    boxes = rectangles(where, angle, *size.T)
    own: list[int] = []
    for k in np.flatnonzero(shapely.contains(room.buffer(-1.5), boxes)).tolist():
        if not shapely.dwithin(boxes[own], boxes[k], apart).any():
            own.append(k)
    built = shapely.union_all(boxes[own])
    if grounds:
        ground = str(rng.choice(grounds))
        gain = asphalt_age(rng) if ground == "asphalt" else rng.uniform(0.65, 0.95)
        sketch.add(room.buffer(1.0), ground, Layer.GROUND + 1, gain=gain)
        _park(sketch, room, angle, built.buffer(4), use)
    else:
        _add_lots(sketch, room, where[own], angle)
    _add_roofs(sketch, where[own], angle, size[own], rng.uniform(*heights), pitched)
    return built


def _add_lots(sketch: Sketch, room: shapely.Polygon, where: Points, angle: float) -> None:
    """Add the plot of each house: lawn, beds or bare earth, with a drive to the street."""
    rng, n = sketch.rng, len(where)
    lots = rectangles(where + rng.normal(0, 2, where.shape), angle, 17.0, rng.uniform(16, 24, n))
    ground = rng.choice(["lawn", "meadow", "yard", "dirt"], n, p=[0.5, 0.2, 0.18, 0.12])
    lots = shapely.intersection(lots, room)
    sketch.add(lots, ground, Layer.GROUND + 1, gain=rng.uniform(0.75, 1.2, n))
    ways = shapely.shortest_line(shapely.points(where), room.exterior)
    drives = np.asarray(shapely.buffer(ways, 1.5, cap_style="square"))[rng.random(n) < 0.7]
    surface = rng.choice(["concrete", "asphalt", "gravel", "dirt"], len(drives))
    sketch.add(drives, surface, Layer.DETAIL, gain=rng.uniform(0.7, 1.2, len(drives)))


def _park(
    sketch: Sketch, room: shapely.Polygon, angle: float, taken: BaseGeometry, use: str
) -> None:
    """Add double rows of parked cars."""
    rng = sketch.rng
    rows = _grid(room, angle, 25.0, 16.0)
    boxes = rectangles(rows, angle, 23.5, 10.5)
    rows = rows[shapely.contains(room, boxes) & ~shapely.intersects(taken, boxes)]
    rows = rows[rng.random(len(rows)) < (1.0 if use == "mall" else 0.3)]
    bays = rectangles(rows, angle, 25.0, 11.0)
    sketch.add(bays, "asphalt", Layer.DETAIL, gain=asphalt_age(rng))
    places = np.arange(-10.4, 10.5, 2.6)
    for row in rows:
        for side in (-2.7, 2.7):
            full = places[rng.random(len(places)) < rng.uniform(0.1, 0.85)]
            where = row + towards(angle, full) + towards(angle + np.pi / 2, side)
            turn = np.full(len(where), angle + np.pi / 2)
            streets.add_cars(sketch, where, turn, Layer.DETAIL + 1)


def _add_roofs(
    sketch: Sketch, where: Points, angle: float, size: Points, height: float, pitched: bool
) -> None:
    """Add roofs of two slopes, or flat ones with a parapet."""
    rng, n, (length, width) = sketch.rng, len(where), size.T
    material = rng.choice(_ROOFS, n, p=_PITCHED_SHARES if pitched else _FLAT_SHARES)
    gain = rng.uniform(0.7, 1.25, n) * np.where(material == "asphalt", asphalt_age(rng), 1.0)
    if pitched:
        for facing in (angle - np.pi / 2, angle + np.pi / 2):
            slope = rectangles(where + towards(facing, width / 4), angle, length, width / 2)
            sketch.add(slope, material, Layer.ROOF, gain=gain, height=height, facing=facing)
        return
    sketch.add(rectangles(where, angle, length, width), "concrete", Layer.ROOF, height=height + 0.6)
    inner = rectangles(where, angle, length - 1, width - 1)
    sketch.add(inner, material, Layer.ROOF + 1, gain=gain, height=height)


def _add_paths(sketch: Sketch, room: shapely.Polygon, count: int) -> BaseGeometry:
    """Add footpaths that wind across a room, of asphalt, gravel or concrete like the roads."""
    rng = sketch.rng
    low = np.array(room.bounds[:2])
    size = np.array(room.bounds[2:]) - low
    paths: list[BaseGeometry] = []
    for _ in range(count):
        start, end = rng.uniform(0, 1, (2, 2))
        start[side := rng.integers(2)], end[side] = 0, 1
        bend = rng.normal(0, 0.5, (2, 2)) * size
        line = shapely.LineString(hermite(low + start * size, low + end * size, *bend))
        paths.append(strip(line, 1.1).intersection(room))
        material = str(rng.choice(["asphalt", "gravel", "concrete", "dirt"]))
        sketch.add(paths[-1], material, Layer.DETAIL, gain=rng.uniform(0.8, 1.3))
    return shapely.union_all(paths)


def _blob(room: shapely.Polygon, radius: float, rng: np.random.Generator) -> BaseGeometry:
    """Return a rounded, irregular outline somewhere in a room."""
    turn = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    waves = [rng.normal(0, 0.2 / k) * np.sin(k * turn + rng.uniform(0, 6.3)) for k in (1, 2, 3, 5)]
    reach = radius * (1 + np.sum(waves, axis=0)).clip(0.4, 1.8)
    low, high = np.array(room.bounds).reshape(2, 2)
    middle = low + (high - low) * rng.uniform(0.25, 0.75, 2)
    return shapely.Polygon(middle + towards(turn, reach)).intersection(room)


def _add_park(sketch: Sketch, room: shapely.Polygon, _angle: float, _use: str) -> BaseGeometry:
    """Add paths, and a square of asphalt or a pond."""
    rng = sketch.rng
    paths = _add_paths(sketch, room, int(rng.integers(3, 6)))
    square = _blob(room, rng.uniform(8, 16), rng)
    material = "water" if rng.random() < 0.5 else "asphalt"
    sketch.add(square, material, Layer.WATER, gain=asphalt_age(rng))
    return paths | square


def _add_field(sketch: Sketch, room: shapely.Polygon, angle: float, _use: str) -> BaseGeometry:
    """Add a field with its rows, or bare earth like that of unpaved roads."""
    rng = sketch.rng
    field = room.buffer(-rng.uniform(0.5, 2.5))
    material = str(rng.choice(["crop", "straw", "tilled", "dirt"], p=[0.28, 0.27, 0.2, 0.25]))
    gain, width = rng.uniform(0.75, 1.1), rng.uniform(0.8, 1.8)
    sketch.add(field, material, Layer.GROUND + 1, gain=gain)
    x0, y0, x1, y1 = room.bounds
    turn = angle + rng.choice([0, np.pi / 2])
    across = np.arange(-(x1 - x0), x1 - x0, rng.uniform(2.5, 6))
    middle = towards(turn + np.pi / 2, across) + room.centroid.coords[0]
    rows = rectangles(middle, turn, 2 * (x1 - x0 + y1 - y0), width)
    tone = gain * rng.choice([0.84, 1.12])
    sketch.add(shapely.intersection(rows, field), material, Layer.GROUND + 2, gain=tone)
    return field.buffer(-3)


def _add_wood(sketch: Sketch, room: shapely.Polygon, angle: float, _use: str) -> BaseGeometry:
    """Add a closed wood, trees a few metres apart, with a path and a glade."""
    rng = sketch.rng
    glade = _blob(room, rng.uniform(4, 14), rng)
    where = _grid(room.buffer(-1.0).difference(glade), angle, 4.3, 4.3)
    sketch.plant(where + rng.uniform(-1.6, 1.6, where.shape), rng.uniform(1.9, 3.6, len(where)))
    return _add_paths(sketch, room, 1)


# Per use: the ground, what is drawn there, and trees per square metre outside of it.
_Draw = Callable[[Sketch, shapely.Polygon, float, str], BaseGeometry]
_CONTENTS: Final[dict[str, tuple[str, _Draw, float]]] = {
    "houses": ("yard", _add_buildings, 1 / 90),
    "slabs": ("lawn", _add_buildings, 1 / 80),
    "mall": ("yard", _add_buildings, 1 / 700),
    "works": ("yard", _add_buildings, 1 / 600),
    "park": ("lawn", _add_park, 1 / 75),
    "field": ("meadow", _add_field, 1 / 180),
    "forest": ("meadow", _add_wood, 0),
}
