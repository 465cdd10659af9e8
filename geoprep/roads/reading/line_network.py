"""Road networks from lines that share points, as APLS reads labels and proposals.

Every point of a line is a node, and points with exactly equal coordinates are one node. Lines that
cross without a common point, as at a bridge, are not joined. Afterwards nodes that join only two
segments are removed, and so are small connected components.

A segment that two lines share is one edge. CosmiQ's reference program removes such a segment
altogether by mistake (it removes one edge for every duplicate that it finds, and finds each twice).
This may cut the ground truth in two: SpaceNet's Vegas chip 0 scores 0.73 there instead of 0.82.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.graph import edge_components, subnetwork, with_chains_joined
from geoprep.roads.network import RoadGraph
from geoprep.roads.network import segments as straight_lines
from geoprep.roads.scoring.edge_points import cost_graph

ToMetres = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def network_from_lines(
    lines: NDArray[np.object_],
    speed_mph: NDArray[np.float64],
    crs: str | None,
    *,
    to_metres: ToMetres | None = None,
    min_path: float = 5.0,
    small_nodes: int = 100,
    min_path_in_lines: bool = False,
) -> RoadGraph:
    """Return the network of lines that join where they share a point.

    A segment that two lines share is one edge, with the higher speed. An edge made of several
    segments has the travel time of all of them. A ring that touches no other line keeps one node.
    """
    nodes, ends, speed = _segments(lines, speed_mph)
    rows = _fastest(ends, speed)
    ends, speed = ends[rows], speed[rows]
    network = _network(nodes if to_metres is None else to_metres(nodes), ends, speed, crs)
    measured = _network(nodes, ends, speed, None) if min_path_in_lines else network
    large = _is_in_large_component(measured, min_path, small_nodes)
    network = network.parts(network.nodes, ends[large], network.lines[large], large)
    return with_chains_joined(network)


def _segments(
    lines: NDArray[np.object_], speed_mph: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Return all points, and the ends and speed of all segments between successive ones."""
    xy, line = shapely.get_coordinates(lines, return_index=True)
    nodes, at = np.unique(xy, axis=0, return_inverse=True) if len(xy) else (np.empty((0, 2)), line)
    at = at.reshape(-1).astype(np.int64)
    follows = line[1:] == line[:-1]
    ends = np.column_stack([at[:-1], at[1:]])[follows]
    speed = speed_mph[line[1:][follows]]
    apart = ends[:, 0] != ends[:, 1]
    return nodes, np.sort(ends[apart], axis=1), speed[apart]


def _fastest(ends: NDArray[np.int64], speed_mph: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of every segment once: of the fastest that has its ends."""
    ordered = np.lexsort((-np.nan_to_num(speed_mph), ends[:, 1], ends[:, 0]))
    same = (ends[ordered[1:]] == ends[ordered[:-1]]).all(axis=1)
    return np.delete(ordered, np.flatnonzero(same) + 1)


def _network(
    nodes: NDArray[np.float64],
    ends: NDArray[np.int64],
    speed: NDArray[np.float64],
    crs: str | None,
) -> RoadGraph:
    return RoadGraph(nodes, ends, straight_lines(nodes[ends]), speed, crs)


def _is_in_large_component(
    network: RoadGraph, min_path: float, most_nodes: int
) -> NDArray[np.bool_]:
    """Return which edges are in components of many nodes, or with a path of some length."""
    from scipy.sparse.csgraph import dijkstra

    component = edge_components(network)
    keep = np.ones(len(component), dtype=bool)
    for number in _small_components(network, component, min_path, most_nodes):
        edges = component == number
        piece = subnetwork(network, edges)
        keep[edges] = dijkstra(cost_graph(piece).cheapest, directed=False).max() >= min_path
    return keep


def _small_components(
    network: RoadGraph, component: NDArray[np.int32], min_path: float, most_nodes: int
) -> NDArray[np.int64]:
    """Return the components of few nodes whose bounding box is smaller than a path."""
    count = int(component.max()) + 1 if len(component) else 0
    of_node = np.empty(len(network.nodes), component.dtype)
    of_node[network.ends] = component[:, None]
    used = np.unique(network.ends)
    low, high = np.full((count, 2), np.inf), np.full((count, 2), -np.inf)
    np.minimum.at(low, of_node[used], network.nodes[used])
    np.maximum.at(high, of_node[used], network.nodes[used])
    nodes = np.bincount(of_node[used], minlength=count)
    small = (nodes > 0) & (nodes <= most_nodes) & ((high - low).max(axis=1, initial=0) < min_path)
    return np.flatnonzero(small)
