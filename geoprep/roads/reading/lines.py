"""Lines that share points, to a network: the way in which APLS reads labels and proposals.

Every point of a line is a node, and points of exactly the same coordinates are one node. So lines
that cross without a common point (a bridge) do not meet. Then nodes that join just two pieces go,
and so do crumbs that no way of any length leads through.

A piece that two lines share is one edge. CosmiQ's program takes such a piece out altogether, by
mistake (it removes one edge for every time that it meets a twin, and meets each twice), which may
cut the truth in two: SpaceNet's Vegas chip 0 scores 0.73 for 0.82. ``as_published`` does the same,
for comparison with published figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadNetwork
from geoprep.roads.paths.distances import track_of
from geoprep.roads.tracing.graph import assembled
from geoprep.roads.tracing.pruning import chosen, components

_STRAIGHT: Final = 2

Move = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def network_from_lines(
    lines: NDArray[np.object_],
    speed_mph: NDArray[np.float64],
    crs: str | None,
    *,
    to_metres: Move | None = None,
    crumb: float = 5.0,
    crumb_nodes: int = 100,
    crumb_in_lines: bool = False,
    as_published: bool = False,
) -> RoadNetwork:
    """Return the network of lines.

    A piece that two lines share is one edge, with the higher speed. Where pieces are joined to one
    edge, it takes as long as they did. A ring that touches nothing keeps one node.

    Parameters
    ----------
    lines
        Object (n,): 2-D LineStrings; parts of a MultiLineString are lines like any others.
    speed_mph
        float64 (n,): NaN where unknown.
    crs
        What ``to_metres`` leads to.
    to_metres
        Coordinates of the lines (point, 2) to metres. Points are compared before.
    crumb, crumb_nodes
        Connected parts of at most so many points whose longest shortest path is below ``crumb`` are
        left out: 5 m and 100 for labels, as the reference program of APLS has it.
    crumb_in_lines
        Measure that path in the units of the lines, not in metres.
    as_published
        Leave out pieces that two lines share.
    """
    pieces = _pieces(lines, speed_mph)
    pieces = _marked(pieces) if as_published else _once(pieces)
    if crumb_in_lines:
        pieces = without_crumbs(pieces, crumb, crumb_nodes)
    moved = _moved(pieces, to_metres, crs)
    if not crumb_in_lines:
        moved = without_crumbs(moved, crumb, crumb_nodes)
    network = assembled(moved)
    return _without_twins(network) if as_published else network


def _pieces(lines: NDArray[np.object_], speed_mph: NDArray[np.float64]) -> RoadNetwork:
    """Return the network of all pieces between neighbouring points, in the lines' own plane."""
    xy, line = shapely.get_coordinates(lines, return_index=True)
    nodes, at = np.unique(xy, axis=0, return_inverse=True) if len(xy) else (np.empty((0, 2)), line)
    at = at.reshape(-1).astype(np.int64)
    follows = line[1:] == line[:-1]
    ends = np.column_stack([at[:-1], at[1:]])[follows]
    speed = speed_mph[line[1:][follows]]
    apart = ends[:, 0] != ends[:, 1]
    return _network(nodes, np.sort(ends[apart], axis=1), speed[apart], None)


def _once(pieces: RoadNetwork) -> RoadNetwork:
    """Return every piece once, with the highest speed that it has."""
    ends = pieces.ends
    fastest = np.lexsort((-np.nan_to_num(pieces.speed_mph), ends[:, 1], ends[:, 0]))
    first = fastest[np.unique(ends[fastest], axis=0, return_index=True)[1]]
    return _network(pieces.nodes, ends[first], pieces.speed_mph[first], None)


def _marked(pieces: RoadNetwork) -> RoadNetwork:
    """Return pieces that several lines share twice as often.

    So their nodes join at least four ends, and nothing is tied to a piece that is to go.
    """
    _, number, times = np.unique(pieces.ends, axis=0, return_inverse=True, return_counts=True)
    twins = np.flatnonzero(times[number.reshape(-1)] > 1)
    again = np.concatenate([np.arange(len(pieces.ends)), twins])
    return _network(pieces.nodes, pieces.ends[again], pieces.speed_mph[again], None)


def _without_twins(network: RoadNetwork) -> RoadNetwork:
    """Leave out the straight edges that another straight edge lies on."""
    straight = shapely.get_num_coordinates(network.lines) == _STRAIGHT
    _, number, times = np.unique(
        np.sort(network.ends, axis=1), axis=0, return_inverse=True, return_counts=True
    )
    number = number.reshape(-1)
    times = np.bincount(number, weights=straight, minlength=len(times))
    return chosen(network, ~(straight & (times[number] > 1)))


def _network(
    nodes: NDArray[np.float64],
    ends: NDArray[np.int64],
    speed: NDArray[np.float64],
    crs: str | None,
) -> RoadNetwork:
    made = np.empty(len(ends), object)
    made[:] = shapely.linestrings(nodes[ends])
    return RoadNetwork(nodes, ends, made, speed, crs)


def _moved(pieces: RoadNetwork, to_metres: Move | None, crs: str | None) -> RoadNetwork:
    if to_metres is None:
        return replace(pieces, crs=crs)
    nodes = to_metres(pieces.nodes) if len(pieces.nodes) else pieces.nodes
    return _network(nodes, pieces.ends, pieces.speed_mph, crs)


def without_crumbs(network: RoadNetwork, below: float, most_nodes: int) -> RoadNetwork:
    """Leave out connected parts of few nodes whose longest shortest path is below a length."""
    part = components(network)
    keep = np.ones(len(part), dtype=bool)
    for number in _small(network, part, below, most_nodes):
        edges = part == number
        nodes, ends = np.unique(network.ends[edges], return_inverse=True)
        pairs = ends.reshape(-1, 2).astype(np.int64)
        piece = _network(network.nodes[nodes], pairs, network.speed_mph[edges], None)
        keep[edges] = track_of(piece).between_nodes.max() >= below
    return _network(network.nodes, network.ends[keep], network.speed_mph[keep], network.crs)


def _small(
    network: RoadNetwork, part: NDArray[np.int32], below: float, most_nodes: int
) -> NDArray[np.int64]:
    """Return the parts of few nodes that fit into a box too small for a long way straight on."""
    count = int(part.max()) + 1 if len(part) else 0
    members = np.column_stack([np.repeat(part, 2), network.ends.ravel()])
    members = np.unique(members, axis=0)
    low, high = np.full((count, 2), np.inf), np.full((count, 2), -np.inf)
    np.minimum.at(low, members[:, 0], network.nodes[members[:, 1]])
    np.maximum.at(high, members[:, 0], network.nodes[members[:, 1]])
    nodes = np.bincount(members[:, 0], minlength=count)
    small = (nodes > 0) & (nodes <= most_nodes) & ((high - low).max(axis=1, initial=0) < below)
    return np.flatnonzero(small)
