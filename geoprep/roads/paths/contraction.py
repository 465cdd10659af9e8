"""Shortest distances from many nodes to all others in large networks, by contraction hierarchies.

Nodes are contracted one after another: each two neighbours of a contracted node get a shortcut as
long as the path through it. Every shortest path then has a form that first climbs to nodes
contracted later and then descends. All distances from a node therefore follow from one climb and
one sweep down over all nodes, for several sources at once, without a queue or a search. They are
exact up to the order of additions. For all pairs of nodes of a city, Dijkstra's algorithm takes
hours. Sources: customizable contraction hierarchies, Dibbelt, Strasser and Wagner 2014,
arXiv:1402.0402; the sweep, Delling et al. 2011, "PHAST"; the order of contraction, nested
dissection, George 1973.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled
from geoprep.roads.paths.distances import CostGraph

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_LEAF_NODES: Final = 4
_ON_CUT: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class ContractionHierarchy:
    """A network with shortcuts, without the edges that no shortest path needs.

    A node has a rank, its position in the order of contraction, and a row, its position in arrays
    of distances, where neighbours on the ground lie close together.
    """

    row: Ints  # (node,): row of each node
    rows: Ints  # (node,): row of the node contracted first, second, ...; and rank of each row
    rank: Ints
    # Arcs upwards: the node of rank ``r`` has arcs ``offsets[r]`` to ``offsets[r + 1]``, which lead
    # to the rows ``above`` in ascending order of rank; int64, int32, float64
    offsets: Ints
    above: NDArray[np.int32]
    cost: Floats

    def last_use(self, seeds: Ints) -> Ints:
        """Return the last point that needs the distance to each node, int64 (rank,); -1: none.

        A node is needed for the points reached through it, and for all nodes below it.
        """
        last = np.full(len(self.rows), -1)
        np.maximum.at(last, self.rank[seeds], np.arange(len(seeds))[:, None])
        _raise_last_use(self.rank, self.offsets, self.above, last)
        return last

    def fill_distances(
        self, seeds: Ints, costs: Floats, out: Floats, last_use: Ints, needed_for: int
    ) -> None:
        """Write the distances from some sources to the nodes that are still needed."""
        _climb(self.rows, self.rank, self.offsets, self.above, self.cost, seeds, costs, out)
        _descend(self.rows, self.offsets, self.above, self.cost, out, last_use, needed_for)


def contraction_hierarchy(graph: CostGraph) -> ContractionHierarchy:
    """Return the contraction hierarchy of a network."""
    count = len(graph.nodes)
    rank_of_node, row = _contraction_order(graph.nodes, graph.ends)
    low, high = np.sort(rank_of_node[graph.ends], axis=1).T
    order = np.lexsort((graph.cost, high, low))
    low, high, cost = low[order], high[order], graph.cost[order]
    # No shortest path uses a loop, or a parallel edge other than the cheapest.
    useful = low != high
    useful[1:] &= (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    low, high, cost = low[useful], high[useful], cost[useful]
    offsets, above = _shortcuts(np.searchsorted(low, np.arange(count + 1)), high)
    arcs = np.full(len(above), np.inf)
    number = np.repeat(np.arange(count), np.diff(offsets)) * count + above
    arcs[np.searchsorted(number, low * count + high)] = cost
    _shorten_arcs(offsets, above, arcs)
    rows, rank = np.empty(count, np.int64), np.empty(count, np.int64)
    rows[rank_of_node] = row
    rank[row] = rank_of_node
    return ContractionHierarchy(row, rows, rank, offsets, rows[above].astype(np.int32), arcs)


@compiled
def _shortcuts(offsets: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return the arcs upwards after all contractions: offsets, and ranks in ascending order."""
    count = len(offsets) - 1
    child, sibling = np.full(count, -1), np.full(count, -1)
    seen = np.full(count, -1)
    first_arc = np.zeros(count + 1, np.int64)
    above = np.empty(4 * len(high) + count + 16, np.int64)
    total = 0
    for rank in range(count):
        if len(above) - total < count:
            larger = np.empty(2 * len(above) + count, np.int64)
            larger[:total] = above[:total]
            above = larger
        first = total
        seen[rank] = rank
        for arc in range(offsets[rank], offsets[rank + 1]):
            seen[high[arc]] = rank
            above[total] = high[arc]
            total += 1
        below = child[rank]
        while below != -1:
            for arc in range(first_arc[below], first_arc[below + 1]):
                if seen[above[arc]] != rank:
                    seen[above[arc]] = rank
                    above[total] = above[arc]
                    total += 1
            below = sibling[below]
        above[first:total].sort()
        first_arc[rank + 1] = total
        if total > first:  # its lowest neighbour above inherits its other arcs
            sibling[rank] = child[above[first]]
            child[above[first]] = rank
    return first_arc, above[:total].copy()


