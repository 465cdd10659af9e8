"""Shortest distances between places: from junction to junction, and the way to and from them.

A path between two places on edges leaves its first edge at one of two ends and enters its last at
one of two, or stays on the one edge that both are on. So distances between all junctions, and four
sums per pair of places, are all there is to it: no edge is ever split, and what a part of an edge
costs is that edge's own cost by length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.roads.network import RoadNetwork
from geoprep.roads.paths.places import Places
from geoprep.speed import MPS_PER_MPH

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Weight = Literal["length", "time"]
_FEW_NODES: Final = 32
"""Up to here a matrix is done before a sparse one is made."""


@dataclass(frozen=True, eq=False)
class Track:
    """A network as paths see it.

    Attributes
    ----------
    nodes
        float64 (node, 2): x and y.
    ends
        int64 (edge, 2): rows of ``nodes``.
    cost
        float64 (edge,): metres or seconds from end to end.
    per_m
        float64 (edge,): cost per metre along the edge's line.
    length_m
        float64 (edge,): length of the line.
    """

    nodes: NDArray[np.float64]
    ends: NDArray[np.int64]
    cost: NDArray[np.float64]
    per_m: NDArray[np.float64]
    length_m: NDArray[np.float64]

    def cut_at(self, places: Places) -> Track:
        """Return the track with every edge that has a place inside measured along its line.

        Only edges whose given length is not that of their line change.
        """
        edge, along = places.edge[places.found], places.along_m[places.found]
        edge = edge[(along > 0) & (along < self.length_m[edge])]
        measured = self.length_m[edge] * self.per_m[edge]
        if np.array_equal(self.cost[edge], measured):
            return self
        cost = self.cost.copy()
        cost[edge] = measured
        return Track(self.nodes, self.ends, cost, self.per_m, self.length_m)

    @cached_property
    def between_nodes(self) -> NDArray[np.float64]:
        """Shortest distances between all nodes, float64 (node, node); infinite without a path.

        For networks of a chip: memory grows with the square of the nodes.
        """
        if len(self.nodes) <= _FEW_NODES:
            return _between_few(self)
        from scipy.sparse.csgraph import dijkstra

        found: NDArray[np.float64] = dijkstra(graph_of(self)[0])
        return found

    def to_ends(self, places: Places) -> NDArray[np.float64]:
        """Return the cost from every place to both ends of its edge, float64 (place, 2).

        Infinite where there is no edge.
        """
        if not len(self.ends):
            return np.full((len(places), 2), np.inf)
        first = places.along_m * self.per_m[places.edge]
        cost = self.cost[places.edge]
        first = np.where(places.along_m >= self.length_m[places.edge], cost, first)
        both = np.column_stack([first, cost - first])
        both[~places.found] = np.inf
        return both


def track_of(
    network: RoadNetwork,
    weight: Weight = "length",
    lengths_m: NDArray[np.float64] | None = None,
    *,
    name: str = "the network",
) -> Track:
    """Return a network with what its edges cost.

    Parameters
    ----------
    weight
        ``length`` in metres, or ``time`` in seconds.
    lengths_m
        float64 (edge,): lengths from elsewhere than the lines (published graphs carry lengths on a
        sphere).

    Raises
    ------
    UsageError
        Time is asked for, and the speed of an edge is not known.
    """
    along = network.length_m
    per_m = np.ones(len(along))
    if weight == "time":
        unknown = int(np.isnan(network.speed_mph).sum())
        if unknown:
            raise UsageError(
                f"{name}: the speed of {unknown} of {len(along)} edges is not known, so travel "
                "times are not; use lengths, or give every edge a speed"
            )
        per_m = 1 / (network.speed_mph * MPS_PER_MPH)
    cost = (along if lengths_m is None else lengths_m) * per_m
    return Track(network.nodes, network.ends, cost, per_m, along)


def _between_few(track: Track) -> NDArray[np.float64]:
    """Return shortest distances between all of a few nodes, by way of one after another (Floyd)."""
    count, (start, stop) = len(track.nodes), track.ends.T
    found = np.full((count, count), np.inf)
    np.minimum.at(found, (start, stop), track.cost)
    np.minimum.at(found, (stop, start), track.cost)
    np.fill_diagonal(found, 0.0)
    for node in range(count):
        np.minimum(found, found[:, node, None] + found[node], out=found)
    return found


def graph_of(track: Track) -> tuple[csr_array, NDArray[np.int64]]:
    """Return the cheapest edge between every two neighbours, and its number for each entry.

    A sparse matrix (node, node) of costs with both directions; loops lead nowhere and stay.
    """
    from scipy.sparse import csr_array

    count, edges = len(track.nodes), len(track.ends)
    start, stop = track.ends.T.ravel(), track.ends[:, ::-1].T.ravel()
    edge = np.tile(np.arange(edges), 2)
    # A matrix that is made of coordinates adds parallel edges up: the cheapest is picked before.
    order = np.lexsort((track.cost[edge], stop, start))
    start, stop, edge = start[order], stop[order], edge[order]
    first = np.ones(len(start), dtype=bool)
    first[1:] = (start[1:] != start[:-1]) | (stop[1:] != stop[:-1])
    start, stop, edge = start[first], stop[first], edge[first]
    offsets = np.searchsorted(start, np.arange(count + 1))
    return csr_array((track.cost[edge], stop, offsets), shape=(count, count)), edge


def distances(track: Track, places: Places) -> NDArray[np.float64]:
    """Return shortest distances between all places, float64 (place, place).

    Infinite where there is no path, or no edge under a place; 0 from a place to itself. Memory
    grows with the square of the places: for networks of a chip.
    """
    found = np.full((len(places), len(places)), np.inf)
    if len(track.ends):
        edge = places.edge
        first, second = track.ends[edge].T
        to_first, to_second = track.to_ends(places).T
        nodes = track.between_nodes
        near = np.minimum(to_first[:, None] + nodes[first], to_second[:, None] + nodes[second])
        found = np.minimum(near[:, first] + to_first, near[:, second] + to_second)
        one = (edge[:, None] == edge) & places.found
        here, there = np.nonzero(one)
        found[here, there] = np.minimum(
            found[here, there], np.abs(to_first[here] - to_first[there])
        )
    np.fill_diagonal(found, 0.0)
    return found
