r"""Through roads that thinning draws towards their side roads: straightened.

The junction moves by an eighth of the width where all roads are equally wide::

    ------__   __------          ---------+---------
            \ /                           |
             +              ->            |
             |                            |
             |                            |
"""

from __future__ import annotations

from typing import Final

import numpy as np

from geoprep.roads.graph import degrees
from geoprep.roads.network import RoadGraph
from geoprep.roads.tracing.arms import (
    LINE_M,
    SIDE_SIN,
    STRAIGHT_COS,
    arms_of,
    cosines_of_others,
    cross,
    lines_of_arms,
    with_junctions_at,
)

_DRAWN_M: Final = 4.4
"""Side roads draw the line of a through road aside for at most this distance, and by smoothing."""
_SHIFT_M: Final = 3.5
"""Junctions of side roads move by at most this distance: roads 8 m wide that meet at 60 degrees."""


def with_through_roads_straight(network: RoadGraph) -> RoadGraph:
    """Return a network in which roads run straight through the junctions of their side roads.

    1. The through road is the straightest pair of a junction's three arms; the third is the side
       road. The first metres of each arm, which thinning bends, are left out.
    2. The junction is put where the line of the side road meets the through road.
    3. It stays where it is if the pair turns by more than 25 degrees, the side road leaves at less
       than 35 degrees, or the junction would move by more than 3.5 m.
    """
    # 1
    nodes = np.flatnonzero(degrees(network) == 3)
    arms = arms_of(network, nodes)
    cut = np.minimum(_DRAWN_M, network.length_m[arms // 2] / 3)
    near, heading, known = lines_of_arms(network, arms, (cut, cut + LINE_M))
    others = cosines_of_others(heading)
    side, rows = others.argmin(axis=0), np.arange(len(nodes))
    # 2
    a, b = near[rows, (side + 1) % 3], near[rows, (side + 2) % 3]
    along = b - a
    size = np.linalg.norm(along, axis=1)
    along /= np.maximum(size, 1e-9)[:, None]
    turn = cross(along, heading[rows, side])
    with np.errstate(divide="ignore", invalid="ignore"):
        foot = cross(near[rows, side] - a, heading[rows, side]) / turn
    xy = a + foot[:, None] * along
    # 3
    moved = np.linalg.norm(xy - network.nodes[nodes], axis=1)
    chosen = known.all(axis=1) & (-others.min(axis=0) >= STRAIGHT_COS)
    chosen &= (np.abs(turn) >= SIDE_SIN) & (moved <= _SHIFT_M)
    chosen &= (foot > 0) & (foot < size)
    return with_junctions_at(network, nodes[chosen], arms[chosen], cut[chosen], xy[chosen])
