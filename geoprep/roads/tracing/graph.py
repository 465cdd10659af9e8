"""Centre line pixels to a network: nodes where lines end or meet, a polyline between them.

Lengths here are metres in the raster's own plane: x to the right, y up, the origin in its upper
left corner, so that pixel (row, col) has its centre at ((col + 1/2) gsd_x, -(row + 1/2) gsd_y).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.centrelines.cleaning import ranges
from geoprep.roads.centrelines.thinning import Skeleton
from geoprep.roads.network import RoadNetwork
from geoprep.roads.shapes import line_strings
from geoprep.roads.tracing.chains import Chains, chains
from geoprep.speed import MPS_PER_MPH

Ints = NDArray[np.int64]


def pixel_network(
    skeleton: Skeleton, gsd_m: tuple[float, float], *, certain: float = 0.0
) -> RoadNetwork:
    """Return the network of a skeleton, a vertex per pixel, speeds unknown.

    Pixels that touch are joined, but not across a corner where a third pixel joins them already: so
    a line has two neighbours at every pixel, and junctions are few. Junction pixels that touch
    become one node in their middle. A ring without a junction gets one node. A pixel on its own is
    no road.

    Parameters
    ----------
    gsd_m
        Metres that a pixel is wide and high.
    certain
        Connected parts without a pixel of at least this probability go.
    """
    pairs = _touching(skeleton)
    if certain > 0:
        pairs = _certain(pairs, skeleton.evidence, certain)
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
    walk = chains(joined, count)
    used, ends = np.unique(walk.ends, return_inverse=True)
    lines = _straight(walk, joined, middle)
    return RoadNetwork(middle[used], _pairs(ends), lines, np.full(len(lines), np.nan), None)


def _touching(skeleton: Skeleton) -> Ints:
    """Return pairs of pixels that touch, int64 (pair, 2)."""
    stride = skeleton.shape[1] + 2
    at = (skeleton.row.astype(np.int64) + 1) * stride + skeleton.col + 1
    if not len(at):
        return np.empty((0, 2), np.int64)
    below = np.searchsorted(at, at + stride - 1)  # the pixel below to the left, or what follows it
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


def _certain(pairs: Ints, evidence: NDArray[np.uint8], certain: float) -> Ints:
    """Return the pairs of parts of which some pixel is as likely as that."""
    part = _clusters(pairs, len(evidence))
    sure = np.zeros(len(evidence), np.bool_)
    sure[part[evidence >= round(certain * 255)]] = True
    return pairs[sure[part[pairs[:, 0]]]]


def _clusters(pairs: Ints, count: int) -> Ints:
    """Return for every pixel the pixel that stands for its cluster."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(pairs), np.int8), pairs.T), shape=(count, count))
    number, cluster = connected_components(graph, directed=False)
    first = np.full(number, -1, np.int64)
    first[cluster[::-1]] = np.arange(count)[::-1]
    stands: Ints = first[cluster]
    return stands


def assembled(network: RoadNetwork) -> RoadNetwork:
    """Return a network in which no node joins just two edges, and every node has an edge.

    A joined edge has the speed that takes as long as its parts of known speed.
    """
    walk = chains(network.ends, len(network.nodes))
    if len(walk.ends) == len(network.ends):
        used, ends = np.unique(network.ends, return_inverse=True)
        return replace(network, nodes=network.nodes[used], ends=_pairs(ends))
    used, ends = np.unique(walk.ends, return_inverse=True)
    return RoadNetwork(
        nodes=network.nodes[used],
        ends=_pairs(ends),
        lines=_joined(walk, network.lines),
        speed_mph=_joint_speed(walk, network),
        crs=network.crs,
    )


def _pairs(ends: NDArray[np.intp]) -> Ints:
    return ends.reshape(-1, 2).astype(np.int64)


def _joint_speed(walk: Chains, network: RoadNetwork) -> NDArray[np.float64]:
    chain = np.repeat(np.arange(len(walk.ends)), np.diff(walk.offsets))
    length, time = network.length_m[walk.edges], network.travel_time_s[walk.edges]
    known = np.isfinite(time)
    metres = np.bincount(chain[known], weights=length[known], minlength=len(walk.ends))
    seconds = np.bincount(chain[known], weights=time[known], minlength=len(walk.ends))
    with np.errstate(invalid="ignore", divide="ignore"):
        mph: NDArray[np.float64] = metres / seconds / MPS_PER_MPH
    return mph


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
