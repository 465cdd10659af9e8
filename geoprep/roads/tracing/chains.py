"""Edges that follow each other, put in order: pixels become lines, and pieces roads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chains:
    """Edges in the order in which they are walked, chain by chain.

    Attributes
    ----------
    edges
        int64 (edge,): every edge once.
    backwards
        bool (edge,): whether ``edges[i]`` is walked from its second end to its first.
    offsets
        int64 (chain + 1,): chain ``c`` is ``edges[offsets[c]:offsets[c + 1]]``.
    ends
        int64 (chain, 2): the nodes that a chain joins.
    """

    edges: Ints
    backwards: NDArray[np.bool_]
    offsets: Ints
    ends: Ints


def chains(ends: Ints, node_count: int) -> Chains:
    """Join edges where exactly two of them meet.

    A ring that touches nothing else becomes one chain that begins and ends at one of its nodes.

    Parameters
    ----------
    ends
        int64 (edge, 2): nodes that an edge joins.
    node_count
        Nodes are numbered below it.
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
    """Return pairs of edges that meet at a node of two ends, and that node."""
    flat = ends.reshape(-1)
    degree = np.bincount(flat, minlength=node_count)
    by_node = np.argsort(flat, kind="stable")
    inner = np.flatnonzero(degree == 2)
    at = (np.cumsum(degree) - degree)[inner]
    pairs = np.column_stack([by_node[at] // 2, by_node[at + 1] // 2])
    distinct = pairs[:, 0] != pairs[:, 1]  # both ends of one edge: a ring of its own already
    return pairs[distinct], inner[distinct]


def _in_order(links: Ints, nodes: Ints, count: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the edges chain by chain, where chains begin, and the links, one a ring taken out.

    The chains are tied end to start into one long path, which a breadth-first search then walks
    from one end to the other.
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
    twice = np.where(degree[tips] == 0, 2, 1)  # an edge on its own is both tips of its chain
    pairs = np.repeat(tips, twice).reshape(number, 2)
    ties = np.column_stack([pairs[:-1, 1], pairs[1:, 0]])
    path = graph(np.concatenate([links, ties]))
    order = breadth_first_order(path, pairs[0, 0], directed=False, return_predecessors=False)
    offsets = np.concatenate([[0], np.cumsum(members)])
    return order.astype(np.int64), offsets, links, nodes
