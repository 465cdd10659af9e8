"""The fastest or the shortest path between two points on a road network."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.ops import substring

from geoprep.crs import LONLAT, moved
from geoprep.errors import UsageError
from geoprep.roads.formats.files import write_geojson
from geoprep.roads.network import RoadGraph, check_network
from geoprep.roads.network import points as points_at
from geoprep.roads.paths.distances import CostGraph, Weight, cheapest_edges, cost_graph
from geoprep.roads.paths.points import EdgePoints, nearest_points
from geoprep.speed import MPS_PER_MPH
from geoprep.storage import replaced, require_folder, require_suffix

LonLat = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Route:
    """A path along a network."""

    # From the point on the road nearest to the start to the one nearest to the goal, in ``crs``
    line: shapely.LineString
    crs: str | None  # CRS of the network; None if it is not georeferenced
    # Length in metres and travel time in seconds along the line; the time is NaN if a speed is
    # unknown
    length_m: float
    travel_time_s: float
    # Metres from the start to the line, and from the line to the goal
    off_road_m: tuple[float, float]


def find_route(
    network: RoadGraph,
    start: LonLat,
    goal: LonLat,
    *,
    by: Weight = "time",
    within_m: float = 100.0,
) -> Route:
    """Return the fastest or the shortest route between two points."""
    check_network(network, "the network")
    if by == "time" and np.isnan(network.speed_mph).any():
        raise UsageError(
            f"{int(np.isnan(network.speed_mph).sum())} of {len(network.ends)} edges have no speed, "
            "so the fastest route cannot be found. Use `shortest`."
        )
    points = _points(network, start, goal)
    on_roads = nearest_points(network, points, within_m)
    for point, near, given in zip(points, on_roads.on_edge, (start, goal), strict=True):
        if not near:
            raise UsageError(_too_far(network, point, given, within_m))
    stretches = _best_path(cost_graph(network, by), on_roads)
    if stretches is None:
        raise UsageError(
            f"no road leads from {_text(start)} to {_text(goal)}: they are on different connected "
            "components of the network"
        )
    return _route(network, stretches, points)


def check_route(path: Path) -> None:
    """Raise UsageError if a route cannot be written to a path: wrong suffix, or no such folder."""
    require_suffix(path, ".geojson", ".json")
    require_folder(path)


def write_route(route: Route, path: Path) -> None:
    """Write a route as GeoJSON: one line with its length and travel time (null: unknown)."""
    import geopandas as gpd

    columns = {"length_m": [route.length_m], "travel_time_s": [route.travel_time_s]}
    frame = gpd.GeoDataFrame(columns, geometry=[route.line], crs=route.crs)
    with replaced(path) as partial:
        write_geojson(frame.round(3), partial)


def _points(network: RoadGraph, *given: LonLat) -> NDArray[np.object_]:
    """Return points in the CRS of the network."""
    xy = np.array(given, np.float64)
    if network.crs is not None:
        xy = moved(xy, LONLAT, network.crs)
    if not np.isfinite(xy).all():
        raise UsageError(
            f"{_text(given[0])} and {_text(given[1])} are not both longitude and latitude"
        )
    return points_at(xy)


def _too_far(network: RoadGraph, point: shapely.Point, given: LonLat, within_m: float) -> str:
    if not len(network.lines):
        return "the network has no roads"
    away = float(shapely.distance(network.lines, point).min())
    return (
        f"{_text(given)}: no road within {within_m:g} m, the nearest is {away:,.0f} m away; "
        "choose a point nearer to a road. The order is longitude, latitude."
    )


def _text(point: LonLat) -> str:
    return f"{point[0]:.9g},{point[1]:.9g}"


_Stretch = tuple[int, float, float]
"""Part of an edge: its row, and metres along it where it is entered and left."""


def _best_path(graph: CostGraph, points: EdgePoints) -> list[_Stretch] | None:
    """Return the edges of the best path between two points; None if they are not connected."""
    from scipy.sparse.csgraph import dijkstra

    (edge, goal), (along, goal_along) = points.edge.tolist(), points.along_m.tolist()
    costs, edge_of = cheapest_edges(graph)
    seeds = graph.ends[edge]
    from_seeds, before = dijkstra(costs, indices=seeds, return_predecessors=True)
    to_ends = graph.cost_to_ends(points)
    totals = to_ends[0][:, None] + from_seeds[:, graph.ends[goal]] + to_ends[1]
    out, into = divmod(int(np.argmin(totals)), 2)
    if edge == goal and abs(to_ends[0, 0] - to_ends[1, 0]) <= totals[out, into]:
        return [(edge, along, goal_along)]
    if not np.isfinite(totals[out, into]):
        return None
    nodes = [int(graph.ends[goal, into])]
    while before[out, nodes[-1]] >= 0:
        nodes.append(int(before[out, nodes[-1]]))
    nodes.reverse()
    length = graph.length_m
    stretches = [(edge, along, (0.0, float(length[edge]))[out])]
    for one, two in pairwise(nodes):
        row = slice(costs.indptr[one], costs.indptr[one + 1])
        between = int(edge_of[row][np.searchsorted(costs.indices[row], two)])
        end = float(length[between])
        forward = graph.ends[between, 0] == one
        stretches.append((between, 0.0, end) if forward else (between, end, 0.0))
    stretches.append((goal, (0.0, float(length[goal]))[into], goal_along))
    return stretches


def _route(network: RoadGraph, stretches: list[_Stretch], points: NDArray[np.object_]) -> Route:
    """Return the route along some stretches between two points."""
    edges = np.array([edge for edge, _, _ in stretches])
    scale = np.broadcast_to(network.stretch(edges), len(edges)).tolist()
    parts = [
        substring(network.lines[edge], begin * one, end * one)
        for (edge, begin, end), one in zip(stretches, scale, strict=True)
    ]
    xy = shapely.get_coordinates(parts)
    moves = np.append(True, (np.diff(xy, axis=0) != 0).any(axis=1))
    xy = xy[moves] if moves.sum() > 1 else xy[[0, -1]]
    metres = np.array([abs(end - begin) for _, begin, end in stretches])
    driven = metres > 0
    speed = network.speed_mph[edges] * MPS_PER_MPH
    seconds = float((metres[driven] / speed[driven]).sum())
    off_road = shapely.distance(points, shapely.points(xy[[0, -1]]))
    off_start, off_goal = off_road.tolist()
    line = shapely.LineString(xy)
    return Route(line, network.crs, float(metres.sum()), seconds, (off_start, off_goal))
