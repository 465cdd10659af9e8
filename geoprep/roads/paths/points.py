"""Points on the edges of a network: at its nodes, at even distances, nearest to other points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadGraph

_AT_END_M: Final = 1e-6
_UNCUT_SHARE: Final = 0.75


@dataclass(frozen=True, slots=True, eq=False)
class EdgePoints:
    """Points on edges, each given by its edge and its distance along that edge."""

    edge: NDArray[np.int64]  # (point,): row of the edge; -1 where the point is on no edge
    # float64 (point,): metres along the edge's line, from 0 to its length. A point less than a
    # micrometre from an end has exactly the value of the end. NaN where the point is on no edge
    along_m: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.edge)

    @property
    def on_edge(self) -> NDArray[np.bool_]:
        """Whether each point is on an edge, bool (point,)."""
        return self.edge >= 0

    def points(self, network: RoadGraph) -> NDArray[np.object_]:
        """Return shapely points, object (point,). All must be on an edge."""
        points: NDArray[np.object_] = shapely.line_interpolate_point(
            network.lines[self.edge], self.along_m * network.stretch(self.edge)
        )
        return points

    def __add__(self, other: EdgePoints) -> EdgePoints:
        return EdgePoints(
            np.concatenate([self.edge, other.edge]), np.concatenate([self.along_m, other.along_m])
        )


def node_points(network: RoadGraph) -> EdgePoints:
    """Return one point per node with an edge, placed on the first such edge.

    The end of that edge's line decides, should the coordinates of the node differ from it.
    """
    edges = len(network.ends)
    node, at = np.unique(network.ends.T.ravel(), return_index=True)
    edge = at % max(edges, 1)
    along = np.where(at >= edges, network.length_m[edge], 0.0) if len(node) else np.empty(0)
    return EdgePoints(edge.astype(np.int64), along)


def spaced_points(network: RoadGraph, interval_m: float) -> EdgePoints:
    """Return points at equal distances inside the edges, as APLS places its midpoints.

    An edge shorter than three quarters of the interval gets none, one up to the interval a single
    point in its middle, a longer one ``ceil(length / interval) - 1`` points.
    """
    length = network.length_m
    count = np.maximum(np.ceil(length / interval_m) - 1, 1).astype(np.int64)
    count[length < _UNCUT_SHARE * interval_m] = 0
    edge = np.repeat(np.arange(len(length)), count)
    first = np.repeat(np.cumsum(count) - count, count)
    nth = np.arange(len(edge)) - first + 1
    return EdgePoints(edge, length[edge] * nth / (count[edge] + 1))


def nearest_points(network: RoadGraph, points: NDArray[np.object_], within_m: float) -> EdgePoints:
    """Return the nearest point on any edge to each of some points."""
    edge = np.full(len(points), -1, dtype=np.int64)
    along = np.full(len(points), np.nan)
    if not len(points) or not len(network.lines):
        return EdgePoints(edge, along)
    tree = shapely.STRtree(network.lines)
    point, line = tree.query_nearest(points, max_distance=within_m, all_matches=True)
    order = np.lexsort((line, point))
    matched, first = np.unique(point[order], return_index=True)
    edge[matched] = line[order][first]
    lines = network.lines[edge[matched]]
    located = shapely.line_locate_point(lines, points[matched])
    stretch = network.stretch(edge[matched])
    along[matched] = _snapped_to_ends(located / stretch, shapely.length(lines) / stretch)
    return EdgePoints(edge, along)


def _snapped_to_ends(
    along: NDArray[np.float64], length: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return distances along lines; those within a micrometre of an end become that end."""
    along = np.where(along >= length - _AT_END_M, length, along)
    return np.where(along <= _AT_END_M, 0.0, along)
