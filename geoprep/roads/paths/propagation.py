"""Points at even distances along all roads from a starting point, up to a radius."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geoprep.roads.network import RoadGraph
from geoprep.roads.paths.points import EdgePoints

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
        step = first[piece] + np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count)
        forth = step * self.interval_m - from_m[piece]
        along = begin[piece] + sign[piece] * forth
        return EdgePoints(np.append(edge, line[piece]), np.append(along_m, along))

    def distances(self, edge: int, along_m: float, points: EdgePoints) -> _Floats:
        """Return the distances by road from a starting point to other points, float64 (point,).

        Infinite if neither end of the edge of a point is within the radius.
        """
        walked = self._distances({}, self._stumps(edge, along_m))
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
        walked = self._distances({}, stumps)
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

    def _distances(
        self, walked: dict[int, float], stumps: tuple[tuple[int, float, float], ...]
    ) -> dict[int, float]:
        """Return the nodes within the radius and their distances in metres (Dijkstra)."""
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
