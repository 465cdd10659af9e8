"""The part of a network within an area: roads end at its border."""

from __future__ import annotations

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.ops import substring

from geoprep.crs import reproject
from geoprep.grid import Grid
from geoprep.roads.network import RoadNetwork
from geoprep.roads.tracing.pruning import chosen

_SIDE_POINTS = 11


def clipped(network: RoadNetwork, area: shapely.Polygon) -> RoadNetwork:
    """Return the roads within an area in the network's CRS.

    A road that leaves it ends in a node on the border; one that comes back is two edges.
    """
    shapely.prepare(area)
    touching = chosen(network, shapely.intersects(area, network.lines))
    return _cut(touching, area, ~shapely.contains_properly(area, touching.lines))


def _cut(network: RoadNetwork, area: shapely.Polygon, crosses: NDArray[np.bool_]) -> RoadNetwork:
    """Return a network whose edges marked as crossing are cut at the border."""
    nodes, ends = list(network.nodes), list(network.ends[~crosses])
    lines, speed = list(network.lines[~crosses]), list(network.speed_mph[~crosses])
    for edge in np.flatnonzero(crosses).tolist():
        line = network.lines[edge]
        for begin, end in _inside(line, area):
            part = substring(line, begin, end)
            pair = network.ends[edge].copy()
            for side, at, limit in ((0, begin, 0.0), (1, end, line.length)):
                if at != limit:
                    pair[side] = len(nodes)
                    nodes.append(np.array(part.coords[-side][:2]))
            ends.append(pair)
            lines.append(part)
            speed.append(network.speed_mph[edge])
    used, pairs = np.unique(np.array(ends, np.int64).reshape(-1, 2), return_inverse=True)
    return RoadNetwork(
        nodes=np.array(nodes, np.float64).reshape(-1, 2)[used],
        ends=pairs.reshape(-1, 2).astype(np.int64),
        lines=np.array(lines, object),
        speed_mph=np.array(speed, np.float64),
        crs=network.crs,
    )


def _inside(line: shapely.LineString, area: shapely.Polygon) -> list[tuple[float, float]]:
    """Return the stretches of a line within an area: where they begin and end along it."""
    meets = shapely.intersection(line, area.boundary)
    at = shapely.line_locate_point(line, shapely.points(shapely.get_coordinates(meets)))
    stops = np.unique(np.concatenate([[0.0], at, [line.length]]))
    middles = shapely.line_interpolate_point(line, (stops[:-1] + stops[1:]) / 2)
    stretches: list[tuple[float, float]] = []
    for begin, end, inside in zip(
        stops[:-1].tolist(), stops[1:].tolist(), shapely.intersects(area, middles), strict=True
    ):
        if not inside or end == begin:
            continue
        if stretches and stretches[-1][1] == begin:  # it only touches the border
            begin = stretches.pop()[0]
        stretches.append((begin, end))
    return stretches


def area_of_grid(grid: Grid, crs: str) -> shapely.Polygon:
    """Return the ground of an image as a polygon in another CRS."""
    x, y = grid.width, grid.height
    corners = [grid.transform * at for at in ((0, 0), (x, 0), (x, y), (0, y))]
    return _moved(shapely.Polygon(corners), grid.crs, crs)


def area_of_roads(network: RoadNetwork, axes: str, crs: str | None) -> shapely.Polygon:
    """Return the box about some roads as a polygon in a CRS.

    Its sides run along the axes of another CRS: chips of SpaceNet are boxes of degrees. Without a
    place on the ground it is a box in the network's plane.
    """
    if network.crs is None or crs is None:
        return shapely.box(*shapely.total_bounds(network.lines))
    bounds = shapely.total_bounds(reproject(network.lines, network.crs, axes))
    return _moved(shapely.box(*bounds), axes, crs)


def _moved(area: shapely.Polygon, source: str, target: str) -> shapely.Polygon:
    fine = shapely.segmentize(area, area.length / (4 * _SIDE_POINTS))
    moved: shapely.Polygon = reproject(np.array([fine], object), source, target)[0]
    return moved
