"""The road network of a synthetic city: streets, motorway, bridges, as one connected graph.

Lines that connect share a vertex; lines that cross on a bridge do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import cast

import numpy as np
import shapely
from networkx.utils import UnionFind
from shapely.geometry.base import BaseGeometry
from shapely.ops import substring

from geoprep.synth.city.frame import Frame
from geoprep.synth.city.kinds import DRIVEWAY, MOTORWAY, RAMP, RURAL, URBAN, Kind, Road, draw_kind
from geoprep.synth.city.lattice import Edge, Lattice, Points, hermite
from geoprep.synth.city.spurs import draw_spurs
from geoprep.synth.city.terrain import CARRIAGEWAY_M, Corridors, Zones, motorway_axis

_TERMINAL_M = 42.0
"""Distance in metres from the motorway's axis to where a ramp leaves the crossing street."""
_ABUTMENT_M = 7.0
_CLEAR_M = 16.0
"""Distance in metres of carriageways from the chip without roads."""
_ALWAYS_KEPT = ("primary", "secondary")


def build_network(
    frame: Frame,
    lattice: Lattice,
    zones: Zones,
    corridors: Corridors,
    empty: int | None,
    rng: np.random.Generator,
) -> list[Road]:
    """Draw the roads of a city: connected, within the chips, none near chip ``empty``."""
    boxes = frame.boxes()
    clear = min(_CLEAR_M, 0.15 * frame.size * frame.px)
    closed = boxes[empty].buffer(clear) if empty is not None else shapely.Polygon()
    area = shapely.union_all(boxes).difference(closed)
    edges = _thin(_street_edges(lattice, area, closed, rng), lattice, zones, area, rng)
    roads = list(_streets(edges, lattice, zones, rng))
    roads += _motorways(lattice, edges, len(roads))
    roads += draw_spurs(lattice, zones, corridors, roads, edges, rng)
    under = {highway: _below(highway, corridors) for highway in {r.kind.highway for r in roads}}
    pieces = [piece for road in roads for piece in _bridges(road, under[road.kind.highway])]
    roads = largest_component(_clip(pieces, area))
    targets = [box for k, box in enumerate(boxes) if k != empty]
    return roads + reach_boxes(targets, roads, area, rng)


def _street_edges(
    lattice: Lattice, area: BaseGeometry, closed: BaseGeometry, rng: np.random.Generator
) -> list[Edge]:
    """Return the stretches of lines that may be streets, with or without a bridge."""
    edges = [e for e in lattice.curves if lattice.rank(e) != "motorway"]
    lines = np.array([shapely.LineString(lattice.curves[e]) for e in edges], dtype=object)
    shapely.prepare(area)
    inside = shapely.intersects(area, lines) & ~shapely.intersects(closed, lines)
    crossing = {j: rng.random() for j in range(len(lattice.v))}
    near = [e for e, there in zip(edges, inside, strict=True) if there]
    return [e for e in near if _may_cross(lattice, e, crossing[e.j], rng)]


def _may_cross(lattice: Lattice, edge: Edge, row_chance: float, rng: np.random.Generator) -> bool:
    """Decide whether a street crosses an obstacle: few minor streets get a bridge."""
    rank, chance = lattice.rank(edge), rng.random()
    if rank in _ALWAYS_KEPT:
        return True
    if edge.axis == 0:
        return edge.j != lattice.river or rank == "tertiary" or chance < 0.3
    if "motorway" in (lattice.columns[edge.i], lattice.columns[edge.i + 1]):
        # Both halves of a crossing share the row's chance: there are no half bridges.
        return rank == "tertiary" and row_chance < 0.6
    return edge.i != lattice.rail or rank == "tertiary" or chance < 0.5


def _thin(
    edges: list[Edge],
    lattice: Lattice,
    zones: Zones,
    area: BaseGeometry,
    rng: np.random.Generator,
) -> set[Edge]:
    """Drop minor streets, more of them in rural zones, and keep those that connect the network."""
    xy = lattice.nodes
    inside = shapely.contains_xy(area, xy[..., 0], xy[..., 1])
    joined: UnionFind[tuple[int, int]] = UnionFind()
    kept: set[Edge] = set()
    order = rng.random(len(edges)) - [10.0 * (lattice.rank(e) != "minor") for e in edges]
    chance = rng.random(len(edges))
    for k in np.argsort(order):
        edge = edges[k]
        a, b = edge.ends
        zone = float(zones((xy[a] + xy[b]) / 2))
        drop = 0.1 if zone > URBAN else 0.3 if zone > RURAL else 0.75
        bridge = inside[a] and inside[b] and joined[a] != joined[b]
        if bridge:
            joined.union(a, b)
        if lattice.rank(edge) != "minor" or bridge or chance[k] > drop:
            kept.add(edge)
    return kept


