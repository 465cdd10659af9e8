"""Operations on road networks as graphs: select, connect, cut and combine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.ops import substring

from geoprep.roads.chains import renumbered, with_chains_joined
from geoprep.roads.network import RoadGraph, line_ends, segments

Ints = NDArray[np.int64]

_SAME_M = 0.05
"""An edge is not cut closer to its end than this: the node there is used."""


def degrees(network: RoadGraph) -> Ints:
    """Return the number of edge ends at every node, int64 (node,); a loop counts twice."""
    return np.bincount(network.ends.reshape(-1), minlength=len(network.nodes))


def subnetwork(network: RoadGraph, edges: NDArray[np.bool_]) -> RoadGraph:
    """Return the chosen edges of a network and the nodes that they join."""
    if edges.all():
        return network
    used, ends = renumbered(network.ends[edges])
    return network.parts(network.nodes[used], ends, network.lines[edges], edges)


def connected(pairs: Ints, count: int) -> tuple[int, NDArray[np.int32]]:
    """Return the number of connected components of a graph, and the component of every node."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(pairs), np.int8), pairs.T), shape=(count, count))
    number, component = connected_components(links, directed=False)
    return int(number), component


def edge_components(network: RoadGraph) -> NDArray[np.int32]:
    """Return the number of the connected component that every edge belongs to, int32 (edge,)."""
    if not len(network.ends):
        return np.empty(0, np.int32)
    return connected(network.ends, len(network.nodes))[1][network.ends[:, 0]]


def side_by_side(networks: Sequence[RoadGraph]) -> RoadGraph:
    """Return networks of one CRS as one network, without connecting them."""
    before = np.cumsum([0, *(len(one.nodes) for one in networks[:-1])])
    known = [one.confidence for one in networks if one.confidence is not None]
    return RoadGraph(
        nodes=np.concatenate([one.nodes for one in networks]),
        ends=np.concatenate([n.ends + k for n, k in zip(networks, before.tolist(), strict=True)]),
        lines=np.concatenate([one.lines for one in networks]),
        speed_mph=np.concatenate([one.speed_mph for one in networks]),
        crs=networks[0].crs,
        confidence=np.concatenate(known) if len(known) == len(networks) else None,
    )


def anchored(
    lines: NDArray[np.object_], ends: Ints, nodes: NDArray[np.float64]
) -> NDArray[np.object_]:
    """Return lines whose first and last vertices are moved to the nodes of their edges."""
    xy, line = shapely.get_coordinates(lines, return_index=True)
    counts = np.bincount(line, minlength=len(lines))
    last = np.cumsum(counts) - 1
    xy[last - counts + 1], xy[last] = nodes[ends[:, 0]], nodes[ends[:, 1]]
    moved: NDArray[np.object_] = shapely.set_coordinates(lines.copy(), xy)
    return moved


def joined_at_ends(
    lines: NDArray[np.object_], speed: NDArray[np.float64], crs: str | None
) -> RoadGraph:
    """Return the network of lines that meet where their end points agree to 0.1 mm."""
    xy = np.round(line_ends(lines).reshape(-1, 2), 4)
    nodes, number = np.unique(xy, axis=0, return_inverse=True)
    pairs = number.reshape(-1, 2).astype(np.int64)
    return RoadGraph(nodes, pairs, anchored(lines, pairs, nodes), speed, crs)


def with_links(
    network: RoadGraph,
    starts: Ints,
    edges: Ints,
    along: NDArray[np.float64],
    lines: NDArray[np.object_] | None = None,
) -> RoadGraph:
    """Return a network with edges added from nodes to positions on other edges."""
    if not len(starts):
        return network
    cutter = _EdgeCutter(network)
    targets = np.empty(len(starts), np.int64)
    for edge in np.unique(edges).tolist():
        mine = np.flatnonzero(edges == edge)
        mine = mine[np.argsort(along[mine], kind="stable")]
        targets[mine] = cutter.cut(edge, along[mine].tolist())
    kept = starts != targets
    made = cutter.with_edges(np.column_stack([starts, targets])[kept])
    if lines is not None:
        bent = np.flatnonzero(shapely.is_geometry(lines[kept]))
        edge = len(made.lines) - np.count_nonzero(kept) + bent
        made.lines[edge] = anchored(lines[kept][bent], made.ends[edge], made.nodes)
    return with_chains_joined(made)


class _EdgeCutter:
    """A network whose edges are cut one after another."""

    def __init__(self, network: RoadGraph) -> None:
        self._network = network
        self._lines, self._ends = list(network.lines), network.ends.tolist()
        self._nodes, self._speed = network.nodes.tolist(), network.speed_mph.tolist()

    def cut(self, edge: int, positions: list[float]) -> list[int]:
        """Cut an edge at rising positions in metres; return the node at each."""
        line, (node, last) = self._network.lines[edge], self._network.ends[edge].tolist()
        length, begin = line.length, 0.0
        found, pieces = [], []
        for position in positions:
            if position - begin > _SAME_M and length - position > _SAME_M:
                pieces.append((substring(line, begin, position), [node, len(self._nodes)]))
                self._nodes.append(list(pieces[-1][0].coords[-1]))
                begin, node = position, len(self._nodes) - 1
            found.append(node if position - begin <= _SAME_M else last)
        if pieces:
            pieces.append((substring(line, begin, length), [node, last]))
            self._lines[edge], self._ends[edge] = pieces[0]
            self._lines += [piece for piece, _ in pieces[1:]]
            self._ends += [ends for _, ends in pieces[1:]]
            self._speed += [self._speed[edge]] * (len(pieces) - 1)
        return found

    def with_edges(self, ends: Ints) -> RoadGraph:
        """Return the network with straight edges of unknown speed added between nodes."""
        nodes, lines = np.array(self._nodes), np.empty(len(self._lines) + len(ends), object)
        lines[:] = [*self._lines, *segments(nodes[ends])]
        return RoadGraph(
            nodes=nodes,
            ends=np.concatenate([np.array(self._ends), ends]).astype(np.int64),
            lines=lines,
            speed_mph=np.array(self._speed + [np.nan] * len(ends)),
            crs=self._network.crs,
        )
