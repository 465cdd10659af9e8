"""The order in which to take nodes out of a network so that few shortcuts are needed.

Nested dissection (George 1973) by coordinates: the plane is halved again and again across its
wider side; the nodes whose edges cross a cut come after everything on both of its sides. Roads
hardly cross each other, so a cut through n nodes crosses about the root of n roads.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_LEAF_NODES: Final = 4
_ON_CUT: Final = 2


def elimination_order(
    nodes: NDArray[np.float64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the place of every node in the order, and an order of neighbours; int64 (node,) each.

    In the second one, what is near on the ground is mostly near: a layout for memory.

    Parameters
    ----------
    nodes
        float64 (node, 2): x and y.
    ends
        int64 (edge, 2): nodes that an edge joins.
    """
    count = len(nodes)
    depth = max(int(np.ceil(np.log2(max(count, 1) / _LEAF_NODES))), 0)
    cell = np.zeros(count, np.int64)
    cut_at = np.full(count, depth, np.int64)
    path = np.zeros(count, np.int64)  # in base 3: 0 left, 1 right, 2 on the cut itself
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


def _rank(key: NDArray[np.int64]) -> NDArray[np.int64]:
    rank = np.empty(len(key), np.int64)
    rank[np.argsort(key, kind="stable")] = np.arange(len(key))
    return rank


def _sides(nodes: NDArray[np.float64], cell: NDArray[np.int64], cells: int) -> NDArray[np.int64]:
    """Halve every cell at the median of its wider side: 0 or 1, int64 (node,)."""
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
