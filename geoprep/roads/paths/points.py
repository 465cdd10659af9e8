"""Points on the edges of a network: at nodes, evenly spaced, nearest to others, around a start."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.graph import ranges
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

    def __getitem__(self, chosen: slice | NDArray[Any]) -> EdgePoints:
        return EdgePoints(self.edge[chosen], self.along_m[chosen])

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
    return even_points(network, count)


def even_points(network: RoadGraph, count: NDArray[np.int64]) -> EdgePoints:
    """Return a number of points inside every edge, at equal distances."""
    edge = np.repeat(np.arange(len(count)), count)
    nth = ranges(np.ones_like(count), count)
    return EdgePoints(edge, network.length_m[edge] * nth / (count[edge] + 1))


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


_Links = list[list[tuple[int, int, float, float]]]
"""Per node its edges: edge, node at the other end, length, 1 along the line or -1 against it."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Propagation:
    """A network prepared for walks from many starting points."""

    network: RoadGraph  # the network, and the edges of every node
    links: _Links
    radius_m: float  # length of the walks, and distance between their points, in metres by road
    interval_m: float

    @classmethod
    def of(cls, network: RoadGraph, radius_m: float, interval_m: float) -> Propagation:
        """Prepare a network."""
        links: _Links = [[] for _ in network.nodes]
        ends, lengths = network.ends.tolist(), network.length_m.tolist()
        for edge, ((one, two), length) in enumerate(zip(ends, lengths, strict=True)):
            links[one].append((edge, two, length, 1.0))
            links[two].append((edge, one, length, -1.0))
        return cls(network, links, radius_m, interval_m)

    def points_from(self, edge: int, along_m: float) -> EdgePoints:
        """Return the starting point and every point a multiple of the interval from it by road.

        A point that several paths reach appears once, at its shortest distance.
        """
        line, begin, sign, from_m, length = self._stretches(edge, along_m)
        reach = np.minimum(from_m + length, self.radius_m)
        first = np.floor(from_m / self.interval_m).astype(np.int64) + 1
        count = np.maximum(np.floor(reach / self.interval_m).astype(np.int64) + 1 - first, 0)
        piece = np.repeat(np.arange(len(count)), count)
        forth = ranges(first, count) * self.interval_m - from_m[piece]
        along = begin[piece] + sign[piece] * forth
        return EdgePoints(np.append(edge, line[piece]), np.append(along_m, along))

    def distances(self, edge: int, along_m: float, points: EdgePoints) -> _Floats:
        """Return the distances by road from a starting point to other points, float64 (point,).

        Infinite if neither end of the edge of a point is within the radius.
        """
        walked = self._distances(self._stumps(edge, along_m))
        ends, length = self.network.ends[points.edge], self.network.length_m[points.edge]
        to_ends = np.array([[walked.get(node, np.inf) for node in pair] for pair in ends.tolist()])
        to_ends = to_ends.reshape(-1, 2)
        away = np.minimum(to_ends[:, 0] + points.along_m, to_ends[:, 1] + length - points.along_m)
        same = points.edge == edge
        away[same] = np.minimum(away[same], np.abs(points.along_m[same] - along_m))
        return away

    def _stumps(self, edge: int, along_m: float) -> tuple[tuple[int, float, float], ...]:
        """Return the ends of an edge: node, metres to it from a point, and direction."""
        ends, length = self.network.ends[edge].tolist(), float(self.network.length_m[edge])
        return (ends[0], along_m, -1.0), (ends[1], length - along_m, 1.0)

    def _stretches(
        self, start: int, along_m: float
    ) -> tuple[NDArray[np.int64], _Floats, _Floats, _Floats, _Floats]:
        """Return the stretches of edges walked, each up to where a shorter path meets it."""
        length = float(self.network.length_m[start])
        stumps = self._stumps(start, along_m)
        walked = self._distances(stumps)
        rows = []
        for node, stump, sign in stumps:
            there = walked.get(node, np.inf)
            rows.append((start, along_m, sign, 0.0, min(stump, (stump + there) / 2)))
            if there < stump:  # the path round the block is shorter
                from_end = 0.0 if sign < 0 else length
                rows.append((start, from_end, -sign, there, (stump - there) / 2))
        for node, here in walked.items():
            for edge, other, size, sign in self.links[node]:
                if edge != start:
                    met = min(size, (size + walked.get(other, np.inf) - here) / 2)
                    rows.append((edge, 0.0 if sign > 0 else size, sign, here, met))
        table = np.array(rows)
        return table[:, 0].astype(np.int64), table[:, 1], table[:, 2], table[:, 3], table[:, 4]

    def _distances(self, stumps: tuple[tuple[int, float, float], ...]) -> dict[int, float]:
        """Return the nodes within the radius and their distances in metres (Dijkstra)."""
        walked: dict[int, float] = {}
        queue = [(length, node) for node, length, _ in stumps]
        heapq.heapify(queue)
        while queue:
            here, node = heapq.heappop(queue)
            if here > self.radius_m or node in walked:
                continue
            walked[node] = here
            for _, other, length, _ in self.links[node]:
                if other not in walked:
                    heapq.heappush(queue, (here + length, other))
        return walked
