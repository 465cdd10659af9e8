"""The plan of a synthetic city: what does not depend on a single chip, above all its roads.

Lines that connect share a vertex; lines that cross on a bridge do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import shapely
from networkx.utils import UnionFind
from shapely.geometry.base import BaseGeometry

from geoprep.sources.cities import City
from geoprep.synth import layout, streets
from geoprep.synth.layout import Edge, Frame, Lattice, Zones, generator, hermite, joined, spline
from geoprep.synth.streets import DRIVEWAY, MOTORWAY, RAMP, RURAL, URBAN, Kind, Road

PLAN, STREET, ROAD, BLOCK, SCENE, NOISE, NUMBERS = range(7)
"""Independent streams of random numbers: draws from one never change another."""

_FEWEST_FOR_GAPS = 4
"""Cities of fewer chips have roads in every chip and no black borders."""
_CARRIAGEWAY_M = MOTORWAY.width / 2 + 2.0
"""Distance in metres from the motorway's axis to the centre line of either carriageway."""
_TERMINAL_M = 42.0
"""Distance in metres from the motorway's axis to where a ramp leaves the crossing street."""
_RAMP_M = 64.0
_ABUTMENT_M = 7.0
_SPUR_APART_M = 9.0
_SPURS = 1_000_000
"""Number of the first spur; those of streets are twice their line of the lattice, plus the axis."""


@dataclass(frozen=True, slots=True)
class CityPlan:
    """A city: everything that does not depend on a single chip."""

    city: City
    seed: int
    frame: Frame
    zones: Zones
    lattice: Lattice
    river: BaseGeometry  # water and motorway as polygons in metres
    motorway: BaseGeometry
    roads: list[Road]
    numbers: list[int]  # of each chip in file names, ascending with gaps
    empty: int | None  # the chip that no road enters
    borders: dict[int, shapely.Polygon]  # of a chip, in metres: what is black


def make_plan(city: City, scenes: int, seed: int, size: int) -> CityPlan:
    """Plan a city: the same arguments give the same plan."""
    frame = layout.make_frame(city, scenes, size)
    rng = generator(seed, city, PLAN)
    zones, lattice = layout.make_zones(frame, rng), layout.make_lattice(frame, rng)
    banks = lattice.nodes[:, [lattice.river, lattice.river + 1]]
    river = shapely.LineString(joined(spline(banks.mean(axis=1)))).buffer(rng.uniform(9, 15))
    motorway = shapely.LineString(joined(spline(lattice.nodes[lattice.motorway])))
    # The less urban of two corners, without either of which the other chips still touch.
    corners = frame.cols - 1, frame.scenes - 1
    steps = generator(seed, city, NUMBERS).choice([1, 2, 3], scenes - 1, p=[0.7, 0.2, 0.1])
    plan = CityPlan(
        *(city, seed, frame, zones, lattice, river),
        motorway=motorway.buffer(_CARRIAGEWAY_M + MOTORWAY.width / 2),
        roads=[],
        numbers=np.cumsum([0, *steps]).tolist(),
        empty=min(corners, key=lambda k: zones(np.array(frame.box(k).centroid.coords[0])))
        if scenes >= _FEWEST_FOR_GAPS
        else None,
        borders={},
    )
    return replace(plan, roads=_build_network(plan, rng), borders=_draw_borders(plan, rng))


def _draw_borders(plan: CityPlan, rng: np.random.Generator) -> dict[int, shapely.Polygon]:
    """Cut slanted, irregular strips off one in eight chips, in the west and north of the area."""
    frame, borders = plan.frame, {}
    outer = [k for k in range(frame.scenes) if k != plan.empty and min(divmod(k, frame.cols)) == 0]
    count = max(1, round(frame.scenes / 8)) if frame.scenes >= _FEWEST_FOR_GAPS else 0
    for k in sorted(rng.permutation(outer)[:count].tolist()):
        along = np.linspace(0, 1, 9)
        first, last = rng.permutation([rng.uniform(0.02, 0.12), rng.uniform(0.16, 0.4)])
        depth = first + (last - first) * along + rng.normal(0, 0.008, 9)
        strip = np.concatenate(
            (np.stack((depth.clip(0.01, 0.45), along), axis=1), [[-0.1, 1.0], [-0.1, 0.0]])
        )
        strip = strip[:, ::-1] if k % frame.cols else strip
        x0, y0, x1, y1 = frame.box(k).bounds
        borders[k] = shapely.Polygon(strip * [x1 - x0, y1 - y0] + [x0, y0])
    return borders


