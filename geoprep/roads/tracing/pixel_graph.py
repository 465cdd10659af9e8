"""Centre lines of cells to a network: nodes where lines end or meet, a polyline between them.

Coordinates here are metres in the raster's own plane: x to the right, y up, the origin in its upper
left corner, so that cell (row, col) has its centre at ((col + 1/2) wide, -(row + 1/2) high).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from geoprep.components import connected
from geoprep.roads.centrelines.thinning import Skeleton
from geoprep.roads.graph import chains, lines_through, renumbered
from geoprep.roads.network import Plane, RoadGraph

Ints = NDArray[np.int64]


def pixel_network(skeleton: Skeleton) -> RoadGraph:
    """Return the network of a skeleton: one vertex per pixel, speeds unknown.

    Connected components that reach the high threshold nowhere are left out.

    Touching pixels are linked, except diagonally where a third pixel links them already: so a line
    has two neighbours at every pixel, and junctions are few. Junction pixels that touch become one
    node at their mean position. A ring without a junction gets one node. Isolated pixels are
    dropped.
    """
    pairs = _touching(skeleton)
    count = len(skeleton.row)
    component = _representatives(pairs, count)
    pairs = pairs[np.isin(component[pairs[:, 0]], component[skeleton.is_certain])]
    xy = Plane(skeleton.cell_m).to_metres(np.column_stack([skeleton.col, skeleton.row]) + 0.5)
    degree = np.bincount(pairs.reshape(-1), minlength=count)
    node = _representatives(pairs[(degree[pairs] > 2).all(axis=1)], count)
    linked = node[pairs]
    linked = linked[linked[:, 0] != linked[:, 1]]
    middle = (
        np.column_stack([np.bincount(node, weights=values, minlength=count) for values in xy.T])
        / np.maximum(np.bincount(node, minlength=count), 1)[:, None]
    )
    walk = chains(linked, count)
    used, ends = renumbered(walk.ends)
    lines = lines_through(walk, linked, middle)
    return RoadGraph(middle[used], ends, lines, np.full(len(lines), np.nan), None)


def _touching(skeleton: Skeleton) -> Ints:
    """Return the pairs of pixels that are linked, int64 (pair, 2)."""
    stride = skeleton.shape[1] + 2
    at = (skeleton.row.astype(np.int64) + 1) * stride + skeleton.col + 1
    below = np.searchsorted(at, at + stride - 1)  # the pixel below to the left, or the next one
    here = np.arange(len(at))

    def is_at(place: Ints, offset: int) -> NDArray[np.bool_]:
        there: NDArray[np.bool_] = at[np.minimum(place, len(at) - 1)] == at + offset
        return there & (place < len(at))

    left_below = is_at(below, stride - 1)
    under = below + left_below
    has_under = is_at(under, stride)
    right_below = under + has_under
    has_right_below = is_at(right_below, stride + 1)
    has_right = is_at(here + 1, 1)
    has_left = np.concatenate([[False], has_right[:-1]])
    straight = [(here, here + 1, has_right), (here, under, has_under)]
    slanting = [
        (here, below, left_below & ~has_left & ~has_under),
        (here, right_below, has_right_below & ~has_right & ~has_under),
    ]
    return np.concatenate(
        [np.column_stack([a[met], b[met]]) for a, b, met in (*straight, *slanting)]
    )


def _representatives(pairs: Ints, count: int) -> Ints:
    """Return for every pixel the first pixel of its connected component, int64 (pixel,)."""
    _, component = connected(pairs, count)
    first = np.unique(component, return_index=True)[1]
    return first[component]
