"""Makes a set of roads one connected network that reaches every chip."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import shapely
from networkx.utils import UnionFind

from geoprep.synth.city.kinds import DRIVEWAY, Road
from geoprep.synth.city.lattice import Points

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
                road = _service_road(_goal(boxes[k], rng), roads + added, within, len(added))
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


def _goal(box: shapely.Polygon, rng: np.random.Generator) -> Points:
    x0, y0, x1, y1 = box.bounds
    goal: Points = np.array([x0, y0]) + rng.uniform(0.4, 0.6, 2) * np.array([x1 - x0, y1 - y0])
    return goal


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