def _build_network(plan: CityPlan, rng: np.random.Generator) -> list[Road]:
    """Draw the roads of a city: connected, within the chips, none near the empty one."""
    frame = plan.frame
    boxes = [frame.box(k) for k in range(frame.scenes) if k != plan.empty]
    closed: BaseGeometry = shapely.Polygon()
    if plan.empty is not None:
        closed = frame.box(plan.empty).buffer(min(16.0, 0.15 * frame.size * frame.px))
    area = shapely.union_all(boxes).difference(closed)
    edges = _choose_edges(plan, area, closed, rng)
    slow = [*_streets(plan, edges, rng), *_spurs(plan, edges, rng)]
    roads = [*_bridges(slow, plan.river | plan.motorway)]
    roads += _bridges(_motorway(plan.lattice, edges), plan.river)
    clipped = shapely.intersection([road.line for road in roads], area)
    parts, number = shapely.get_parts(clipped, return_index=True)
    roads = [replace(roads[k], line=part) for part, k in zip(parts, number, strict=True)
             if part.length > 0.5]  # fmt: skip
    return _reach(boxes, _largest_component(roads), area, rng)


def _choose_edges(
    plan: CityPlan, area: BaseGeometry, closed: BaseGeometry, rng: np.random.Generator
) -> set[Edge]:
    """Return the stretches that become streets: few minor ones where rural, but all connected."""
    lattice, xy = plan.lattice, plan.lattice.nodes
    minor = {edge: lattice.rank(edge) == "minor" for edge in lattice.curves}
    edges = [
        edge
        for edge in lattice.curves
        if lattice.rank(edge) != "motorway" and not (minor[edge] and lattice.crosses(edge))
    ]
    lines = np.array([shapely.LineString(lattice.curves[edge]) for edge in edges])
    shapely.prepare(area)
    possible = shapely.intersects(area, lines) & ~shapely.intersects(closed, lines)
    inside = shapely.contains_xy(area, xy[..., 0], xy[..., 1])
    connected: UnionFind[tuple[int, int]] = UnionFind()
    kept: set[Edge] = set()
    order = rng.random(len(edges)) + [10.0 * minor[edge] for edge in edges]
    for k in np.argsort(order)[possible[np.argsort(order)]]:
        edge, (a, b) = edges[k], edges[k].ends
        zone = float(plan.zones((xy[a] + xy[b]) / 2))
        drop = 0.1 if zone > URBAN else 0.3 if zone > RURAL else 0.75
        needed = inside[a] and inside[b] and connected[a] != connected[b]
        if needed:
            connected.union(a, b)
        if needed or not minor[edge] or rng.random() > drop:
            kept.add(edge)
    return kept


def _streets(plan: CityPlan, edges: set[Edge], rng: np.random.Generator) -> list[Road]:
    """Join edges that follow each other on a line, and are about equally urban, into roads."""
    zones = plan.zones(plan.lattice.nodes)

    def run_of(item: tuple[int, Edge]) -> tuple[int, int, int, int]:
        n, edge = item
        return edge.axis, edge.line, edge.k - n, int(4 * zones[edge.ends[0]])

    roads = []
    for (axis, number, _, band), run in groupby(enumerate(sorted(edges)), run_of):
        own = [edge for _, edge in run]
        line = shapely.LineString(joined([plan.lattice.curves[edge] for edge in own]))
        kind = streets.draw_kind(plan.lattice.rank(own[0]), (band + rng.random()) / 4, rng)
        roads.append(Road(line, kind, False, 2 * number + axis))
    return roads