def _streets(
    edges: set[Edge], lattice: Lattice, zones: Zones, rng: np.random.Generator
) -> Iterator[Road]:
    """Chain the edges of every line into roads of equal attributes."""
    street = 0
    ordered = sorted(edges, key=lambda e: (e.line, e.j if e.axis == 0 else e.i))
    for _, line in groupby(ordered, key=lambda e: e.line):
        for kind, run in _runs(list(line), lattice, zones, rng):
            curves = [lattice.curves[e] for e in run]
            points = np.concatenate([c[:-1] for c in curves] + [curves[-1][-1:]])
            yield Road(shapely.LineString(points), kind, False, street)
            street += 1


def _runs(
    line: list[Edge], lattice: Lattice, zones: Zones, rng: np.random.Generator
) -> Iterator[tuple[Kind, list[Edge]]]:
    """Split a line where an edge is missing or the attributes change (never in mid-bridge)."""
    run: list[Edge] = []
    kind, band = None, -1
    for edge in line:
        a, b = edge.ends
        zone = float(zones((lattice.nodes[a] + lattice.nodes[b]) / 2))
        joined = bool(run) and run[-1].ends[1] == a
        spanning = joined and edge.axis == 1 and lattice.columns[a[0]] == "motorway"
        changed = int(zone * 4) != band or rng.random() < 0.15
        if kind is None or not joined or (changed and not spanning):
            fresh = draw_kind(lattice.rank(edge), zone, rng)
            if run and (not joined or fresh != kind) and kind is not None:
                yield kind, run
                run = []
            kind, band = fresh, int(zone * 4)
        run.append(edge)
    if run and kind is not None:
        yield kind, run


def _motorways(lattice: Lattice, edges: set[Edge], street: int) -> list[Road]:
    """Lay two carriageways along every motorway column, and ramps at primary crossings."""
    roads: list[Road] = []
    for i, rank in enumerate(lattice.columns):
        if rank != "motorway":
            continue
        axis = motorway_axis(lattice, i)
        normal = _normals(axis)
        sides = {side: axis + side * CARRIAGEWAY_M * normal for side in (-1, 1)}
        roads += [Road(shapely.LineString(xy), MOTORWAY, False, street) for xy in sides.values()]
        for j, row in enumerate(lattice.rows[1:-1], start=1):
            west, east = Edge(1, i - 1, j), Edge(1, i, j)
            if row == "primary" and {west, east} <= edges:
                roads += _interchange(lattice, axis, sides, (i, j), street)
        street += 1
    return roads


def _interchange(
    lattice: Lattice, axis: Points, sides: dict[int, Points], node: tuple[int, int], street: int
) -> list[Road]:
    """Return the four ramps of a diamond interchange; each shares its end vertices."""
    i, j = node
    centre = lattice.nodes[node]
    at = int(np.argmin(np.hypot(*(axis - centre).T)))
    forward = axis[at + 1] - axis[at - 1]
    forward /= np.hypot(*forward)
    normal = np.array([-forward[1], forward[0]])
    room = 0.8 * min(abs(lattice.v[j + 1] - lattice.v[j]), abs(lattice.v[j] - lattice.v[j - 1]))
    crossing = np.concatenate((lattice.curves[Edge(1, i - 1, j)], lattice.curves[Edge(1, i, j)]))
    ramps = []
    for side, way in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
        offset = (crossing - centre) @ normal
        terminal = crossing[int(np.argmin(np.abs(offset - side * _TERMINAL_M)))]
        along = (sides[side] - centre) @ forward
        merge = sides[side][int(np.argmin(np.abs(along - way * room)))]
        pull = 0.9 * room * way * forward
        curve = hermite(terminal, merge, pull + 12 * side * normal, pull)
        ramps.append(Road(shapely.LineString(curve), RAMP, False, street))
    return ramps


def _normals(xy: Points) -> Points:
    tangent = np.gradient(xy, axis=0)
    tangent /= np.hypot(*tangent.T)[:, None]
    return np.stack((-tangent[:, 1], tangent[:, 0]), axis=1)


def _below(highway: str, corridors: Corridors) -> BaseGeometry:
    """Return the area that a class of road crosses on bridges."""
    below = [corridors.river]
    if not highway.startswith("motorway"):
        below.append(corridors.motorway)
    if highway in _ALWAYS_KEPT:
        below.append(corridors.rail)
    crossed = shapely.union_all(below)
    shapely.prepare(crossed)
    return crossed


def _bridges(road: Road, below: BaseGeometry) -> Iterator[Road]:
    """Split a road where it passes over the river, the motorway or the railway."""
    spans = _spans(road.line, below) if shapely.intersects(below, road.line) else []
    if not spans:
        yield road
        return
    cuts = [0.0, *(d for span in spans for d in span), road.line.length]
    for k, (start, end) in enumerate(pairwise(cuts)):
        if end - start > 1e-6:
            part = cast(shapely.LineString, substring(road.line, start, end))
            yield Road(part, road.kind, k % 2 == 1, road.street)


