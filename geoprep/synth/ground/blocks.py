"""Contents of a city block: its use, ground, buildings, trees and paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import shapely
from shapely.geometry.base import BaseGeometry

from geoprep.synth.city.kinds import RURAL, URBAN
from geoprep.synth.city.lattice import Points, hermite
from geoprep.synth.ground.buildings import add_houses, add_mall, add_slabs, add_works
from geoprep.synth.ground.pavement import asphalt_age
from geoprep.synth.ground.things import DETAIL, GROUND, SHORE, WATER, Sketch, segments, strip

Use = Literal["slabs", "mall", "works", "houses", "park", "field", "soil", "forest", "lake"]

_USES: dict[str, dict[Use, float]] = {
    "urban": {"slabs": 0.36, "mall": 0.29, "works": 0.20, "park": 0.07, "houses": 0.08},
    "suburban": {"houses": 0.48, "slabs": 0.12, "mall": 0.10, "works": 0.12, "park": 0.08,
                 "soil": 0.06, "forest": 0.04},
    "rural": {"field": 0.44, "forest": 0.18, "soil": 0.14, "houses": 0.12, "lake": 0.05,
              "works": 0.07},
    "wild": {"field": 0.35, "forest": 0.4, "lake": 0.25},
}  # fmt: skip


def draw_use(zone: float, wild: bool, rng: np.random.Generator) -> Use:
    """Draw the use of a block; ``wild`` blocks need no road."""
    name = "wild" if wild else "urban" if zone > URBAN else "suburban" if zone > RURAL else "rural"
    shares = _USES[name]
    return list(shares)[int(rng.choice(len(shares), p=list(shares.values())))]


def scatter_trees(
    sketch: Sketch, room: shapely.Polygon, taken: BaseGeometry, density: float
) -> None:
    """Add random trees, in clumps, outside the occupied ground."""
    rng = sketch.rng
    count = rng.poisson(room.area * density)
    clumps = rng.uniform(room.bounds[:2], room.bounds[2:], (max(count // 5, 1), 2))
    where = clumps[rng.integers(0, len(clumps), count)] + rng.normal(0, 6, (count, 2))
    free = room.difference(shapely.buffer(taken, 1.8))
    inside = shapely.contains_xy(free, where[:, 0], where[:, 1])
    where = where[inside]
    sketch.plant(where, rng.gamma(6, 0.45, len(where)).clip(1, 6), rng.random(len(where)) < 0.15)


def _add_paths(
    sketch: Sketch, room: shapely.Polygon, count: int, half: float
) -> list[BaseGeometry]:
    """Add footpaths that wind across a room, of asphalt, gravel or concrete like the roads."""
    rng = sketch.rng
    x0, y0, x1, y1 = room.bounds
    size = np.array([x1 - x0, y1 - y0])
    paths: list[BaseGeometry] = []
    for _ in range(count):
        ends = np.array([x0, y0]) + size * rng.uniform(0, 1, (2, 2))
        ends[:, rng.integers(2)] = np.array([[x0, x1], [y0, y1]])[rng.integers(2)]
        bend = rng.normal(0, 0.5, (2, 2)) * size
        line = shapely.LineString(hermite(ends[0], ends[1], bend[0], bend[1]))
        path = strip(line, half).intersection(room)
        material = str(rng.choice(["asphalt", "gravel", "concrete", "dirt"]))
        sketch.add(path, material, DETAIL, gain=rng.uniform(0.8, 1.3))
        paths.append(path)
    return paths


def _add_park(sketch: Sketch, room: shapely.Polygon, _angle: float) -> BaseGeometry:
    rng = sketch.rng
    paths = _add_paths(sketch, room, int(rng.integers(3, 6)), 1.2)
    pond = blob(_some_point(room, rng), rng.uniform(7, 16), rng).intersection(room)
    square = _some_point(room, rng)
    plaza = shapely.Point(square).buffer(rng.uniform(7, 15)).intersection(room)
    sketch.add(plaza, "asphalt", DETAIL, gain=asphalt_age(rng))
    if rng.random() < 0.5:
        sketch.add(strip(pond, 1.2).intersection(room), "reeds", SHORE)
        sketch.add(pond, "water", WATER)
        return shapely.union_all([*paths, pond, plaza])
    return shapely.union_all([*paths, plaza])


def _some_point(room: shapely.Polygon, rng: np.random.Generator) -> Points:
    x0, y0, x1, y1 = room.bounds
    return np.array([x0, y0]) + np.array([x1 - x0, y1 - y0]) * rng.uniform(0.25, 0.75, 2)


def blob(centre: Points, radius: float, rng: np.random.Generator) -> shapely.Polygon:
    """Return a rounded, irregular outline around a centre."""
    turn = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    bumps = sum(
        rng.normal(0, 0.16 / k) * np.sin(k * turn + rng.uniform(0, 2 * np.pi)) for k in (1, 2, 3, 5)
    )
    reach = radius * np.clip(1 + bumps, 0.4, 1.8)
    ring = np.stack((np.cos(turn) * reach * rng.uniform(0.7, 1.4), np.sin(turn) * reach), axis=1)
    return shapely.Polygon(ring + centre)


def _add_crop(sketch: Sketch, room: shapely.Polygon, angle: float) -> None:
    """Add a field with its rows, and the tractor's tramlines through it."""
    rng = sketch.rng
    field = room.buffer(-rng.uniform(0.5, 2.5))
    material = str(rng.choice(["crop", "straw", "tilled", "dirt"], p=[0.3, 0.3, 0.25, 0.15]))
    gain = float(rng.uniform(0.75, 1.1))
    sketch.add(field, material, GROUND + 1, gain=gain)
    turn = angle + rng.choice([0, np.pi / 2])
    rows = _furrows(field, turn, rng.uniform(2.5, 6))
    width = rng.uniform(0.4, 0.9)
    sketch.add(strip(rows, width, flat=True).intersection(field), material, GROUND + 2,
               gain=gain * rng.choice([0.86, 1.1]))  # fmt: skip
    if material in ("crop", "straw"):
        for shift in (0.0, 1.8):
            trams = _furrows(field, turn, 19.0, shift).intersection(field)
            sketch.add(strip(trams, 0.25, flat=True), "dirt", DETAIL, gain=0.85)
    scatter_trees(sketch, room, field.buffer(-3), 1 / 180)


