"""Chains of edges that follow each other: found in order, and joined into single edges."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadGraph, line_strings
from geoprep.speed import MPS_PER_MPH

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chains:
    """Edges in walking order, chain by chain."""

    edges: Ints  # (edge,): every edge once
    # (edge,): whether ``edges[i]`` is walked from its second node to its first
    backwards: NDArray[np.bool_]
    offsets: Ints  # (chain + 1,): chain ``c`` is ``edges[offsets[c]:offsets[c + 1]]``
    ends: Ints  # (chain, 2): the first and last node of every chain


def chains(ends: Ints, node_count: int) -> Chains:
    """Return the chains of edges that are linked by nodes of degree 2.

    A ring that touches nothing else is one chain that begins and ends at one of its nodes.
    """
    if not len(ends):
        none = np.empty(0, np.int64)
        return Chains(none, none.astype(bool), np.zeros(1, np.int64), np.empty((0, 2), np.int64))
    links, nodes = _links(ends, node_count)
    order, offsets, links, nodes = _in_order(links, nodes, len(ends))
    place = np.empty(len(ends), np.int64)
    place[order] = np.arange(len(ends))
    between = np.full(len(ends), -1)  # node between the edges at a place and the next
    between[place[links].min(axis=1)] = nodes
    first, last = offsets[:-1], offsets[1:] - 1
    a, b = ends[order].T
    entered = np.roll(between, 1)
    entered[first] = -1
    backwards = np.where(between >= 0, b != between, (entered >= 0) & (a != entered))
    start, stop = np.where(backwards, b, a), np.where(backwards, a, b)
    return Chains(order, backwards, offsets, np.column_stack([start[first], stop[last]]))


def _links(ends: Ints, node_count: int) -> tuple[Ints, Ints]:
    """Return the pairs of edges that meet at a node of degree 2, and that node."""
    flat = ends.reshape(-1)
    degree = np.bincount(flat, minlength=node_count)
    by_node = np.argsort(flat, kind="stable")
    inner = np.flatnonzero(degree == 2)
    at = (np.cumsum(degree) - degree)[inner]
    pairs = np.column_stack([by_node[at] // 2, by_node[at + 1] // 2])
    distinct = pairs[:, 0] != pairs[:, 1]  # both ends of one edge: already a ring of its own
    return pairs[distinct], inner[distinct]


def _in_order(links: Ints, nodes: Ints, count: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the edges chain by chain, the offsets of chains, and the links without one per ring.

    The chains are linked end to start into one long path; a breadth-first search walks it from one
    end to the other.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    def graph(pairs: Ints) -> coo_array:
        return coo_array((np.ones(len(pairs), np.int8), pairs.T), shape=(count, count)).tocsr()

    number, chain = connected_components(graph(links), directed=False)
    members = np.bincount(chain, minlength=number)
    ring = np.bincount(chain[links[:, 0]], minlength=number) == members
    _, cut = np.unique(chain[links[:, 0]], return_index=True)
    cut = cut[ring[chain[links[cut, 0]]]]
    links, nodes = np.delete(links, cut, axis=0), np.delete(nodes, cut)
    degree = np.bincount(links.reshape(-1), minlength=count)
    tips = np.flatnonzero(degree < 2)
    tips = tips[np.argsort(chain[tips], kind="stable")]
    twice = np.where(degree[tips] == 0, 2, 1)  # a single edge is both ends of its chain
    pairs = np.repeat(tips, twice).reshape(number, 2)
    ties = np.column_stack([pairs[:-1, 1], pairs[1:, 0]])
    path = graph(np.concatenate([links, ties]))
    order = breadth_first_order(path, pairs[0, 0], directed=False, return_predecessors=False)
    offsets = np.concatenate([[0], np.cumsum(members)])
    return order.astype(np.int64), offsets, links, nodes


def lines_through(walk: Chains, ends: Ints, nodes: NDArray[np.float64]) -> NDArray[np.object_]:
    """Return the line through the nodes of every chain, object (chain,)."""
    counts = np.diff(walk.offsets)
    start = np.where(walk.backwards, ends[walk.edges, 1], ends[walk.edges, 0])
    chain = np.repeat(np.arange(len(counts)), counts)
    vertex = np.insert(start, walk.offsets[1:], walk.ends[:, 1])
    member = np.insert(chain, walk.offsets[1:], np.arange(len(counts)))
    return line_strings(nodes[vertex], member)


def with_chains_joined(network: RoadGraph) -> RoadGraph:
    """Return a network without nodes of degree 2 and without isolated nodes.

    A joined edge takes as long to travel as its parts of known speed. A ring keeps one node.
    """
    walk = chains(network.ends, len(network.nodes))
    if len(walk.ends) == len(network.ends):
        used, ends = renumbered(network.ends)
        return replace(network, nodes=network.nodes[used], ends=ends)
    used, ends = renumbered(walk.ends)
    return RoadGraph(
        nodes=network.nodes[used],
        ends=ends,
        lines=_joined_lines(walk, network.lines),
        speed_mph=_joined_speeds(walk, network),
        crs=network.crs,
    )


def renumbered(ends: Ints) -> tuple[Ints, Ints]:
    """Return the nodes that edges use, rising, and the edges' nodes counted among those."""
    used, numbers = np.unique(ends, return_inverse=True)
    return used, numbers.reshape(-1, 2).astype(np.int64)


def _joined_speeds(walk: Chains, network: RoadGraph) -> NDArray[np.float64]:
    """Return the speed of every chain in mph: its known length over its known travel time."""
    chain = np.repeat(np.arange(len(walk.ends)), np.diff(walk.offsets))
    length, time = network.length_m[walk.edges], network.travel_time_s[walk.edges]
    known = np.isfinite(time)
    metres = np.bincount(chain[known], weights=length[known], minlength=len(walk.ends))
    seconds = np.bincount(chain[known], weights=time[known], minlength=len(walk.ends))
    with np.errstate(invalid="ignore", divide="ignore"):
        mph: NDArray[np.float64] = metres / seconds / MPS_PER_MPH
    return mph


def _joined_lines(walk: Chains, lines: NDArray[np.object_]) -> NDArray[np.object_]:
    """Return the lines of every chain as one line."""
    counts = np.diff(walk.offsets)
    xy, part = shapely.get_coordinates(lines[walk.edges], return_index=True)
    lengths = np.bincount(part, minlength=len(walk.edges))
    first = np.cumsum(lengths) - lengths
    # Lines that are walked backwards are read from their last vertex.
    within = ranges(np.zeros_like(lengths), lengths)
    source = np.where(
        walk.backwards[part], first[part] + lengths[part] - 1 - within, first[part] + within
    )
    begins = np.zeros(len(walk.edges), np.bool_)
    begins[walk.offsets[:-1]] = True
    wanted = (within > 0) | begins[part]  # a follower's first vertex is the last one before it
    chain = np.repeat(np.arange(len(counts)), counts)[part]
    return line_strings(xy[source][wanted], chain[wanted])


def ranges(first: Ints, counts: Ints) -> Ints:
    """Return ``first[i], first[i] + 1, ...``, ``counts[i]`` numbers for each i in turn.

    Examples
    --------
    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(counts) - counts
    steps: Ints = np.arange(counts.sum()) + np.repeat(first - before, counts)
    return steps
