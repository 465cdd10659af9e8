r"""Crossings that thinning split in two: merged, or left where two roads meet a third one apart.

A crossing thins to two forks a few metres apart, which become one junction::

           |                    |
    -------+                    |
            \          ->  -----+-----
             +------            |
             |                  |

Side roads that meet a road from both sides in different places keep their two junctions::

           |                 |
    -------+             ----+---+----
            \          ->        |
             +------             |
             |
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.components import connected
from geoprep.roads.graph import anchored, degrees, with_chains_joined
from geoprep.roads.network import RoadGraph, points_along

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

JUNCTION_M: Final = 5.0
"""Junctions linked by a shorter edge are one: a crossing thins to two forks about that far apart.
"""
_APART_M: Final = 3.0
"""Two roads that meet a third one at least this far apart, across themselves, have two junctions.
"""
_NEAR_M: Final = 12.0
_FAR_M: Final = 32.0
"""The line of an arm is taken between these distances from its junction: nearer it is bent, for 7 m
where roads 8 m wide part at 15 degrees, and by smoothing.
"""
_LEAST_M: Final = 6.0
"""Minimum length that the line of an arm is taken over."""
_STRAIGHT_COS: Final = np.cos(np.radians(25))
"""Two arms are one straight road if they turn by less than 25 degrees."""
_SIDE_SIN: Final = np.sin(np.radians(35))
"""A side road leaves the road at 35 degrees or more: at less its place along it is uncertain."""


def with_wide_junctions_merged(network: RoadGraph, reach_m: NDArray[np.float64]) -> RoadGraph:
    """Return a network without junctions that lie in the same wide area, such as a crossing.

    ``reach_m`` is the distance of every node to the background, 0 where a road is not wide.
    """
    (a, b), junction = network.ends.T, degrees(network) > 2
    near = network.length_m < np.maximum(reach_m[a], reach_m[b])
    return _merged(network, near & junction[a] & junction[b])


def with_junctions_merged(network: RoadGraph) -> RoadGraph:
    """Return a network without junctions that are linked by a short edge.

    1. Pairs of junctions of two side roads stay, each where its road meets the road through both.
    2. Other junctions that short edges link, however many, become one at their mean position.
    """
    # 1
    a, b = network.ends.T
    junction, is_short = degrees(network) > 2, network.length_m < JUNCTION_M
    short = is_short & junction[a] & junction[b] & (a != b)
    network, apart = _with_offset_junctions(network, np.flatnonzero(short))
    short[apart] = False
    return _merged(network, short)  # 2


def _merged(network: RoadGraph, short: NDArray[np.bool_]) -> RoadGraph:
    """Return a network in which the nodes that some edges link become one."""
    if not short.any():
        return network
    count = len(network.nodes)
    number, group = connected(network.ends[short], count)
    size = np.bincount(group, minlength=number)[:, None]
    middle = np.column_stack([np.bincount(group, weights=v) for v in network.nodes.T]) / size
    ends = group[network.ends].astype(np.int64)
    inside = short | ((ends[:, 0] == ends[:, 1]) & (network.length_m < JUNCTION_M))
    ends, speed = ends[~inside], network.speed_mph[~inside]
    lines = anchored(network.lines[~inside], ends, middle)
    return with_chains_joined(RoadGraph(middle, ends, lines, speed, network.crs))


def _with_offset_junctions(network: RoadGraph, short: Ints) -> tuple[RoadGraph, Ints]:
    """Return a network with the pairs of junctions that stay apart in place, and their edges.

    1. The short edge links two junctions of three edges each, and no other short edge meets them.
    2. The straightest pair of their outer arms is the road through both.
    3. Each junction is put where the line of its side road meets that of the road through both.
    4. The pair stays if the side roads leave at an angle, at least 3 m apart across themselves (in
       the order of their junctions), and no junction moves far.
    """
    # 1
    pairs = network.ends[short]
    alone = (np.bincount(pairs.reshape(-1), minlength=len(network.nodes)) == 1)[pairs].all(axis=1)
    three = (degrees(network)[pairs] == 3).all(axis=1)
    short = short[alone & three]
    arms = _arms_of(network, network.ends[short].reshape(-1))
    outer = arms[arms // 2 != np.repeat(short, 2)[:, None]].reshape(-1, 2, 2)
    near, heading, known = _lines_of_arms(network, outer)
    # 2: both arms follow the line between their beginnings
    rows = np.arange(len(short))
    between = near[:, 1, None] - near[:, 0, :, None]  # (pair, arm of the first, of the second, xy)
    between /= np.maximum(np.linalg.norm(between, axis=-1, keepdims=True), 1e-9)
    straight = np.minimum(
        -(heading[:, 0, :, None] * between).sum(axis=-1),
        (heading[:, 1, None] * between).sum(axis=-1),
    ).reshape(-1, 4)
    first, second = np.divmod(straight.argmax(axis=1), 2)
    begin, stop = near[rows, 0, first], near[rows, 1, second]
    along = stop - begin
    along /= np.maximum(np.linalg.norm(along, axis=1), 1e-9)[:, None]
    # 3
    feet, sine = [], []
    for side, chosen in ((0, 1 - first), (1, 1 - second)):
        place, away = near[rows, side, chosen], heading[rows, side, chosen]
        turn = _cross(along, away)
        sine.append(np.abs(turn))
        with np.errstate(divide="ignore", invalid="ignore"):
            feet.append(_cross(place - begin, away) / turn)
    # 4
    gap = (feet[1] - feet[0]) * np.minimum(*sine)
    apart = known.all(axis=(1, 2)) & (straight.max(axis=1) >= _STRAIGHT_COS)
    apart &= (np.minimum(*sine) >= _SIDE_SIN) & (gap >= _APART_M)
    xy = begin[:, None] + np.stack(feet, axis=1)[..., None] * along[:, None]
    moved = np.linalg.norm(xy - network.nodes[network.ends[short]], axis=2)
    apart &= (moved < JUNCTION_M / 2).all(axis=1)
    nodes = network.nodes.copy()
    nodes[network.ends[short[apart]]] = xy[apart]
    lines = anchored(network.lines, network.ends, nodes)
    return replace(network, nodes=nodes, lines=lines), short[apart]


def _arms_of(network: RoadGraph, nodes: Ints) -> Ints:
    """Return the arms of nodes of three edges, int64 (node, 3).

    Arms are edges as they leave a node: number ``2 * edge + side`` leaves the first node of its
    edge if the side is 0.
    """
    flat = network.ends.reshape(-1)
    order = np.argsort(flat, kind="stable")
    first = np.searchsorted(flat[order], nodes)
    arms: Ints = order[first[:, None] + np.arange(3)]
    return arms


def _lines_of_arms(network: RoadGraph, arms: Ints) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return where the straight part of arms begins, their headings, and which are long enough.

    A straight line is fitted to 17 points of each arm, from 12 m (or a third of the edge) to 32 m:
    two of them would give its heading with nearly twice the error.
    """
    edge, last = arms // 2, arms % 2 == 1
    length = network.length_m[edge]
    near, far = np.minimum(_NEAR_M, length / 3), np.minimum(_FAR_M, length)
    share = np.linspace(-1.0, 1.0, 17)
    along = np.multiply.outer((1 - share) / 2, near) + np.multiply.outer((1 + share) / 2, far)
    along = np.where(last, length - along, along)
    line = np.broadcast_to(edge, along.shape).ravel()
    xy = points_along(network.lines, line, along.ravel()).reshape(*along.shape, 2)
    step = np.einsum("p,p...->...", share, xy) / (share**2).sum()
    size = np.linalg.norm(step, axis=-1)
    heading = step / np.maximum(size, 1e-9)[..., None]
    return xy.mean(axis=0) - step, heading, far - near >= _LEAST_M


def _cross(a: Floats, b: Floats) -> Floats:
    """Return the cross products of vectors of the plane, (...)."""
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0], np.float64)
