"""Crossings without a junction: a motorway and the road that passes over or under it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.graph import anchored, degrees, with_chains_joined
from geoprep.roads.network import RoadGraph, segments

_SHARED_M: Final = 25.0
"""Two roads that cross at a slant share their centre line for at most this length."""
_HEADING_M: Final = 15.0
_STRAIGHT_COS: Final = np.cos(np.radians(40))
_ASIDE_M: Final = 0.05
"""Distance between the two roads where they cross, so that software that joins equal vertices keeps
them apart."""


@dataclass(frozen=True, slots=True)
class _Approach:
    """An edge as it leaves a crossing: ``side`` is its end there, ``away`` its heading."""

    edge: int
    side: int
    node: int
    mph: float
    away: NDArray[np.float64]


def with_bridges(network: RoadGraph, motorway_mph: float) -> RoadGraph:
    """Return a network in which motorways have no level crossings.

    The rule applies where four edges meet (or three and three, a short edge apart), two of them
    faster than ``motorway_mph`` and collinear, two slower and collinear. The slower road then gets
    nodes of its own.
    """
    fast = network.speed_mph > motorway_mph
    if not fast.any():
        return network
    approaches = _approaches(network, fast)
    ends, nodes = network.ends.copy(), network.nodes.tolist()
    new_edges: list[tuple[int, int]] = []
    speeds: list[float] = []
    for slow in _crossings(network, approaches, fast):
        here = dict.fromkeys(approach.node for approach in slow)
        moved = {node: len(nodes) + k for k, node in enumerate(here)}
        for node in moved:
            nodes.append([nodes[node][0] + _ASIDE_M, nodes[node][1] + _ASIDE_M])
        for approach in slow:
            ends[approach.edge, approach.side] = moved[approach.node]
        if len(moved) == 2:
            first, second = moved.values()
            new_edges.append((first, second))
            speeds.append(min(approach.mph for approach in slow))
    xy = np.array(nodes)
    added = np.array(new_edges, np.int64).reshape(-1, 2)
    lines = np.empty(len(ends) + len(added), object)
    lines[:] = [*network.lines, *segments(xy[added])]
    all_ends = np.concatenate([ends, added])
    return with_chains_joined(
        RoadGraph(
            nodes=xy,
            ends=all_ends,
            lines=anchored(lines, all_ends, xy),
            speed_mph=np.concatenate([network.speed_mph, speeds]),
            crs=network.crs,
        )
    )


def _approaches(network: RoadGraph, fast: NDArray[np.bool_]) -> dict[int, list[_Approach]]:
    """Return the approaches of every node of degree 3 or 4 that a motorway reaches."""
    degree = degrees(network)
    touched = np.isin(np.arange(len(degree)), network.ends[fast])
    wanted = touched & np.isin(degree, (3, 4))
    by_node: dict[int, list[_Approach]] = {}
    length = network.length_m
    for edge, side in np.argwhere(wanted[network.ends]).tolist():
        node, back = int(network.ends[edge, side]), min(_HEADING_M, length[edge])
        place = length[edge] - back if side else back
        there = shapely.get_coordinates(shapely.line_interpolate_point(network.lines[edge], place))
        step = there[0] - network.nodes[node]
        away = step / max(float(np.linalg.norm(step)), 1e-9)
        approach = _Approach(edge, side, node, float(network.speed_mph[edge]), away)
        by_node.setdefault(node, []).append(approach)
    return by_node


def _crossings(
    network: RoadGraph, approaches: dict[int, list[_Approach]], fast: NDArray[np.bool_]
) -> Iterator[list[_Approach]]:
    """Yield the two slower approaches of every crossing."""
    for several in approaches.values():
        if len(several) == 4 and (slow := _slower(several, fast)):
            yield slow
    short = np.flatnonzero(network.length_m < _SHARED_M)
    for edge in short.tolist():
        a, b = network.ends[edge].tolist()
        both = [*approaches.get(a, ()), *approaches.get(b, ())]
        outer = [approach for approach in both if approach.edge != edge]
        three = a != b and len(approaches.get(a, ())) == len(approaches.get(b, ())) == 3
        slow = _slower(outer, fast) if three and len(outer) == 4 else []
        if slow and slow[0].node != slow[1].node:
            yield slow


def _slower(approaches: list[_Approach], fast: NDArray[np.bool_]) -> list[_Approach]:
    """Return the two slower of four approaches; empty if these are not a motorway crossing."""
    motorway = [approach for approach in approaches if fast[approach.edge]]
    other = [road for road in approaches if not fast[road.edge] and np.isfinite(road.mph)]
    if len(motorway) != 2 or len(other) != 2:
        return []
    straight = all(-(a.away @ b.away) >= _STRAIGHT_COS for a, b in (motorway, other))
    return other if straight else []
