"""Clean-up of a traced network: spurs, small components, uneven lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.graph import (
    anchored,
    degrees,
    edge_components,
    ranges,
    subnetwork,
    with_chains_joined,
)
from geoprep.roads.network import RoadGraph, line_strings, points_along

_MOST_ROUNDS: Final = 8
_CORNER: Final = 1.5
"""Distance of the corners of a wide road's end in steps along rows and columns: sqrt(2), nearly."""

_BACK_M: Final = 5.0
_BACK_COS: Final = np.cos(np.radians(120))
ReachAt = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def nowhere_wide(xy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 0 for every place."""
    return np.zeros(len(xy))


def without_spurs(
    network: RoadGraph,
    spur_m: float,
    kept: NDArray[np.bool_] | None = None,
    reach_at: ReachAt = nowhere_wide,
) -> RoadGraph:
    """Return a network without spurs: dead ends at a junction that are shorter than ``spur_m``.

    In a wide area, those that end within it are spurs too: thinning forks to the corners of its
    end. ``reach_at`` returns the metres from places to the background, 0 where a road is not wide.

    Spurs are removed in rounds, the longest of each junction last: where two roads meet once a spur
    is gone they become one, which may itself be a spur. A road without any junction is not a spur.
    Loops shorter than ``spur_m`` are removed too.
    """
    stays = np.zeros(len(network.nodes), np.bool_) if kept is None else kept
    kept_xy = {tuple(xy) for xy in network.nodes[stays].tolist()}
    for _ in range(_MOST_ROUNDS):
        removed = _spurs(network, spur_m, stays, _CORNER * reach_at(network.nodes))
        if not removed.any():
            break
        network = with_chains_joined(subnetwork(network, ~removed))
        stays = np.array([tuple(xy) in kept_xy for xy in network.nodes.tolist()], np.bool_)
    return network


def _spurs(
    network: RoadGraph, spur_m: float, kept: NDArray[np.bool_], corner_m: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return the edges to remove in one round: of a junction's spurs, all but the longest.

    Without both short branches of a forked end, the road would be cut short. Those to the corners
    of a wide end go both: the road is extended later.
    """
    length, (a, b) = network.length_m, network.ends.T
    degree = degrees(network)
    tip_a, tip_b = degree[a] == 1, degree[b] == 1
    root = np.where(tip_a, b, a)
    limit = np.maximum(spur_m, corner_m[root])
    loop = (a == b) & (length < limit)
    spur = (tip_a ^ tip_b) & (length < limit) & ~kept[np.where(tip_a, a, b)]
    count = np.bincount(root[spur], minlength=len(degree))
    # If all edges of a junction but one are spurs, the longest of them continues the road.
    last = np.flatnonzero(spur & (count[root] >= degree[root] - 1) & (corner_m[root] < spur_m))
    order = last[np.lexsort((-length[last], root[last]))]
    _, first = np.unique(root[order], return_index=True)
    spur[order[first]] = False
    removed: NDArray[np.bool_] = spur | loop
    return removed


def without_small_components(network: RoadGraph, min_length_m: float) -> RoadGraph:
    """Return a network without connected components of less than ``min_length_m`` in total."""
    component = edge_components(network)
    total = np.bincount(component, weights=network.length_m)
    return subnetwork(network, total[component] >= min_length_m)


def smoothed(network: RoadGraph, sigma_m: float, step_m: float) -> RoadGraph:
    """Return a network whose lines are smoothed by a Gaussian along them; nodes stay in place.

    The Gaussian is applied as steps of the heat equation with fixed ends, so that lines of any
    length keep both.
    """
    if not sigma_m or not len(network.lines):
        return network
    xy, edge, inner = _resampled(network.lines, step_m)
    # One step moves vertices by a quarter of their second difference: it adds a variance of half a
    # squared vertex distance. All lines in a row are faster than the inner vertices by index.
    row, share = np.ascontiguousarray(xy.T), np.zeros(len(xy))
    share[inner] = 0.25
    for _ in range(round(2 * (sigma_m / step_m) ** 2)):
        change = row[:, :-2] - 2 * row[:, 1:-1]
        change += row[:, 2:]
        change *= share[1:-1]
        row[:, 1:-1] += change
    lines = anchored(line_strings(row.T, edge), network.ends, network.nodes)
    return replace(network, lines=lines)


def _resampled(
    lines: NDArray[np.object_], step_m: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return equally spaced vertices of lines."""
    length = shapely.length(lines)
    counts = np.maximum(np.round(length / step_m), 1).astype(np.int64) + 1
    edge = np.repeat(np.arange(len(counts)), counts)
    number = ranges(np.zeros_like(counts), counts)
    vertices = points_along(lines, edge, number * (length / (counts - 1))[edge])
    inner = np.flatnonzero((number > 0) & (number < counts[edge] - 1))
    return vertices, edge, inner


def simplified(network: RoadGraph, tolerance_m: float) -> RoadGraph:
    """Return a network with fewer vertices (Douglas and Peucker); the ends of lines stay."""
    lines = shapely.simplify(network.lines, tolerance_m, preserve_topology=False)
    flat = shapely.length(lines) == 0  # a loop smaller than the tolerance
    return replace(network, lines=np.where(flat, network.lines, lines))


def begun_forward(network: RoadGraph) -> RoadGraph:
    """Return a network whose edges do not begin by running back, where their nodes have moved.

    The second vertex of a line goes if it is less than 5 m from the first, and the line turns there
    by more than 120 degrees.
    """
    lines, loop = network.lines.copy(), network.ends[:, 0] == network.ends[:, 1]
    least = np.where(loop, 4, 2)  # vertices
    for first, second, third in ((0, 1, 2), (-1, -2, -3)):
        left = np.flatnonzero(shapely.get_num_points(lines) > least)
        while len(left):
            a, b, c = (
                shapely.get_coordinates(shapely.get_point(lines[left], number))
                for number in (first, second, third)
            )
            size = np.linalg.norm(b - a, axis=1)
            cosine = ((b - a) * (c - b)).sum(axis=1)
            cosine /= np.maximum(size * np.linalg.norm(c - b, axis=1), 1e-9)
            left = left[(size < _BACK_M) & (cosine < _BACK_COS)]
            for edge in left.tolist():
                xy = np.delete(shapely.get_coordinates(lines[edge]), second, axis=0)
                lines[edge] = shapely.LineString(xy)
            left = left[shapely.get_num_points(lines[left]) > least[left]]
    return replace(network, lines=lines)
