"""Arms: edges as they leave a node, the straight lines along them, and lines that begin elsewhere.

Number ``2 * edge + side`` names an arm (side 0: it leaves the first node of its edge).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadGraph, points_along

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NEAR_M: Final = 12.0
FAR_M: Final = 32.0
"""The line of an arm is taken between these distances from its junction: nearer it is bent, for 7 m
where roads 8 m wide part at 15 degrees, and by smoothing.
"""
LEAST_M: Final = 6.0
"""Minimum length that the line of an arm is taken over."""
LINE_M: Final = 12.0
"""Length that the line of a dead end, or of a road at its side road, is fitted over."""
STRAIGHT_COS: Final = np.cos(np.radians(25))
"""Two arms are one straight road if they turn by less than 25 degrees."""
SIDE_SIN: Final = np.sin(np.radians(35))
"""A side road leaves the road at 35 degrees or more: at less its place along it is uncertain."""


def arms_of(network: RoadGraph, nodes: Ints, degree: int = 3) -> Ints:
    """Return the arms of nodes of a degree, int64 (node, degree)."""
    flat = network.ends.reshape(-1)
    order = np.argsort(flat, kind="stable")
    first = np.searchsorted(flat[order], nodes)
    arms: Ints = order[first[:, None] + np.arange(degree)]
    return arms


def lines_of_arms(
    network: RoadGraph, arms: Ints, between: tuple[Floats, Floats] | None = None
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return where the straight part of arms begins, their headings, and which are long enough.

    A straight line is fitted to 17 points of each arm: two of them would give its heading with
    nearly twice the error. ``between`` holds its least and largest distance from the node in
    metres; None: 12 m (or a third of the edge) and 32 m.
    """
    edge, last = arms // 2, arms % 2 == 1
    length = network.length_m[edge]
    near, far = between or (np.minimum(NEAR_M, length / 3), FAR_M)
    far = np.minimum(far, length)
    share = np.linspace(-1.0, 1.0, 17)
    along = np.multiply.outer((1 - share) / 2, near) + np.multiply.outer((1 + share) / 2, far)
    along = np.where(last, length - along, along)
    line = np.broadcast_to(edge, along.shape).ravel()
    xy = points_along(network.lines, line, along.ravel()).reshape(*along.shape, 2)
    step = np.einsum("p,p...->...", share, xy) / (share**2).sum()
    size = np.linalg.norm(step, axis=-1)
    heading = step / np.maximum(size, 1e-9)[..., None]
    return xy.mean(axis=0) - step, heading, far - near >= LEAST_M


def cosines_of_others(heading: Floats) -> Floats:
    """Return the cosines between the other two of three arms for every arm, (3, node)."""
    return np.stack([(heading[:, k - 2] * heading[:, k - 1]).sum(axis=1) for k in range(3)])


def cross(a: Floats, b: Floats) -> Floats:
    """Return the cross products of vectors of the plane, (...)."""
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0], np.float64)


def with_junctions_at(
    network: RoadGraph, nodes: Ints, arms: Ints, cut_m: Floats, xy: Floats
) -> RoadGraph:
    """Return a network with moved junctions; ``cut_m`` metres of each arm become straight.

    A junction with an arm too short for that stays, and one with an edge that returns to it.
    """
    edge = arms // 2
    total = np.bincount(edge.ravel(), weights=cut_m.ravel(), minlength=len(network.lines))
    moves = (total[edge] + LEAST_M <= network.length_m[edge]).all(axis=1)
    first, second, third = np.sort(edge, axis=1).T
    moves &= (first < second) & (second < third)
    return with_arms_begun_at(
        network, nodes[moves], arms[moves].ravel(), cut_m[moves].ravel(), xy[moves]
    )


def with_arms_begun_at(
    network: RoadGraph, nodes: Ints, arms: Ints, cut_m: Floats, xy: Floats
) -> RoadGraph:
    """Return a network with moved nodes, whose arms run straight to them.

    Parameters
    ----------
    arms, cut_m
        As many arms for each node in turn, int64 (arm,), and how many metres of each become
        straight, float64 (arm,).
    xy
        New positions of the nodes, float64 (node, 2).
    """
    places, lines = network.nodes.copy(), network.lines.copy()
    places[nodes] = xy
    xy = np.repeat(xy, len(arms) // max(len(nodes), 1), axis=0)
    edge, side = np.divmod(arms, 2)
    changed, line = np.unique(edge, return_inverse=True)
    length = network.length_m[changed]
    kept_from, kept_to = np.full(len(changed), -1.0), length + 1
    cut_at = np.where(side == 1, length[line] - cut_m, cut_m)
    kept_from[line[side == 0]] = cut_at[side == 0]
    kept_to[line[side == 1]] = cut_at[side == 1]
    corner = shapely.get_coordinates(shapely.line_interpolate_point(lines[edge], cut_at))
    vertices, owner = shapely.get_coordinates(lines[changed], return_index=True)
    along = np.cumsum(np.linalg.norm(np.diff(vertices, axis=0, prepend=vertices[:1]), axis=1))
    along -= along[np.searchsorted(owner, np.arange(len(changed)))][owner]
    kept = (along > kept_from[owner]) & (along < kept_to[owner])
    ends = np.where(side == 1, np.inf, -np.inf)
    owner = np.concatenate([line, line, owner[kept]])
    order = np.lexsort([np.concatenate([ends, cut_at, along[kept]]), owner])
    points = np.concatenate([xy, corner, vertices[kept]])[order]
    lines[changed] = shapely.linestrings(points, indices=owner[order])
    return replace(network, nodes=places, lines=lines)
