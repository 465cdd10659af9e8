"""Small roads inside the blocks: cul-de-sacs, service roads, farm tracks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import shapely

from geoprep.synth.city.kinds import DRIVEWAY, FARM_TRACK, RURAL, URBAN, Kind, Road
from geoprep.synth.city.lattice import Edge, Lattice, Points, hermite
from geoprep.synth.city.terrain import Corridors, Zones

_APART_M = 9.0
"""Least distance between a spur and any road that it does not join."""
_END_M = 14.0


def draw_spurs(
    lattice: Lattice,
    zones: Zones,
    corridors: Corridors,
    roads: list[Road],
    edges: set[Edge],
    rng: np.random.Generator,
) -> list[Road]:
    """Return small roads that start at a vertex of a street and end inside or across a block."""
    tree = shapely.STRtree([road.line for road in roads])
    barriers = shapely.union_all([corridors.motorway, corridors.river, corridors.rail])
    shapely.prepare(barriers)
    spurs: list[Road] = []
    for i in range(len(lattice.u) - 1):
        for j in range(len(lattice.v) - 1):
            own: list[shapely.LineString] = []
            for kind, line in _candidates(lattice, zones, (i, j), edges, rng):
                if not _is_free(line, tree, own, barriers):
                    continue
                own.append(line)
                spurs.append(Road(line, kind, False, len(roads) + len(spurs)))
    return spurs


def _candidates(
    lattice: Lattice,
    zones: Zones,
    block: tuple[int, int],
    edges: set[Edge],
    rng: np.random.Generator,
) -> Iterator[tuple[Kind, shapely.LineString]]:
    """Propose what a block may hold, by how urban it is."""
    i, j = block
    sides = [Edge(0, i, j), Edge(0, i + 1, j), Edge(1, i, j), Edge(1, i, j + 1)]
    sides = [side for side in sides if side in edges and len(lattice.curves[side]) > 6]
    if not sides:
        return
    centre = lattice.block(i, j).mean(axis=0)
    zone, chance = float(zones(centre)), rng.random()
    if zone > URBAN:
        if chance < 0.45:
            yield _draw_spur(DRIVEWAY, lattice, sides, centre, rng)
    elif zone > RURAL:
        paved = rng.random() < 0.75
        lane = Kind("residential", 2, "paved") if paved else Kind("service", 1, None)
        if chance < 0.4:
            yield _draw_spur(lane, lattice, sides, centre, rng)
    elif chance < 0.5:
        yield _draw_spur(FARM_TRACK, lattice, sides, centre, rng)


def _draw_spur(
    kind: Kind, lattice: Lattice, sides: list[Edge], centre: Points, rng: np.random.Generator
) -> tuple[Kind, shapely.LineString]:
    """Draw one road inwards from a street: to the middle, or through to another street."""
    order = rng.permutation(len(sides))
    start, inwards = _door(lattice.curves[sides[order[0]]], centre, rng)
    if len(sides) > 1 and rng.random() < 0.4:
        end, back = _door(lattice.curves[sides[order[1]]], centre, rng)
        leave, arrive = inwards, -back
    else:
        end = centre + rng.uniform(-_END_M, _END_M, 2)
        leave, arrive = inwards, (end - start) / max(np.hypot(*(end - start)), 1.0)
    reach = 0.8 * float(np.hypot(*(end - start)))
    return kind, shapely.LineString(hermite(start, end, reach * leave, reach * arrive))


def _door(curve: Points, centre: Points, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return an inner vertex of a street and the unit vector from it into the block."""
    k = int(rng.integers(2, len(curve) - 2))
    along = curve[k + 1] - curve[k - 1]
    normal = np.array([-along[1], along[0]]) / np.hypot(*along)
    inwards = normal if normal @ (centre - curve[k]) > 0 else -normal
    return curve[k], inwards


def _is_free(
    line: shapely.LineString,
    tree: shapely.STRtree,
    own: list[shapely.LineString],
    barriers: shapely.Geometry,
) -> bool:
    """Whether a spur keeps away from everything but the streets it joins at its very ends."""
    if line.length < 22 or shapely.dwithin(barriers, line, _APART_M):
        return False
    if own and shapely.dwithin(own, line, _APART_M).any():
        return False
    ends = [shapely.Point(xy) for xy in shapely.get_coordinates(line)[[0, -1]]]
    for near in tree.geometries[tree.query(line.buffer(_APART_M))]:
        joined = [end for end in ends if shapely.distance(near, end) < 1e-6]
        body = line.difference(shapely.union_all([end.buffer(_APART_M * 1.6) for end in joined]))
        if shapely.dwithin(near, body, _APART_M):
            return False
    return True
