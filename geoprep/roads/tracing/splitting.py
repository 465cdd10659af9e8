"""Edges cut where something is to join them, and edges added: how networks are mended."""

from __future__ import annotations

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.ops import substring

from geoprep.roads.network import RoadNetwork
from geoprep.roads.shapes import segments
from geoprep.roads.tracing.graph import assembled

_SAME_M = 0.05
"""Nearer than this to its end, an edge is not cut: the end is the place."""


def with_joins(
    network: RoadNetwork,
    starts: NDArray[np.int64],
    edges: NDArray[np.int64],
    along: NDArray[np.float64],
) -> RoadNetwork:
    """Return a network with straight edges from nodes to places on other edges.

    Parameters
    ----------
    starts
        int64 (join,): node at which a new edge begins.
    edges, along
        int64 and float64 (join,): edge that it leads to, and the place in metres along it.
    """
    if not len(starts):
        return network
    cut = _Cut(network)
    targets = np.empty(len(starts), np.int64)
    for edge in np.unique(edges).tolist():
        mine = np.flatnonzero(edges == edge)
        mine = mine[np.argsort(along[mine], kind="stable")]
        targets[mine] = cut.at(edge, along[mine].tolist())
    fresh = np.column_stack([starts, targets])[starts != targets]
    return assembled(cut.with_edges(fresh))


class _Cut:
    """A network whose edges are cut one after another."""

    def __init__(self, network: RoadNetwork) -> None:
        self._network = network
        self._lines, self._ends = list(network.lines), network.ends.tolist()
        self._nodes, self._speed = network.nodes.tolist(), network.speed_mph.tolist()

    def at(self, edge: int, places: list[float]) -> list[int]:
        """Cut an edge at places in rising order; return the node at each."""
        line, (node, last) = self._network.lines[edge], self._network.ends[edge].tolist()
        length, begin = line.length, 0.0
        made, pieces = [], []
        for place in places:
            if place - begin > _SAME_M and length - place > _SAME_M:
                pieces.append((substring(line, begin, place), [node, len(self._nodes)]))
                self._nodes.append(list(pieces[-1][0].coords[-1]))
                begin, node = place, len(self._nodes) - 1
            made.append(node if place - begin <= _SAME_M else last)
        if pieces:
            pieces.append((substring(line, begin, length), [node, last]))
            self._lines[edge], self._ends[edge] = pieces[0]
            self._lines += [piece for piece, _ in pieces[1:]]
            self._ends += [ends for _, ends in pieces[1:]]
            self._speed += [self._speed[edge]] * (len(pieces) - 1)
        return made

    def with_edges(self, ends: NDArray[np.int64]) -> RoadNetwork:
        """Return the network with straight edges of unknown speed added."""
        nodes, lines = np.array(self._nodes), np.empty(len(self._lines) + len(ends), object)
        lines[:] = [*self._lines, *segments(nodes[ends])]
        return RoadNetwork(
            nodes=nodes,
            ends=np.concatenate([np.array(self._ends), ends]).astype(np.int64),
            lines=lines,
            speed_mph=np.array(self._speed + [np.nan] * len(ends)),
            crs=self._network.crs,
        )


def anchored(
    lines: NDArray[np.object_], ends: NDArray[np.int64], nodes: NDArray[np.float64]
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
) -> RoadNetwork:
    """Return the network of lines that join where their ends are the same (to 0.1 mm)."""
    ends = np.stack(
        [shapely.get_coordinates(shapely.get_point(lines, end)) for end in (0, -1)], axis=1
    ).reshape(-1, 2)
    nodes, number = np.unique(np.round(ends, 4), axis=0, return_inverse=True)
    pairs = number.reshape(-1, 2).astype(np.int64)
    return RoadNetwork(nodes, pairs, anchored(lines, pairs, nodes), speed, crs)