def _spurs(plan: CityPlan, edges: set[Edge], rng: np.random.Generator) -> list[Road]:
    """Draw small roads from a street into a block, clear of all others."""
    lattice, spurs = plan.lattice, list[Road]()
    barriers = plan.river | plan.motorway.buffer(60)
    for i, j in np.ndindex(*np.subtract(lattice.nodes.shape[:2], 1)):
        sides = [edge for edge in lattice.sides(i, j) if edge in edges]
        if not sides or rng.random() > 0.5:
            continue
        block, gate = lattice.block(i, j), lattice.curves[sides[rng.integers(len(sides))]]
        start, centre = gate[len(gate) // 2], np.array(block.centroid.coords[0])
        end, bend = centre + rng.uniform(-14, 14, 2), rng.normal(0, 15, 2)
        kind = Kind("residential", 2, "paved") if rng.random() < 0.7 else Kind("service", 1, None)
        zone = float(plan.zones(centre))
        kind = DRIVEWAY if zone > URBAN else kind if zone > RURAL else streets.FARM_TRACK
        line = shapely.LineString(hermite(start, end, end - start + bend, end - start - bend))
        body = line.difference(shapely.Point(start).buffer(1.6 * _SPUR_APART_M))
        free = not shapely.dwithin(barriers, line, _SPUR_APART_M)
        if free and block.buffer(-_SPUR_APART_M).contains(body):
            spurs.append(Road(line, kind, False, _SPURS + len(spurs)))
    return spurs


def _motorway(lattice: Lattice, edges: set[Edge]) -> list[Road]:
    """Lay the two carriageways, and four ramps at every crossing with a primary street."""
    axis = joined(spline(lattice.nodes[lattice.motorway]))
    forward = np.gradient(axis, axis=0)
    forward /= np.hypot(*forward.T)[:, None]
    normal = np.stack((-forward[:, 1], forward[:, 0]), axis=1)
    roads = []
    for side in (-1, 1):
        carriageway = axis + side * _CARRIAGEWAY_M * normal
        roads.append(Road(shapely.LineString(carriageway), MOTORWAY, False, 2 * lattice.motorway))
        for row, rank in enumerate(lattice.ranks[1]):
            crossing = [Edge(1, row, lattice.motorway - 1), Edge(1, row, lattice.motorway)]
            if rank != "primary" or not edges.issuperset(crossing):
                continue
            here = int(np.argmin(np.hypot(*(axis - lattice.nodes[lattice.motorway, row]).T)))
            across = joined([lattice.curves[edge] for edge in crossing])
            away = (across - axis[here]) @ normal[here] - side * _TERMINAL_M
            terminal = across[np.argmin(np.abs(away))]
            for way in (-_RAMP_M, _RAMP_M):
                along = (carriageway - axis[here]) @ forward[here] - way
                pull = 0.9 * way * forward[here]
                merge = carriageway[np.argmin(np.abs(along))]
                curve = hermite(terminal, merge, pull + 12 * side * normal[here], pull)
                roads.append(Road(shapely.LineString(curve), RAMP, False, 2 * lattice.motorway))
    return roads


def _bridges(roads: list[Road], below: BaseGeometry) -> Iterator[Road]:
    """Split roads where they pass over something, its abutments included."""
    wide = below.buffer(_ABUTMENT_M)
    shapely.prepare(wide)
    lines = [road.line for road in roads]
    # The difference from a line splits at the points where both meet: the parts share vertices.
    parts, number = shapely.get_parts(shapely.difference(lines, wide.boundary), return_index=True)
    middle = shapely.line_interpolate_point(parts, 0.5, normalized=True)
    over = shapely.contains(wide, middle) & shapely.intersects(below, parts)
    for part, k, bridge in zip(parts, number, over, strict=True):
        yield replace(roads[k], line=part, bridge=bool(bridge))


def _largest_component(roads: list[Road]) -> list[Road]:
    """Return the longest connected component; only shared vertices connect roads."""
    connected: UnionFind[object] = UnionFind()
    for k, road in enumerate(roads):
        connected.union(k, *road.line.coords)
    length: defaultdict[object, float] = defaultdict(float)
    for k, road in enumerate(roads):
        # A motorway without a ramp must not outweigh the streets beside it.
        length[connected[k]] += road.line.length * (0.1 if road.kind == MOTORWAY else 1.0)
    longest = max(length, key=lambda part: length[part], default=None)
    return [road for k, road in enumerate(roads) if connected[k] == longest]


def _reach(
    boxes: list[shapely.Polygon], roads: list[Road], area: BaseGeometry, rng: np.random.Generator
) -> list[Road]:
    """Add a straight service road to each chip with hardly any road, the nearest chip first."""
    network = shapely.union_all([road.line for road in roads])
    enough = min(12.0, 0.05 * boxes[0].length)
    waiting = [box for box in boxes if box.intersection(network).length < enough]
    if not roads:
        x, y = boxes[0].centroid.coords[0]
        network = shapely.LineString([(boxes[0].bounds[0], y), (x, y)])
        roads, waiting = [Road(network, DRIVEWAY, False, 0)], boxes[1:]
    while waiting:
        box = min(waiting, key=network.distance)
        waiting.remove(box)
        x0, y0, x1, y1 = box.bounds
        goal = np.array([x0, y0]) + rng.uniform(0.4, 0.6, 2) * np.array([x1 - x0, y1 - y0])
        slow = [r.line for r in roads if r.kind not in (MOTORWAY, RAMP) and not r.bridge]
        starts = shapely.get_coordinates(slow or network)
        starts = starts[np.argsort(np.hypot(*(starts - goal).T))[:400]]
        ends = starts + 0.02 * (goal - starts), np.broadcast_to(goal, starts.shape)
        ways = shapely.linestrings(np.stack(ends, axis=1))
        within = shapely.covers(area, ways)
        free = within & ~shapely.intersects(network, ways)
        start = starts[np.argmax(free if free.any() else within)]
        line = shapely.LineString(np.linspace(start, goal, 4))
        roads.append(Road(line, DRIVEWAY, not free.any(), 2 * _SPURS + len(roads)))
        network = network | line
    return roads
