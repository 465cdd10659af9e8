"""The way from one place to another along a network: the fastest, or the shortest."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.ops import substring

from geoprep.crs import LONLAT, reproject, transformer
from geoprep.errors import UsageError
from geoprep.roads.network import RoadNetwork
from geoprep.roads.paths import Places, Track, check_network, nearest_places, track_of
from geoprep.roads.paths.distances import Weight, graph_of
from geoprep.speed import MPS_PER_MPH
from geoprep.storage import replaced, require_folder

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Route:
    """A way along a network.

    Attributes
    ----------
    line
        From the place on the road nearest to the start, to the one nearest to the goal, in ``crs``.
    length_m, travel_time_s
        Along the line; the time is NaN where a speed is not known.
    off_road_m
        From the start to the line, and from the line to the goal.
    """

    line: shapely.LineString
    crs: str | None
    length_m: float
    travel_time_s: float
    off_road_m: tuple[float, float]


def find_route(
    network: RoadNetwork,
    start: Point,
    goal: Point,
    *,
    by: Weight = "time",
    within_m: float = 100.0,
) -> Route:
    """Return the fastest or the shortest way between two points.

    Parameters
    ----------
    network
        Roads, all of them both ways.
    start, goal
        Longitude and latitude; x and y in metres where the network has no place on the ground.
    by
        ``time``: the fastest way, ``length``: the shortest.
    within_m
        How far a point may lie from the nearest road.

    Raises
    ------
    UsageError
        A point is farther from any road, no way leads from one to the other, or the fastest is
        asked for where speeds are not known.
    """
    check_network(network, "the network")
    if by == "time" and np.isnan(network.speed_mph).any():
        raise UsageError(
            f"{int(np.isnan(network.speed_mph).sum())} of {len(network.ends)} edges have no speed, "
            "so the fastest way is not known: ask for the shortest (--shortest)"
        )
    points = _points(network, start, goal)
    places = nearest_places(network, points, within_m)
    for point, found, name in zip(points, places.found, (start, goal), strict=True):
        if not found:
            raise UsageError(_too_far(network, point, name, within_m))
    pieces = _pieces(track_of(network, by), places)
    if pieces is None:
        raise UsageError(
            f"no road leads from {_spelled(start)} to {_spelled(goal)}: the network is in parts"
        )
    return _route(network, pieces, points)


def check_route(path: Path) -> None:
    """Raise UsageError for a name or a place that no route is written to."""
    if path.suffix.lower() not in (".geojson", ".json"):
        raise UsageError(f"{path}: a route is GeoJSON: call it NAME.geojson")
    require_folder(path)


def write_route(route: Route, path: Path) -> None:
    """Write a route as GeoJSON: one line with ``length_m`` and ``travel_time_s`` (null: unknown).

    Coordinates are longitude and latitude; of a network without a place on the ground, metres.

    Raises
    ------
    UsageError
        Another suffix than ``.geojson`` or ``.json``, or a folder that does not exist.
    """
    check_route(path)
    line = np.array([route.line], object)
    if route.crs is not None:
        line = reproject(line, route.crs, LONLAT)
    feature = {
        "type": "Feature",
        "geometry": {
            "type": "LineString",
            "coordinates": np.round(shapely.get_coordinates(line), 8).tolist(),
        },
        "properties": {
            "length_m": round(route.length_m, 3),
            "travel_time_s": _finite(route.travel_time_s),
        },
    }
    document = {"type": "FeatureCollection", "features": [feature]}
    if route.crs is None:
        document["crs"] = None  # type: ignore[assignment]  # as GeoJSON 2008 had it: no CRS
    with replaced(path) as partial:
        partial.write_text(json.dumps(document) + "\n", encoding="utf-8")


def _finite(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


def _points(network: RoadNetwork, *places: Point) -> NDArray[np.object_]:
    xy = np.array(places, np.float64)
    if network.crs is not None:
        xy = np.column_stack(transformer(LONLAT, network.crs).transform(*xy.T))
    if not np.isfinite(xy).all():
        raise UsageError(f"{_spelled(places[0])} and {_spelled(places[1])}: no longitude, latitude")
    points = np.empty(len(xy), object)
    points[:] = shapely.points(xy)
    return points


def _too_far(network: RoadNetwork, point: shapely.Point, name: Point, within_m: float) -> str:
    if not len(network.lines):
        return "the network has no roads"
    away = float(shapely.distance(network.lines, point).min())
    return (
        f"{_spelled(name)}: no road within {within_m:g} m, the nearest is {away:,.0f} m away; "
        "give a point nearer to the roads (LON,LAT in this order)"
    )


def _spelled(point: Point) -> str:
    return f"{point[0]:.9g},{point[1]:.9g}"


_Piece = tuple[int, float, float]  # an edge, metres along it at which it is entered, and left


def _pieces(track: Track, places: Places) -> list[_Piece] | None:
    """Return the edges of the best way from the first place to the second; None: there is none."""
    from scipy.sparse.csgraph import dijkstra

    (edge, goal), (along, goal_along) = places.edge.tolist(), places.along_m.tolist()
    graph, number = graph_of(track)
    seeds = track.ends[edge]
    far, before = dijkstra(graph, indices=seeds, return_predecessors=True)
    to_ends = track.to_ends(places)
    ways = to_ends[0][:, None] + far[:, track.ends[goal]] + to_ends[1]
    out, into = divmod(int(np.argmin(ways)), 2)
    if edge == goal and abs(to_ends[0, 0] - to_ends[1, 0]) <= ways[out, into]:
        return [(edge, along, goal_along)]
    if not np.isfinite(ways[out, into]):
        return None
    nodes = [int(track.ends[goal, into])]
    while before[out, nodes[-1]] >= 0:
        nodes.append(int(before[out, nodes[-1]]))
    nodes.reverse()
    length = track.length_m
    pieces = [(edge, along, (0.0, float(length[edge]))[out])]
    for one, two in pairwise(nodes):
        row = slice(graph.indptr[one], graph.indptr[one + 1])
        between = int(number[row][np.searchsorted(graph.indices[row], two)])
        end = float(length[between])
        pieces.append((between, 0.0, end) if track.ends[between, 0] == one else (between, end, 0.0))
    pieces.append((goal, (0.0, float(length[goal]))[into], goal_along))
    return pieces


def _route(network: RoadNetwork, pieces: list[_Piece], points: NDArray[np.object_]) -> Route:
    parts = [substring(network.lines[edge], begin, end) for edge, begin, end in pieces]
    xy = shapely.get_coordinates(parts)
    moves = np.append(True, (np.diff(xy, axis=0) != 0).any(axis=1))
    xy = xy[moves] if moves.sum() > 1 else xy[[0, -1]]
    metres = np.array([abs(end - begin) for _, begin, end in pieces])
    driven = metres > 0
    speed = network.speed_mph[[edge for edge, _, _ in pieces]] * MPS_PER_MPH
    seconds = float((metres[driven] / speed[driven]).sum())
    off_road = shapely.distance(points, shapely.points(xy[[0, -1]]))
    off_start, off_goal = off_road.tolist()
    line = shapely.LineString(xy)
    return Route(line, network.crs, float(metres.sum()), seconds, (off_start, off_goal))
