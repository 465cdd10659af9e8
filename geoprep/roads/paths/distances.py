"""Shortest distances between points on edges, from the distances between nodes.

A path between two points leaves its first edge at one of two ends and enters its last edge at one
of two, or stays on the edge that both points share. Distances between all nodes and four sums per
pair of points therefore suffice: no edge is split, and part of an edge costs its share by length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.roads.network import RoadGraph
from geoprep.roads.paths.points import EdgePoints
from geoprep.speed import MPS_PER_MPH

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Weight = Literal["length", "time"]
_FEW_NODES: Final = 32
"""Up to this many nodes a dense matrix is faster than a sparse graph."""


@dataclass(frozen=True, eq=False)
class CostGraph:
    """A network with the cost of every edge: metres, or seconds of travel."""

    nodes: NDArray[np.float64]  # (node, 2): x and y in metres
    ends: NDArray[np.int64]  # (edge, 2): rows of ``nodes``
    cost: NDArray[np.float64]  # (edge,): cost from end to end
    per_m: NDArray[np.float64]  # (edge,): cost per metre along the edge's line
    length_m: NDArray[np.float64]  # (edge,): length of the line in metres

    @cached_property
    def node_distances(self) -> NDArray[np.float64]:
        """Shortest distances between all nodes, float64 (node, node); infinite without a path.

        Memory grows with the square of the nodes, so this is for networks of one scene.
        """
        if len(self.nodes) <= _FEW_NODES:
            return _distances_of_few_nodes(self)
        from scipy.sparse.csgraph import dijkstra

        matrix: NDArray[np.float64] = dijkstra(cheapest_edges(self)[0])
        return matrix

    def cost_to_ends(self, points: EdgePoints) -> NDArray[np.float64]:
        """Return the cost from every point to both ends of its edge, float64 (point, 2).

        Infinite for points on no edge.
        """
        if not len(self.ends):
            return np.full((len(points), 2), np.inf)
        first = points.along_m * self.per_m[points.edge]
        cost = self.cost[points.edge]
        first = np.where(points.along_m >= self.length_m[points.edge], cost, first)
        both = np.column_stack([first, cost - first])
        both[~points.on_edge] = np.inf
        return both


def cost_graph(
    network: RoadGraph, weight: Weight = "length", *, name: str = "the network"
) -> CostGraph:
    """Return a network with the cost of its edges."""
    along = network.length_m
    per_m = np.ones(len(along))
    if weight == "time":
        unknown = int(np.isnan(network.speed_mph).sum())
        if unknown:
            raise UsageError(
                f"{name}: {unknown} of {len(along)} edges have no speed, so travel times cannot be "
                "computed. Use lengths, or give every edge a speed."
            )
        per_m = 1 / (network.speed_mph * MPS_PER_MPH)
    return CostGraph(network.nodes, network.ends, along * per_m, per_m, along)


def _distances_of_few_nodes(graph: CostGraph) -> NDArray[np.float64]:
    """Return shortest distances between all nodes (Floyd-Warshall)."""
    count, (start, stop) = len(graph.nodes), graph.ends.T
    matrix = np.full((count, count), np.inf)
    np.minimum.at(matrix, (start, stop), graph.cost)
    np.minimum.at(matrix, (stop, start), graph.cost)
    np.fill_diagonal(matrix, 0.0)
    for node in range(count):
        np.minimum(matrix, matrix[:, node, None] + matrix[node], out=matrix)
    return matrix


def cheapest_edges(graph: CostGraph) -> tuple[csr_array, NDArray[np.int64]]:
    """Return the cheapest edge between each two neighbours."""
    from scipy.sparse import csr_array

    count, edges = len(graph.nodes), len(graph.ends)
    start, stop = graph.ends.T.ravel(), graph.ends[:, ::-1].T.ravel()
    edge = np.tile(np.arange(edges), 2)
    # A sparse matrix made from coordinates adds up parallel edges: pick the cheapest first.
    order = np.lexsort((graph.cost[edge], stop, start))
    start, stop, edge = start[order], stop[order], edge[order]
    first = np.ones(len(start), dtype=bool)
    first[1:] = (start[1:] != start[:-1]) | (stop[1:] != stop[:-1])
    start, stop, edge = start[first], stop[first], edge[first]
    offsets = np.searchsorted(start, np.arange(count + 1))
    return csr_array((graph.cost[edge], stop, offsets), shape=(count, count)), edge


def point_distances(graph: CostGraph, points: EdgePoints) -> NDArray[np.float64]:
    """Return shortest distances between all points, float64 (point, point).

    Infinite where there is no path or a point is on no edge; 0 from a point to itself. Memory grows
    with the square of the points, so this is for networks of one scene.
    """
    matrix = np.full((len(points), len(points)), np.inf)
    if len(graph.ends):
        edge = points.edge
        first, second = graph.ends[edge].T
        to_first, to_second = graph.cost_to_ends(points).T
        nodes = graph.node_distances
        near = np.minimum(to_first[:, None] + nodes[first], to_second[:, None] + nodes[second])
        matrix = np.minimum(near[:, first] + to_first, near[:, second] + to_second)
        shared = (edge[:, None] == edge) & points.on_edge
        here, there = np.nonzero(shared)
        matrix[here, there] = np.minimum(
            matrix[here, there], np.abs(to_first[here] - to_first[there])
        )
    np.fill_diagonal(matrix, 0.0)
    return matrix
