r"""Forks that thinning delayed: moved back to where the lines of their branches meet.

Roads that meet at a small angle share one band of pixels for a while. Thinning puts their junction
where the band parts, and the branches leave it with a bend::

                        ___---                     ___---
                   ____/                     ___---
    trunk ________/               ->   _____+____________
                  \___________
                      branches
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.roads.graph import degrees
from geoprep.roads.network import RoadGraph
from geoprep.roads.tracing.arms import (
    FAR_M,
    NEAR_M,
    arms_of,
    cosines_of_others,
    cross,
    lines_of_arms,
    with_junctions_at,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FORK_COS: Final = np.cos(np.radians(50))
_TRUNK_COS: Final = np.cos(np.radians(52))
"""A branch leaves the trunk by at most the angle of a fork; headings are right to 2 degrees."""
_MOVED_M: Final = 2.0, 48.0
"""Forks move by distances between these: a fork of 12 degrees of roads 10 m wide moves by 48 m."""
_ASIDE_M: Final = 7.0
"""The junction of thinning lies half a road's width off the trunk's line, or more."""
_BEYOND_M: Final = 4.0
"""The line of a trunk is taken from this distance beyond the fork on."""
_ON_ROAD: Final = 0.9
"""Share of a line on road pixels from which on it is on road: edges of coarse pixels are ragged."""


def with_forks_moved(
    network: RoadGraph, is_road: Callable[[Floats, Floats], NDArray[np.bool_]]
) -> RoadGraph:
    """Return a network whose forks are where the lines of their branches meet.

    1. The trunk of a fork is the arm whose two others, the branches, leave at the least angle: at
       most 50 degrees. It continues either branch with a turn of at most 52 degrees.
    2. The fork is put where the lines of the branches meet, and there onto the line of the trunk.
    3. It moves back along the trunk by 2 to 48 m, and at most half a road's width aside.
    4. It stays where it is unless both branches, extended to it, are on road.
    """
    # 1
    nodes = np.flatnonzero(degrees(network) == 3)
    arms = arms_of(network, nodes)
    near, heading, known = lines_of_arms(network, arms)
    others = cosines_of_others(heading)
    trunk, rows = others.argmax(axis=0), np.arange(len(nodes))
    left, right = (trunk + 1) % 3, (trunk + 2) % 3
    u, v, back = (heading[rows, arm] for arm in (left, right, trunk))
    a, b = near[rows, left], near[rows, right]
    _, bend, apart = np.sort(others, axis=0)
    fork = known.all(axis=1) & (apart >= _FORK_COS) & (-bend >= _TRUNK_COS)
    # 2
    with np.errstate(divide="ignore", invalid="ignore"):
        xy = a + (cross(b - a, v) / cross(u, v))[:, None] * u
        xy = _on_trunk(network, nodes, arms[rows, trunk], xy, (a, b), (u, v))
    # 3
    step = xy - network.nodes[nodes]
    distance = np.linalg.norm(step, axis=1)
    fork &= (distance >= _MOVED_M[0]) & (distance <= _MOVED_M[1])
    fork &= ((step * back).sum(axis=1) > 0) & (np.abs(cross(step, back)) <= _ASIDE_M)
    # 4
    chosen = np.flatnonzero(fork)
    on_road = [is_road(xy[chosen], end[chosen]).mean(axis=1) >= _ON_ROAD for end in (a, b)]
    chosen = chosen[on_road[0] & on_road[1]]
    cut = np.full(arms.shape, NEAR_M)
    cut[rows, trunk] = distance
    return with_junctions_at(network, nodes[chosen], arms[chosen], cut[chosen], xy[chosen])


def _on_trunk(
    network: RoadGraph,
    nodes: Ints,
    trunks: Ints,
    xy: Floats,
    points: tuple[Floats, Floats],
    headings: tuple[Floats, Floats],
) -> Floats:
    """Return forks moved to the lines of their trunks, as near to both branches' lines as possible.

    The trunk is straight beyond the fork. Forks whose trunks are too short there stay as they are.
    """
    moved = np.nan_to_num(np.linalg.norm(xy - network.nodes[nodes], axis=1))
    near = np.clip(moved, 0, _MOVED_M[1]) + _BEYOND_M
    begin, along, known = lines_of_arms(network, trunks, (near, near + FAR_M - NEAR_M))
    turn = np.stack([cross(heading, along) for heading in headings])
    aside = np.stack([cross(u, begin - a) for a, u in zip(points, headings, strict=True)])
    place = (aside * turn).sum(axis=0) / (turn**2).sum(axis=0)
    return np.where(known[:, None], begin - place[:, None] * along, xy)