def _furrows(field: BaseGeometry, turn: float, step: float, shift: float = 0.0) -> BaseGeometry:
    """Return parallel lines over a field."""
    x0, y0, x1, y1 = field.bounds
    reach = 0.5 * np.hypot(x1 - x0, y1 - y0)
    side = np.arange(-reach, reach, step)[:, None] + shift
    along, across = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    middle = np.array([x0 + x1, y0 + y1]) / 2 + side * across
    return segments(np.stack((middle - reach * along, middle + reach * along), axis=1))


def _add_bare_ground(sketch: Sketch, room: shapely.Polygon, _angle: float) -> None:
    """Add a building site: earth like that of unpaved roads, heaps, a concrete base."""
    rng = sketch.rng
    material = str(rng.choice(["dirt", "gravel"]))
    gain = float(rng.uniform(0.75, 1.2))
    sketch.add(room.buffer(-0.8), material, GROUND + 1, gain=gain)
    for _ in range(5):
        heap = blob(_some_point(room, rng), rng.uniform(3, 12), rng).intersection(room)
        sketch.add(heap, material, GROUND + 2, gain=gain * rng.uniform(0.8, 1.2))
    base = shapely.box(-1, -1, 1, 1)
    base = shapely.transform(base, lambda xy: xy * rng.uniform(4, 9, 2) + _some_point(room, rng))
    sketch.add(base.intersection(room), "concrete", GROUND + 3, gain=rng.uniform(0.7, 1.0))
    scatter_trees(sketch, room, base, 1 / 900)


def _add_wood(sketch: Sketch, room: shapely.Polygon, _angle: float) -> None:
    """Add a closed wood, trees a few metres apart."""
    rng = sketch.rng
    step = 4.3
    x0, y0, x1, y1 = room.bounds
    grid = np.stack(np.meshgrid(np.arange(x0, x1, step), np.arange(y0, y1, step)), -1)
    where = grid.reshape(-1, 2) + rng.uniform(-1.6, 1.6, (grid.size // 2, 2))
    glade = blob(_some_point(room, rng), rng.uniform(4, 14), rng)
    free = room.buffer(-1.0).difference(glade)
    where = where[shapely.contains_xy(free, where[:, 0], where[:, 1])]
    share = rng.choice([0.05, 0.4, 0.95])
    conifer = rng.random(len(where)) < share
    sketch.plant(where, rng.uniform(1.9, 3.6, len(where)), conifer)
    _add_paths(sketch, room, 1, 0.8)


def _add_lake(sketch: Sketch, room: shapely.Polygon, _angle: float) -> None:
    """Add a lake with reeds along its shore, and a jetty."""
    centre = shapely.get_coordinates(room.centroid)[0]
    lake = blob(centre, 0.42 * room.area**0.5, sketch.rng).intersection(room.buffer(-5))
    sketch.add(strip(lake, 3.0).intersection(room), "reeds", SHORE)
    sketch.add(lake, "water", WATER, gain=sketch.rng.uniform(0.8, 1.6))
    scatter_trees(sketch, room, lake.buffer(2), 1 / 120)


_Draw = Callable[[Sketch, shapely.Polygon, float], BaseGeometry | None]
# Per use: the ground, least area of a room in square metres, what is drawn there, and trees per
# square metre outside of it.
_CONTENTS: dict[Use, tuple[str, float, _Draw, float]] = {
    "houses": ("yard", 350, add_houses, 1 / 90),
    "slabs": ("lawn", 350, add_slabs, 1 / 80),
    "mall": ("yard", 350, add_mall, 1 / 700),
    "works": ("yard", 350, add_works, 1 / 600),
    "park": ("lawn", 350, _add_park, 1 / 75),
    "field": ("meadow", 150, _add_crop, 0),
    "soil": ("yard", 150, _add_bare_ground, 0),
    "forest": ("litter", 150, _add_wood, 0),
    "lake": ("meadow", 150, _add_lake, 0),
}


def draw_block(
    sketch: Sketch, block: shapely.Polygon, rooms: list[shapely.Polygon], use: Use, angle: float
) -> None:
    """Add the contents of a block."""
    ground, least, draw, density = _CONTENTS[use]
    sketch.add(block, ground, GROUND)
    for room in rooms:
        if room.area < least:
            continue
        taken = draw(sketch, room, angle)
        if use == "slabs":
            _add_paths(sketch, room, 2, 1.0)
        if taken is not None:
            scatter_trees(sketch, room, taken, density)
