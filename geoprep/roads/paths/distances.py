"""Shortest distances between points on edges, from the distances between nodes.

A path between two points leaves its first edge at one of two ends and enters its last edge at one
of two, or stays on the edge that both points share. Distances between nodes and four sums per pair
of points therefore suffice: no edge is split, and part of an edge costs its share by length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled
from geoprep.roads.network import RoadGraph
from geoprep.roads.paths.points import EdgePoints
from geoprep.speed import MPS_PER_MPH

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Weight = Literal["length", "time"]
_LEAF_NODES: Final = 4
_SCENE_NODES: Final = 1000
"""Up to this many nodes the distances between all of them are kept."""


@dataclass(frozen=True, eq=False)
class CostGraph:
    """A network with the cost of every edge: metres, or seconds of travel."""

    nodes: NDArray[np.float64]  # (node, 2): x and y in metres
    ends: NDArray[np.int64]  # (edge, 2): rows of ``nodes``
    cost: NDArray[np.float64]  # (edge,): cost from end to end
    per_m: NDArray[np.float64]  # (edge,): cost per metre along the edge's line
    length_m: NDArray[np.float64]  # (edge,): length of the line in metres

    @cached_property
    def _matrix(self) -> csr_array:
        return cheapest_edges(self)[0]

    @cached_property
    def node_distances(self) -> NDArray[np.float64]:
        """Shortest distances between all nodes, float64 (node, node); infinite without a path."""
        from scipy.sparse.csgraph import dijkstra

        distances: NDArray[np.float64] = dijkstra(self._matrix)
        return distances

    @cached_property
    def _hierarchy(self) -> Hierarchy:
        return contracted(self._matrix, self.nodes)

    def to_nodes(
        self,
        points: EdgePoints,
        needed: EdgePoints | None = None,
        memory: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return the shortest distances from every node to some points, float64 (node, point).

        Given points that need them, only the distances of the ends of their edges are right.
        ``memory`` is used for the result.
        """
        (first, second), costs = self.ends[points.edge].T, self.cost_to_ends(points)
        if len(self.nodes) <= _SCENE_NODES:
            away = self.node_distances
            near = np.minimum(away[first] + costs[:, :1], away[second] + costs[:, 1:])
            return np.ascontiguousarray(near.T)
        shape, point = (len(self.nodes), len(points)), np.arange(len(points))
        near = np.empty(shape) if memory is None else memory[: math.prod(shape)].reshape(shape)
        near.fill(np.inf)
        near[first, point] = costs[:, 0]
        near[second, point] = np.minimum(near[second, point], costs[:, 1])
        reached, wanted = np.zeros((2, len(self.nodes)), bool)
        reached[self.ends[points.edge]] = True
        wanted[() if needed is None else self.ends[needed.edge]] = True
        _climb_and_descend(near, reached, wanted, *self._hierarchy)
        return near

    def cost_to_ends(self, points: EdgePoints) -> NDArray[np.float64]:
        """Return the cost from every point to both ends of its edge, float64 (point, 2).

        Infinite for points on no edge.
        """
        first = points.along_m * self.per_m[points.edge]
        cost = self.cost[points.edge]
        first = np.where(points.along_m >= self.length_m[points.edge], cost, first)
        both = np.column_stack([first, cost - first])
        both[~points.on_edge] = np.inf
        return both