def _spans(line: shapely.LineString, under: BaseGeometry) -> list[tuple[float, float]]:
    """Return the stretches of a line over something, with abutments, as distances along it."""
    spans: list[tuple[float, float]] = []
    pieces = shapely.get_parts(shapely.intersection(line, under))
    ends = sorted(
        sorted(line.project(shapely.Point(piece.coords[k])) for k in (0, -1))
        for piece in pieces
        if piece.geom_type == "LineString" and piece.length > 0
    )
    for first, last in ends:
        start, end = max(first - _ABUTMENT_M, 0.0), min(last + _ABUTMENT_M, line.length)
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _clip(roads: list[Road], area: BaseGeometry) -> list[Road]:
    """Cut roads at the edge of the area, which may leave several pieces of a road."""
    parts = shapely.intersection([road.line for road in roads], area)
    return [
        Road(piece, road.kind, road.bridge, road.street)
        for road, part in zip(roads, parts, strict=True)
        for piece in shapely.get_parts(part)
        if piece.geom_type == "LineString" and piece.length > 0.5
    ]


_ENOUGH_M = 12.0
_TRIES = 400
_FIRST_STREET = 1_000_000


def largest_component(roads: list[Road]) -> list[Road]:
    """Return the longest connected component; only shared vertices connect roads."""
    joined: UnionFind[object] = UnionFind()
    for k, road in enumerate(roads):
        joined.union(k, *road.line.coords)
    length: defaultdict[object, float] = defaultdict(float)
    for k, road in enumerate(roads):
        # A motorway without a ramp must not outweigh the streets beside it.
        weight = 0.1 if road.kind.highway == "motorway" else 1.0
        length[joined[k]] += weight * road.line.length
    best = max(length, key=lambda part: length[part], default=None)
    return [road for k, road in enumerate(roads) if joined[k] == best]


def reach_boxes(
    boxes: Sequence[shapely.Polygon],
    roads: list[Road],
    area: shapely.Geometry,
    rng: np.random.Generator,
) -> list[Road]:
    """Return a service road for each box without roads, within ``area`` if possible."""
    added = [] if roads else [_first_road(boxes[0])]
    waiting = _unreached(boxes, roads + added)
    for within in (area, shapely.union_all(boxes)):
        before = -1
        while len(waiting) != before:
            # A box behind another may be reached once that one is.
            before, still = len(waiting), []
            for k in waiting:
                x0, y0, x1, y1 = boxes[k].bounds
                goal = np.array([x0, y0]) + rng.uniform(0.4, 0.6, 2) * np.array([x1 - x0, y1 - y0])
                road = _service_road(goal, roads + added, within, len(added))
                if road is None:
                    still.append(k)
                else:
                    added.append(road)
            waiting = still
    return added


def _unreached(boxes: Sequence[shapely.Polygon], roads: list[Road]) -> list[int]:
    """Return the indices of boxes with hardly any road, or none."""
    lines = np.array([road.line for road in roads], dtype=object)
    box, line = shapely.STRtree(lines).query(boxes, predicate="intersects")
    inside = shapely.length(shapely.intersection(np.array(boxes)[box], lines[line]))
    length = np.bincount(box, inside, len(boxes))
    enough = min(_ENOUGH_M, 0.05 * boxes[0].length)
    return [int(k) for k in np.flatnonzero(length < enough)]


def _first_road(box: shapely.Polygon) -> Road:
    x0, y0, x1, y1 = box.bounds
    ends = np.array([[x0, (y0 + y1) / 2], [(x0 + x1) / 2, (y0 + y1) / 2]])
    return Road(shapely.LineString(ends), DRIVEWAY, False, _FIRST_STREET)


def _service_road(
    goal: Points, roads: list[Road], area: shapely.Geometry, count: int
) -> Road | None:
    """Return the shortest straight service road from a vertex of the network to a goal."""
    streets = [road for road in roads if not road.kind.highway.startswith("motorway")]
    ground = [road for road in streets if not road.bridge]
    for starts, barriers in ((ground, roads), (ground, streets), (roads, [])):
        vertices = shapely.get_coordinates([road.line for road in starts])
        lines = np.array([road.line for road in barriers], dtype=object)
        for start in vertices[np.argsort(np.hypot(*(vertices - goal).T))[:_TRIES]]:
            free = shapely.LineString((start + 0.02 * (goal - start), goal))
            if shapely.covers(area, free) and not shapely.intersects(lines, free).any():
                line = shapely.LineString((start, *np.linspace(start, goal, 4)[1:]))
                return Road(line, DRIVEWAY, barriers is not roads, _FIRST_STREET + 1 + count)
    return None