@compiled
def _shorten_arcs(offsets: Ints, above: Ints, cost: Floats) -> None:
    """Shorten the arcs between the neighbours of every node to the path through it, in order."""
    for rank in range(len(offsets) - 1):
        last = offsets[rank + 1]
        for one in range(offsets[rank], last):
            arc = offsets[above[one]]
            for two in range(one + 1, last):
                while above[arc] != above[two]:
                    arc += 1
                cost[arc] = min(cost[arc], cost[one] + cost[two])


@compiled
def _raise_last_use(rank: Ints, offsets: Ints, above: NDArray[np.int32], last: Ints) -> None:
    """Raise the last use of every node to that of all nodes below it, in place."""
    for here in range(len(last)):
        if offsets[here] < offsets[here + 1]:
            parent = rank[above[offsets[here]]]
            last[parent] = max(last[parent], last[here])


@compiled
def _climb(
    rows: Ints,
    rank: Ints,
    offsets: Ints,
    above: NDArray[np.int32],
    cost: Floats,
    seeds: Ints,
    costs: Floats,
    out: Floats,
) -> None:
    """Write the distances upwards from all sources at once, for neighbours share most arcs."""
    out[:] = np.inf
    reached = np.zeros(len(rows), np.bool_)
    for source in range(len(seeds)):
        for end in range(seeds.shape[1]):
            if not costs[source, end] < np.inf:
                continue
            row = seeds[source, end]
            out[row, source] = min(out[row, source], costs[source, end])
            here = rank[row]
            while not reached[here]:
                reached[here] = True
                if offsets[here] < offsets[here + 1]:
                    here = rank[above[offsets[here]]]
    for here in range(len(rows)):
        if reached[here]:
            costs_here = out[rows[here]]
            for arc in range(offsets[here], offsets[here + 1]):
                there, more = out[above[arc]], cost[arc]
                for source in range(len(costs_here)):
                    total = costs_here[source] + more
                    there[source] = total if total < there[source] else there[source]


@compiled
def _descend(
    rows: Ints,
    offsets: Ints,
    above: NDArray[np.int32],
    cost: Floats,
    out: Floats,
    last_use: Ints,
    needed_for: int,
) -> None:
    """Write the distances downwards to every node that is still needed."""
    for rank in range(len(rows) - 1, -1, -1):
        if last_use[rank] < needed_for:
            continue
        here = out[rows[rank]]
        for arc in range(offsets[rank], offsets[rank + 1]):
            there, more = out[above[arc]], cost[arc]
            for source in range(len(here)):
                total = there[source] + more
                here[source] = total if total < here[source] else here[source]


def _contraction_order(nodes: Floats, ends: Ints) -> tuple[Ints, Ints]:
    """Return the rank of every node, and its row; int64 (node,) each.

    Nested dissection by coordinates: the plane is halved again and again across its wider side, and
    the nodes whose edges cross a cut follow after everything on both of its sides. Roads hardly
    cross each other, so a cut through n nodes crosses about the square root of n roads. In the
    order of rows, nodes near each other on the ground mostly stay near.
    """
    count = len(nodes)
    depth = max(int(np.ceil(np.log2(max(count, 1) / _LEAF_NODES))), 0)
    cell = np.zeros(count, np.int64)
    cut_at = np.full(count, depth, np.int64)
    path = np.zeros(count, np.int64)  # digits in base 3: 0 left, 1 right, 2 on the cut
    for level in range(depth):
        side = _sides(nodes, cell, 1 << level)
        u, v = ends.T
        crosses = (cell[u] == cell[v]) & (side[u] != side[v])
        crosses &= (cut_at[u] == depth) & (cut_at[v] == depth)
        cut_at[np.where(side[u] == 1, v, u)[crosses]] = level
        digit = np.where(cut_at > level, side, 0)
        path = path * 3 + np.where(cut_at == level, _ON_CUT, digit)
        cell = cell * 2 + side
    return _rank(path), _rank(cell)


def _rank(key: Ints) -> Ints:
    """Return the position of every key in sorted order."""
    rank = np.empty(len(key), np.int64)
    rank[np.argsort(key, kind="stable")] = np.arange(len(key))
    return rank


def _sides(nodes: Floats, cell: Ints, cells: int) -> Ints:
    """Return the half of its cell that each node is in, 0 or 1, int64 (node,).

    Every cell is halved at the median of its wider side.
    """
    low, high = np.full((cells, 2), np.inf), np.full((cells, 2), -np.inf)
    np.minimum.at(low, cell, nodes)
    np.maximum.at(high, cell, nodes)
    wider = np.argmax(high - low, axis=1)[cell]
    order = np.lexsort((np.take_along_axis(nodes, wider[:, None], axis=1)[:, 0], cell))
    members = np.bincount(cell, minlength=cells)
    first = np.cumsum(members) - members
    rank = np.empty(len(cell), np.int64)
    rank[order] = np.arange(len(cell))
    return (rank - first[cell] >= (members[cell] + 1) // 2).astype(np.int64)