Hierarchy = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Nodes in the order of contraction, and the arcs of each to nodes contracted later: the first arc
of each (and the end of the last), the node an arc leads to, and its cost."""


def contracted(matrix: csr_array, nodes: NDArray[np.float64]) -> Hierarchy:
    """Return a network with shortcuts, from which all distances follow in one climb and descent.

    Neighbours of a contracted node get a shortcut as long as the path through it. Every shortest
    path then has a form that first climbs to nodes contracted later, and then descends. Sources:
    customizable contraction hierarchies, Dibbelt, Strasser and Wagner 2014, arXiv:1402.0402; the
    order of contraction, nested dissection, George 1973.
    """
    order, count = _dissected(np.arange(len(nodes)), nodes, matrix), len(nodes)
    start, stop = np.argsort(order)[np.array(matrix.tocoo().coords)]
    upwards = start < stop
    higher: list[set[int]] = [set() for _ in nodes]
    for low, high in zip(start[upwards].tolist(), stop[upwards].tolist(), strict=True):
        higher[low].add(high)
    for ranks in higher:
        if ranks:  # a shortcut between each two neighbours of a contracted node
            higher[min(ranks)] |= ranks - {min(ranks)}
    offsets = np.cumsum([0, *map(len, higher)])
    above = np.array([rank for ranks in higher for rank in sorted(ranks)], np.int64)
    arc = np.repeat(np.arange(count), np.diff(offsets)) * count + above
    costs = np.full(len(above), np.inf)
    costs[np.searchsorted(arc, (start * count + stop)[upwards])] = matrix.data[upwards]
    useful = _shorten(offsets, above, costs)
    offsets = np.cumsum([0, *useful])[offsets]
    return order, offsets, order[above[useful]], costs[useful]


@compiled
def _shorten(
    offsets: NDArray[np.int64], above: NDArray[np.int64], costs: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Give arcs the cost of the shortest path; return those than which no other path is shorter.

    First the paths through nodes contracted earlier, then those through nodes contracted later.
    """
    nodes, through_lower = len(offsets) - 1, costs
    for step in range(2 * nodes):
        if step == nodes:
            through_lower = costs.copy()
        rank = step if step < nodes else 2 * nodes - 1 - step
        for one in range(offsets[rank], offsets[rank + 1]):
            arc = offsets[above[one]]
            for two in range(one + 1, offsets[rank + 1]):
                while above[arc] != above[two]:
                    arc += 1
                if step < nodes:
                    costs[arc] = min(costs[arc], costs[one] + costs[two])
                else:
                    costs[one] = min(costs[one], costs[two] + costs[arc])
                    costs[two] = min(costs[two], costs[one] + costs[arc])
    return costs >= through_lower


def _dissected(
    part: NDArray[np.int64], nodes: NDArray[np.float64], matrix: csr_array
) -> NDArray[np.int64]:
    """Return nodes in an order of contraction: two halves of the area, then what separates them."""
    if len(part) <= _LEAF_NODES:
        return part
    axis = int(np.argmax(np.ptp(nodes[part], axis=0)))
    part = part[np.argsort(nodes[part, axis])]
    low, high = np.split(part, [len(part) // 2])
    cut = np.diff(matrix[low][:, high].indptr) > 0
    halves = (_dissected(half, nodes, matrix) for half in (low[~cut], high))
    return np.concatenate([*halves, low[cut]])


@compiled
def _climb_and_descend(
    near: NDArray[np.float64],
    reached: NDArray[np.bool_],
    wanted: NDArray[np.bool_],
    order: NDArray[np.int64],
    offsets: NDArray[np.int64],
    above: NDArray[np.int64],
    costs: NDArray[np.float64],
) -> None:
    """Lower distances from nodes to points, (node, point), along the paths of a hierarchy."""
    for rank, node in enumerate(order):
        for arc in range(offsets[rank], offsets[rank + 1]):
            reached[above[arc]] |= reached[node]
            wanted[above[arc]] |= wanted[node]
            if reached[node]:
                _lower(near[above[arc]], near[node], costs[arc])
    for rank in range(len(order) - 1, -1, -1):
        if wanted[order[rank]]:
            for arc in range(offsets[rank], offsets[rank + 1]):
                _lower(near[order[rank]], near[above[arc]], costs[arc])


@compiled
def _lower(row: NDArray[np.float64], other: NDArray[np.float64], cost: float) -> None:
    for point in range(len(row)):
        through = other[point] + cost
        row[point] = through if through < row[point] else row[point]


@dataclass(frozen=True, slots=True)
class PairedPoints:
    """The control points of one network, and where they lie in another one."""

    own: CostGraph
    here: EdgePoints
    other: CostGraph
    there: EdgePoints
    least: NDArray[np.float64]  # (point,): shortest path from a point that counts


def cost_graph(network: RoadGraph, weight: Weight = "length") -> CostGraph:
    """Return a network with the cost of its edges; for times all speeds must be known."""
    along = network.length_m
    per_m = np.ones(len(along))
    if weight == "time":
        per_m = 1 / (network.speed_mph * MPS_PER_MPH)
    return CostGraph(network.nodes, network.ends, along * per_m, per_m, along)


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
