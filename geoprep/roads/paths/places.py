"""Points on the edges of a network: the nodes themselves, points in between, the nearest ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadNetwork

_AT_END_M: Final = 1e-6
_UNCUT_SHARE: Final = 0.75


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Points on edges.

    Attributes
    ----------
    edge
        int64 (place,): the edge that a place is on; -1 where there is none.
    along_m
        float64 (place,): metres along that edge's line, 0 to its length. A place less than a
        micrometre from an end is at the end, to the last bit.
    """

    edge: NDArray[np.int64]
    along_m: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.edge)

    @property
    def found(self) -> NDArray[np.bool_]:
        """Bool (place,): whether there is an edge at all."""
        return self.edge >= 0

    def points(self, network: RoadNetwork) -> NDArray[np.object_]:
        """Return the places as shapely points, object (place,). All have to be on an edge."""
        points: NDArray[np.object_] = shapely.line_interpolate_point(
            network.lines[self.edge], self.along_m
        )
        return points

    def __add__(self, other: Places) -> Places:
        return Places(
            np.concatenate([self.edge, other.edge]), np.concatenate([self.along_m, other.along_m])
        )


def nodes_as_places(network: RoadNetwork) -> Places:
    """Return every node that an edge ends at, as a place on the first such edge.

    A node is where that edge's line ends, should its coordinates say otherwise.
    """
    edges = len(network.ends)
    node, at = np.unique(network.ends.T.ravel(), return_index=True)
    edge = at % max(edges, 1)
    along = np.where(at >= edges, network.length_m[edge], 0.0) if len(node) else np.empty(0)
    return Places(edge.astype(np.int64), along)


def spaced_places(network: RoadNetwork, interval_m: float) -> Places:
    """Return points inside the edges, as APLS puts its midpoints.

    Edges shorter than three quarters of the interval get none, those up to the interval one in the
    middle, others ``ceil(length / interval) - 1``, equally spaced.
    """
    length = network.length_m
    count = np.maximum(np.ceil(length / interval_m) - 1, 1).astype(np.int64)
    count[length < _UNCUT_SHARE * interval_m] = 0
    edge = np.repeat(np.arange(len(length)), count)
    first = np.repeat(np.cumsum(count) - count, count)
    nth = np.arange(len(edge)) - first + 1
    return Places(edge, length[edge] * nth / (count[edge] + 1))


def nearest_places(network: RoadNetwork, points: NDArray[np.object_], within_m: float) -> Places:
    """Return the nearest place on any edge to every point, none farther than ``within_m``.

    Of edges equally near, the first one counts.
    """
    edge = np.full(len(points), -1, dtype=np.int64)
    along = np.full(len(points), np.nan)
    if not len(points) or not len(network.lines):
        return Places(edge, along)
    tree = shapely.STRtree(network.lines)
    point, line = tree.query_nearest(points, max_distance=within_m, all_matches=True)
    order = np.lexsort((line, point))
    found, first = np.unique(point[order], return_index=True)
    edge[found] = line[order][first]
    lines = network.lines[edge[found]]
    along[found] = _at_ends(shapely.line_locate_point(lines, points[found]), shapely.length(lines))
    return Places(edge, along)


def _at_ends(along: NDArray[np.float64], length: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return places along lines, those within rounding of an end moved onto it."""
    along = np.where(along >= length - _AT_END_M, length, along)
    return np.where(along <= _AT_END_M, 0.0, along)
