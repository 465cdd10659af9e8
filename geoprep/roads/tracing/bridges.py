"""Crossings without a junction: a motorway and what passes over or under it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadNetwork
from geoprep.roads.shapes import segments
from geoprep.roads.tracing.graph import assembled
from geoprep.roads.tracing.pruning import degrees
from geoprep.roads.tracing.splitting import anchored

_SHARED_M: Final = 25.0
"""Two roads that cross at a slant run in one for as long as this."""
_BACK_M: Final = 15.0
_STRAIGHT_COS: Final = np.cos(np.radians(40))
_ASIDE_M: Final = 0.05
"""Between the two roads where they cross: what joins equal vertices must not join them."""


@dataclass(frozen=True, slots=True)
class _Arm:
    """An edge as it leaves a crossing: ``side`` is its end there."""

    edge: int
    side: int
    node: int
    mph: float
    away: NDArray[np.float64]


def separated(network: RoadNetwork, motorway_mph: float) -> RoadNetwork:
    """Return a network in which motorways have no level crossings.

    Where four arms meet (or three and three, a short edge apart), two of them faster than a given
    speed and straight on from one another, two slower and straight on too, the slower road gets
    nodes of its own.

    Parameters
    ----------
    motorway_mph
        Faster roads are motorways. SpaceNet's speeds above 60 mph are motorways alone.
    """
    fast = network.speed_mph > motorway_mph
    if not fast.any():
        return network
    incident = _incident(network, fast)
    ends, nodes = network.ends.copy(), network.nodes.tolist()
    fresh: list[tuple[int, int]] = []
    speeds: list[float] = []
    for slow in _crossings(network, incident, fast):
        moved = {arm.node: len(nodes) + k for k, arm in enumerate(_one_per_node(slow))}
        for node in moved:
            nodes.append([nodes[node][0] + _ASIDE_M, nodes[node][1] + _ASIDE_M])
        for arm in slow:
            ends[arm.edge, arm.side] = moved[arm.node]
        if len(moved) == 2:
            first, second = moved.values()
            fresh.append((first, second))
            speeds.append(min(arm.mph for arm in slow))
    xy = np.array(nodes)
    added = np.array(fresh, np.int64).reshape(-1, 2)
    lines = np.empty(len(ends) + len(added), object)
    lines[:] = [*network.lines, *segments(xy[added])]
    all_ends = np.concatenate([ends, added])
    return assembled(
        RoadNetwork(
            nodes=xy,
            ends=all_ends,
            lines=anchored(lines, all_ends, xy),
            speed_mph=np.concatenate([network.speed_mph, speeds]),
            crs=network.crs,
        )
    )


def _one_per_node(arms: list[_Arm]) -> list[_Arm]:
    return list({arm.node: arm for arm in arms}.values())


def _incident(network: RoadNetwork, fast: NDArray[np.bool_]) -> dict[int, list[_Arm]]:
    """Return the arms at every node of three or four that a motorway reaches."""
    degree = degrees(network)
    touched = np.zeros(len(degree), np.bool_)
    touched[network.ends[fast].reshape(-1)] = True
    wanted = touched & np.isin(degree, (3, 4))
    found: dict[int, list[_Arm]] = {}
    length = network.length_m
    for edge, side in np.argwhere(wanted[network.ends]).tolist():
        node, back = int(network.ends[edge, side]), min(_BACK_M, length[edge])
        place = length[edge] - back if side else back
        there = shapely.get_coordinates(shapely.line_interpolate_point(network.lines[edge], place))
        step = there[0] - network.nodes[node]
        away = step / max(float(np.linalg.norm(step)), 1e-9)
        arm = _Arm(edge, side, node, float(network.speed_mph[edge]), away)
        found.setdefault(node, []).append(arm)
    return found


def _crossings(
    network: RoadNetwork, incident: dict[int, list[_Arm]], fast: NDArray[np.bool_]
) -> Iterator[list[_Arm]]:
    """Yield the two slower arms of every crossing."""
    for arms in incident.values():
        if len(arms) == 4 and (slow := _slower(arms, fast)):
            yield slow
    short = np.flatnonzero(network.length_m < _SHARED_M)
    for edge in short.tolist():
        a, b = network.ends[edge].tolist()
        outer = [arm for node in (a, b) for arm in incident.get(node, ()) if arm.edge != edge]
        three = a != b and len(incident.get(a, ())) == len(incident.get(b, ())) == 3
        slow = _slower(outer, fast) if three and len(outer) == 4 else []
        if slow and slow[0].node != slow[1].node:
            yield slow


def _slower(arms: list[_Arm], fast: NDArray[np.bool_]) -> list[_Arm]:
    """Return the two slower of four arms, or none where they are no crossing."""
    motorway = [arm for arm in arms if fast[arm.edge]]
    other = [arm for arm in arms if not fast[arm.edge] and arm.mph == arm.mph]
    if len(motorway) != 2 or len(other) != 2:
        return []
    straight = all(-(a.away @ b.away) >= _STRAIGHT_COS for a, b in (motorway, other))
    return other if straight else []
