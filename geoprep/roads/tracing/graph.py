"""Centre line pixels to a network: nodes where lines end or meet, a polyline between them.

Lengths here are metres in the raster's own plane: x to the right, y up, the origin in its upper
left corner, so that pixel (row, col) has its centre at ((col + 1/2) gsd_x, -(row + 1/2) gsd_y).
"""

from __future__ import annotations

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadNetwork
from geoprep.roads.tracing.chains import Chains, chains
from geoprep.roads.tracing.cleaning import ranges
from geoprep.roads.tracing.skeleton import Skeleton

Ints = NDArray[np.int64]


def pixel_network(skeleton: Skeleton, gsd_m: tuple[float, float]) -> RoadNetwork:
    """Return the network of a skeleton, a vertex per pixel, speeds unknown.

    Pixels that touch are joined, but not across a corner where a third pixel joins them already: so
    a line has two neighbours at every pixel, and junctions are few. Junction pixels that touch
    become one node in their middle. A ring without a junction gets one node. A pixel on its own is
    no road.
    """
    pairs = _touching(skeleton)
    count = len(skeleton.row)
    xy = np.column_stack([(skeleton.col + 0.5) * gsd_m[0], -(skeleton.row + 0.5) * gsd_m[1]])
    degree = np.bincount(pairs.reshape(-1), minlength=count)
    node = _clusters(pairs[(degree[pairs] > 2).all(axis=1)], count)
    joined = node[pairs]
    joined = joined[joined[:, 0] != joined[:, 1]]
    middle = (
        np.column_stack([np.bincount(node, weights=values, minlength=count) for values in xy.T])
        / np.maximum(np.bincount(node, minlength=count), 1)[:, None]
    )
    # A cluster that two lines leave is a node no more than a pixel of a line is.
    return assembled(joined, middle, None)


def _touching(skeleton: Skeleton) -> Ints:
    """Return pairs of pixels that touch, int64 (pair, 2)."""
    stride = skeleton.shape[1] + 2
    at = (skeleton.row.astype(np.int64) + 1) * stride + skeleton.col + 1
    if not len(at):
        return np.empty((0, 2), np.int64)
    below = np.searchsorted(at, at + stride - 1)  # the pixel below to the left, or what follows it
    here = np.arange(len(at))

    def is_at(place: Ints, offset: int) -> NDArray[np.bool_]:
        return (at[np.minimum(place, len(at) - 1)] == at + offset) & (place < len(at))

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


def _clusters(pairs: Ints, count: int) -> Ints:
    """Return for every pixel the pixel that stands for its cluster."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(pairs), np.int8), pairs.T), shape=(count, count))
    number, cluster = connected_components(graph, directed=False)
    first = np.full(number, -1, np.int64)
    first[cluster[::-1]] = np.arange(count)[::-1]
    return first[cluster]


def assembled(
    ends: Ints,
    nodes: NDArray[np.float64],
    lines: NDArray[np.object_] | None,
    *,
    kept: NDArray[np.bool_] | None = None,
    crs: str | None = None,
) -> RoadNetwork:
    """Return a network in which no node joins just two edges, and every node has an edge.

    Parameters
    ----------
    ends, nodes
        As in a network.
    lines
        As in a network; None: straight from node to node.
    kept
        bool (node,): nodes that stay all the same.
    crs
        As in a network.
    """
    walk = chains(ends, np.zeros(len(nodes), np.bool_) if kept is None else kept)
    joined = _straight(walk, ends, nodes) if lines is None else _joined(walk, lines)
    used, renumbered = np.unique(walk.ends, return_inverse=True)
    return RoadNetwork(
        nodes=nodes[used],
        ends=renumbered.reshape(-1, 2).astype(np.int64),
        lines=joined,
        speed_mph=np.full(len(joined), np.nan),
        crs=crs,
    )


def _straight(walk: Chains, ends: Ints, nodes: NDArray[np.float64]) -> NDArray[np.object_]:
    """Return the line through the nodes of every chain."""
    counts = np.diff(walk.offsets)
    start = np.where(walk.backwards, ends[walk.edges, 1], ends[walk.edges, 0])
    chain = np.repeat(np.arange(len(counts)), counts)
    vertex = np.insert(start, walk.offsets[1:], walk.ends[:, 1])
    member = np.insert(chain, walk.offsets[1:], np.arange(len(counts)))
    return line_strings(nodes[vertex], member)


def _joined(walk: Chains, lines: NDArray[np.object_]) -> NDArray[np.object_]:
    """Return the lines of every chain as one line."""
    counts = np.diff(walk.offsets)
    if (counts == 1).all() and not walk.backwards.any():
        return lines[walk.edges]
    xy, part = shapely.get_coordinates(lines[walk.edges], return_index=True)
    lengths = np.bincount(part, minlength=len(walk.edges))
    first = np.cumsum(lengths) - lengths
    # Read the coordinates of lines that are walked backwards from their end.
    within = ranges(np.zeros_like(lengths), lengths)
    source = np.where(
        walk.backwards[part], first[part] + lengths[part] - 1 - within, first[part] + within
    )
    begins = np.zeros(len(walk.edges), np.bool_)
    begins[walk.offsets[:-1]] = True
    wanted = (within > 0) | begins[part]  # the first point of a follower is the last before it
    chain = np.repeat(np.arange(len(counts)), counts)[part]
    return line_strings(xy[source][wanted], chain[wanted])


def line_strings(xy: NDArray[np.float64], line: Ints) -> NDArray[np.object_]:
    """Return lines from their coordinates and the number of the line that each is part of."""
    if not len(xy):
        return np.empty(0, object)
    made: NDArray[np.object_] = shapely.linestrings(xy, indices=line)
    return made
