"""What goes from a network: spurs, crumbs, vertices that say nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadNetwork
from geoprep.roads.tracing.graph import assembled

_MOST_ROUNDS = 8


def degrees(network: RoadNetwork) -> NDArray[np.int64]:
    """Return how many ends of edges meet at every node; a loop counts twice."""
    return np.bincount(network.ends.reshape(-1), minlength=len(network.nodes))


def chosen(network: RoadNetwork, edges: NDArray[np.bool_]) -> RoadNetwork:
    """Return some edges of a network, and the nodes that they join."""
    if edges.all():
        return network
    used, ends = np.unique(network.ends[edges], return_inverse=True)
    return RoadNetwork(
        nodes=network.nodes[used],
        ends=ends.reshape(-1, 2).astype(np.int64),
        lines=network.lines[edges],
        speed_mph=network.speed_mph[edges],
        crs=network.crs,
    )


def without_spurs(
    network: RoadNetwork, spur_m: float, spared: NDArray[np.bool_] | None = None
) -> RoadNetwork:
    """Take out dead ends that branch off and are shorter than ``spur_m``, the shortest first.

    A road of its own, without a junction, is no spur. Where two roads meet once a spur is gone they
    become one, which may be a spur in turn. Loops as short go too.

    Parameters
    ----------
    spared
        bool (node,): dead ends that stay.
    """
    stay = np.zeros(len(network.nodes), np.bool_) if spared is None else spared
    at_border = {tuple(xy) for xy in network.nodes[stay].tolist()}
    for _ in range(_MOST_ROUNDS):
        goes = _spurs(network, spur_m, stay)
        if not goes.any():
            break
        network = assembled(chosen(network, ~goes))
        stay = np.array([tuple(xy) in at_border for xy in network.nodes.tolist()], np.bool_)
    return network


def _spurs(network: RoadNetwork, spur_m: float, spared: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the edges that go in one round: of the spurs of a junction, all but the longest.

    If two short ends of a fork both went, the road that they end would be cut short.
    """
    length, (a, b) = network.length_m, network.ends.T
    degree = degrees(network)
    loop = (a == b) & (length < spur_m)
    tip_a, tip_b = degree[a] == 1, degree[b] == 1
    spur = (tip_a ^ tip_b) & (length < spur_m) & ~spared[np.where(tip_a, a, b)]
    root = np.where(tip_a, b, a)
    count = np.bincount(root[spur], minlength=len(degree))
    # With all but one edge a spur, the longest of them is where the road goes on.
    last = np.flatnonzero(spur & (count[root] >= degree[root] - 1))
    order = last[np.lexsort((-length[last], root[last]))]
    _, first = np.unique(root[order], return_index=True)
    spur[order[first]] = False
    goes: NDArray[np.bool_] = spur | loop
    return goes


def components(network: RoadNetwork) -> NDArray[np.int32]:
    """Return the number of the connected part that every edge is in."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(network.nodes)
    graph = coo_array((np.ones(len(network.ends), np.int8), network.ends.T), shape=(count, count))
    part: NDArray[np.int32] = connected_components(graph, directed=False)[1]
    return part[network.ends[:, 0]] if len(network.ends) else np.empty(0, np.int32)


def without_crumbs(network: RoadNetwork, min_length_m: float) -> RoadNetwork:
    """Take out connected parts whose edges are shorter in all than ``min_length_m``."""
    part = components(network)
    total = np.bincount(part, weights=network.length_m)
    return chosen(network, total[part] >= min_length_m)


def simplified(network: RoadNetwork, tolerance_m: float) -> RoadNetwork:
    """Leave out vertices (Douglas and Peucker); ends stay where they are, loops stay open."""
    lines = shapely.simplify(network.lines, tolerance_m, preserve_topology=False)
    flat = shapely.length(lines) == 0  # a loop smaller than the tolerance
    return replace(network, lines=np.where(flat, network.lines, lines))
