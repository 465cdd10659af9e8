"""Add vertices where outlines of roads cross, as a union of them would.

A union of polygons has a vertex wherever two outlines cross, and a straight edge bends there once
its vertices are projected. With these vertices in every outline, drawing the outlines one by one
gives the pixels of their union at less cost: a union of a few thousand long roads takes a minute.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled

MOST_COMPARISONS: Final = 400_000_000
MOST_CROSSINGS: Final = 4_000_000
"""Limits of half a second and 0.2 GiB; 3,000 roads across a scene need two thirds of them."""


def noded(
    xy: NDArray[np.float64],
    ring: NDArray[np.int64],
    polygon: NDArray[np.int64],
    group: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return rings with a vertex wherever they cross a ring of another polygon of their group.

    If there are more crossings than any road network has, the rings are returned unchanged: pixels
    with a centre within about a thousandth of a pixel of an edge may then differ from the union.
    ``xy`` (points, 2) are concatenated closed rings, ``ring`` (points,) the ring of each point,
    ``polygon`` (rings,) the polygon of each ring, whose own rings must not cross; polygons of a
    ``group`` (polygons,) below 0 are compared with none.
    """
    start = np.flatnonzero((ring[:-1] == ring[1:]) & (group[polygon[ring[:-1]]] >= 0))
    if not len(start):  # every road is a tangle
        return xy, ring
    if np.subtract(*np.ptp(xy, axis=0)) < 0:  # the sweep goes along x, the longer side
        turned, ring = noded(xy[:, ::-1], ring, polygon, group)
        return turned[:, ::-1], ring
    of_polygon = polygon[ring[start]]
    order, stop = _sweep(xy[start, 0], xy[start + 1, 0], group[of_polygon])
    if (stop - np.arange(len(stop))).sum() > MOST_COMPARISONS:
        return xy, ring
    start = start[order]
    arguments = np.column_stack([xy[start], xy[start + 1]]), of_polygon[order], stop
    count = _cross(*arguments, np.empty(0, np.int64), np.empty((0, 3)))
    if count > MOST_CROSSINGS:
        return xy, ring
    edge, found = np.empty(count, np.int64), np.empty((count, 3))
    _cross(*arguments, edge, found)
    along = np.lexsort((found[:, 0], start[edge]))
    at = start[edge[along]] + 1
    return np.insert(xy, at, found[along, 1:], axis=0), np.insert(ring, at, ring[at])


def _sweep(
    a: NDArray[np.float64], b: NDArray[np.float64], group: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order of edges by group and x of their ends, ``a`` and ``b``, and where pairs end.

    Edge k is compared with those from k + 1 to ``stop[k]``.
    """
    low, high = np.minimum(a, b), np.maximum(a, b)
    order = np.lexsort((low, group))
    low, high, group = low[order], high[order], group[order]
    stop = np.empty(len(order), np.int64)
    bounds = np.searchsorted(group, np.unique(group))
    for first, end in zip(bounds, [*bounds[1:], len(order)], strict=True):
        stop[first:end] = first + np.searchsorted(low[first:end], high[first:end], side="right")
    return order, stop


@compiled
def _side(ax: float, ay: float, bx: float, by: float, px: float, py: float) -> float:
    """Return a value whose sign says on which side of the line from a to b a point is; 0: on it."""
    return (bx - ax) * (py - ay) - (by - ay) * (px - ax)


@compiled
def _cross(
    ends: NDArray[np.float64],
    polygon: NDArray[np.int64],
    stop: NDArray[np.int64],
    edge: NDArray[np.int64],
    found: NDArray[np.float64],
) -> int:
    """Write where edges cross or touch, and return the number of such points.

    ``ends`` (edges, 4) are x and y of both ends, ``stop`` is from `_sweep`; edges of the same
    polygon are not compared. The output, not written if empty: ``edge`` (n,), the edge that is
    crossed, and ``found`` (n, 3), the position along it, 0 to 1, and the point.
    """
    write, n = edge.shape[0] > 0, 0
    for i in range(ends.shape[0]):
        ax, ay, bx, by = ends[i]
        low, high = min(ay, by), max(ay, by)
        for j in range(i + 1, stop[i]):
            cx, cy, dx, dy = ends[j]
            if polygon[i] == polygon[j] or max(cy, dy) < low or min(cy, dy) > high:
                continue
            c, d = _side(ax, ay, bx, by, cx, cy), _side(ax, ay, bx, by, dx, dy)
            if (c > 0 and d > 0) or (c < 0 and d < 0):
                continue
            a, b = _side(cx, cy, dx, dy, ax, ay), _side(cx, cy, dx, dy, bx, by)
            if (a > 0 and b > 0) or (a < 0 and b < 0):
                continue
            if a != 0 and b != 0 and c != 0 and d != 0:
                if write:
                    part = a / (a - b)
                    x, y = ax + part * (bx - ax), ay + part * (by - ay)
                    edge[n], edge[n + 1] = i, j
                    found[n, 0], found[n, 1], found[n, 2] = part, x, y
                    found[n + 1, 0], found[n + 1, 1], found[n + 1, 2] = c / (c - d), x, y
                n += 2
                continue
            for k in range(4):  # an end of one on the other
                if k < 2:
                    on, e, x, y = (c, i, cx, cy) if k == 0 else (d, i, dx, dy)
                else:
                    on, e, x, y = (a, j, ax, ay) if k == 2 else (b, j, bx, by)
                along_x, along_y = ends[e, 2] - ends[e, 0], ends[e, 3] - ends[e, 1]
                length = along_x * along_x + along_y * along_y
                if on != 0 or length == 0:
                    continue
                part = ((x - ends[e, 0]) * along_x + (y - ends[e, 1]) * along_y) / length
                if 0 < part < 1:
                    if write:
                        edge[n] = e
                        found[n, 0], found[n, 1], found[n, 2] = part, x, y
                    n += 1
    return n
