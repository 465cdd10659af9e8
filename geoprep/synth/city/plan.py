"""The plan of a synthetic city: all that does not depend on a single chip."""

from __future__ import annotations

from dataclasses import dataclass

import networkx
import numpy as np
import shapely

from geoprep.sources import City
from geoprep.synth.city.frame import Frame, generator, make_frame
from geoprep.synth.city.kinds import Road
from geoprep.synth.city.lattice import Lattice, make_lattice
from geoprep.synth.city.network import build_network
from geoprep.synth.city.terrain import Corridors, Zones, make_corridors, make_zones

PLAN, STREET, ROAD, BLOCK, SCENE, NOISE = range(6)
"""Independent streams of random numbers: draws from one never change another."""

_FEWEST_FOR_GAPS = 4
"""Cities of fewer chips have roads in every chip and no black borders."""
_BORDER_SHARE = 8
_WEIGHTS = {"motorway": 50.0, "primary": 10.0, "secondary": 4.0, "tertiary": 2.0, "minor": 1.0}


@dataclass(frozen=True, slots=True)
class CityPlan:
    """A city: everything that does not depend on a single chip."""

    city: City
    seed: int
    frame: Frame
    lattice: Lattice
    zones: Zones
    corridors: Corridors
    roads: list[Road]
    numbers: tuple[int, ...]  # of each chip in file names, ascending with gaps
    empty: int | None  # the chip that no road enters
    borders: dict[int, shapely.Polygon]  # of a chip, in metres: what is black


def make_plan(city: City, scenes: int, seed: int, size: int) -> CityPlan:
    """Plan a city: the same arguments give the same plan."""
    frame = make_frame(city, scenes, size)
    rng = generator(seed, city, PLAN)
    lattice = make_lattice(frame, rng)
    zones = make_zones(frame, rng)
    corridors = make_corridors(lattice, rng)
    empty = _choose_empty(frame, lattice, rng)
    roads = build_network(frame, lattice, zones, corridors, empty, rng)
    numbers = tuple(int(n) for n in np.cumsum(rng.choice([1, 2, 3], scenes, p=[0.7, 0.2, 0.1])) - 1)
    borders = _draw_borders(frame, empty, rng)
    return CityPlan(city, seed, frame, lattice, zones, corridors, roads, numbers, empty, borders)


def _choose_empty(frame: Frame, lattice: Lattice, rng: np.random.Generator) -> int | None:
    """Return the chip whose closure to roads costs the network least."""
    if frame.scenes < _FEWEST_FOR_GAPS:
        return None
    curves = [shapely.LineString(curve) for curve in lattice.curves.values()]
    weights = np.array([_WEIGHTS[lattice.rank(edge)] for edge in lattice.curves])
    boxes = frame.boxes()
    chip, curve = shapely.STRtree(curves).query(boxes, predicate="intersects")
    cost = np.bincount(chip, weights[curve], frame.scenes)
    ranking = np.argsort(cost + rng.random(frame.scenes))
    return next(int(k) for k in ranking if _stays_whole(frame, int(k)))


def _stays_whole(frame: Frame, without: int) -> bool:
    """Return whether the other chips are still connected, side by side."""
    chips = networkx.grid_2d_graph(-(-frame.scenes // frame.cols), frame.cols)
    others = (divmod(k, frame.cols) for k in range(frame.scenes) if k != without)
    return bool(networkx.is_connected(chips.subgraph(others)))


def _draw_borders(
    frame: Frame, empty: int | None, rng: np.random.Generator
) -> dict[int, shapely.Polygon]:
    """Cut slanted, irregular strips off about one in eight chips, all at the area's edge."""
    if frame.scenes < _FEWEST_FOR_GAPS:
        return {}
    count = max(1, round(frame.scenes / _BORDER_SHARE))
    outer = [k for k in range(frame.scenes) if k != empty and _outer_sides(frame, k)]
    chosen = rng.permutation(outer)[:count]
    return {int(k): _border(frame, int(k), rng) for k in sorted(chosen)}


def _outer_sides(frame: Frame, index: int) -> list[int]:
    """Return the sides (0 west, 1 east, 2 north, 3 south) on which a chip has no neighbour."""
    row, col = divmod(index, frame.cols)
    below = index + frame.cols >= frame.scenes
    right = col == frame.cols - 1 or index == frame.scenes - 1
    return [side for side, out in enumerate((col == 0, right, row == 0, below)) if out]


def _border(frame: Frame, index: int, rng: np.random.Generator) -> shapely.Polygon:
    """Return a strip along one outer side, deeper at one end, stepped like a mosaic's edge."""
    side = int(rng.choice(_outer_sides(frame, index)))
    ends = rng.permutation([rng.uniform(0.02, 0.12), rng.uniform(0.16, 0.4)])
    t = np.linspace(0, 1, 9)
    depth = (ends[0] + (ends[1] - ends[0]) * t + rng.normal(0, 0.008, 9)).clip(0.01, 0.45)
    strip = np.concatenate((np.stack((depth, t), 1), [[-0.1, 1.0], [-0.1, 0.0]]))
    depth, t = strip.T
    x, y = [(depth, t), (1 - depth, t), (t, depth), (t, 1 - depth)][side]
    x0, y0, x1, y1 = frame.bounds(index)
    return shapely.Polygon(np.stack((x0 + x * (x1 - x0), y0 + y * (y1 - y0)), axis=1))
