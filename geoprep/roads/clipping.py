"""Road networks cut at the border of an area."""

from __future__ import annotations

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.ops import substring

from geoprep.crs import reproject_area
from geoprep.roads.graph import renumbered, subnetwork
from geoprep.roads.network import RoadGraph


def clipped(network: RoadGraph, area: shapely.Geometry) -> RoadGraph:
    """Return the roads within an area.

    A road that leaves the area ends in a new node on its border; one that returns is two edges.
    """
    shapely.prepare(area)
    touching = subnetwork(network, shapely.intersects(area, network.lines))
    return _cut(touching, area, ~shapely.contains_properly(area, touching.lines))


def _cut(network: RoadGraph, area: shapely.Geometry, crosses: NDArray[np.bool_]) -> RoadGraph:
    """Return a network with the edges where ``crosses``, bool (edge,), is set cut at the border."""
    nodes, ends = list(network.nodes), list(network.ends[~crosses])
    lines, source = list(network.lines[~crosses]), np.flatnonzero(~crosses).tolist()
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
            source.append(edge)
    used, pairs = renumbered(np.array(ends, np.int64).reshape(-1, 2))
    xy = np.array(nodes, np.float64).reshape(-1, 2)[used]
    return network.parts(xy, pairs, np.array(lines, object), source)


def _inside(line: shapely.LineString, area: shapely.Geometry) -> list[tuple[float, float]]:
    """Return begin and end of every stretch of a line within an area, in metres along it."""
    meets = shapely.intersection(line, shapely.boundary(area))
    at = shapely.line_locate_point(line, shapely.points(shapely.get_coordinates(meets)))
    stops = np.unique(np.concatenate([[0.0], at, [line.length]]))
    middles = shapely.line_interpolate_point(line, (stops[:-1] + stops[1:]) / 2)
    stretches: list[tuple[float, float]] = []
    for begin, end, inside in zip(
        stops[:-1].tolist(), stops[1:].tolist(), shapely.intersects(area, middles), strict=True
    ):
        if not inside or end == begin:
            continue
        if stretches and stretches[-1][1] == begin:  # the line only touches the border
            begin = stretches.pop()[0]
        stretches.append((begin, end))
    return stretches


def area_of_roads(truth: RoadGraph, crs: str | None) -> shapely.Polygon:
    """Return the bounding box of the roads of a scene, in its plane, in another CRS."""
    box = shapely.box(*shapely.total_bounds(truth.lines))
    if truth.crs is None or crs is None:
        return box
    return reproject_area(box, truth.crs, crs)
