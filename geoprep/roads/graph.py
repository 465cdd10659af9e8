"""Operations on road networks: select, connect, clip, combine, join chains of edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.ops import substring

from geoprep.components import connected
from geoprep.roads.network import SPEED_BACK, RoadGraph, line_ends, line_strings, segments
from geoprep.speed import MPS_PER_MPH

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
    rows, ends = renumbered(network.ends[edges])
    return network.parts(network.nodes[rows], ends, network.lines[edges], edges)


def edge_components(network: RoadGraph) -> Ints:
    """Return the number of the connected component that every edge belongs to, int64 (edge,)."""
    return connected(network.ends, len(network.nodes))[1][network.ends[:, 0]]


def side_by_side(networks: Sequence[RoadGraph]) -> RoadGraph:
    """Return networks of one CRS as one network, without connecting them."""
    before = np.cumsum([0, *(len(network.nodes) for network in networks[:-1])])
    known = [network.confidence for network in networks if network.confidence is not None]
    return RoadGraph(
        nodes=np.concatenate([network.nodes for network in networks]),
        ends=np.concatenate([n.ends + k for n, k in zip(networks, before.tolist(), strict=True)]),
        lines=np.concatenate([network.lines for network in networks]),
        speed_mph=np.concatenate([network.speed_mph for network in networks]),
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
    return shapely.set_coordinates(lines.copy(), xy)


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
    linked = cutter.with_edges(np.column_stack([starts, targets])[kept])
    if lines is not None:
        bent = np.flatnonzero(shapely.is_geometry(lines[kept]))
        edge = len(linked.lines) - np.count_nonzero(kept) + bent
        linked.lines[edge] = anchored(lines[kept][bent], linked.ends[edge], linked.nodes)
    return with_chains_joined(linked)


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
        cuts, pieces = [], []
        for position in positions:
            if position - begin > _SAME_M and length - position > _SAME_M:
                pieces.append((substring(line, begin, position), [node, len(self._nodes)]))
                self._nodes.append(list(pieces[-1][0].coords[-1]))
                begin, node = position, len(self._nodes) - 1
            cuts.append(node if position - begin <= _SAME_M else last)
        if pieces:
            pieces.append((substring(line, begin, length), [node, last]))
            self._lines[edge], self._ends[edge] = pieces[0]
            self._lines += [piece for piece, _ in pieces[1:]]
            self._ends += [ends for _, ends in pieces[1:]]
            self._speed += [self._speed[edge]] * (len(pieces) - 1)
        return cuts

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


@dataclass(frozen=True, slots=True)
class Chains:
    """Edges in walking order, chain by chain."""

    edges: Ints  # (edge,): every edge once
    # (edge,): whether ``edges[i]`` is walked from its second node to its first
    backwards: NDArray[np.bool_]
    offsets: Ints  # (chain + 1,): chain ``c`` is ``edges[offsets[c]:offsets[c + 1]]``
    ends: Ints  # (chain, 2): the first and last node of every chain


def chains(
    ends: Ints,
    node_count: int,
    group: Ints | None = None,
    directed: NDArray[np.bool_] | None = None,
) -> Chains:
    """Return the chains of edges that are linked by nodes of degree 2.

    If given, edges of different groups are not linked, nor directed ones that run against another.

    A ring that touches nothing else is one chain that begins and ends at one of its nodes.
    """
    if not len(ends):
        none = np.empty(0, np.int64)
        return Chains(none, none.astype(bool), np.zeros(1, np.int64), np.empty((0, 2), np.int64))
    links, nodes = _links(ends, node_count, group, directed)
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


def _links(
    ends: Ints, node_count: int, group: Ints | None, directed: NDArray[np.bool_] | None
) -> tuple[Ints, Ints]:
    """Return the pairs of edges that meet at a node of degree 2, and that node."""
    flat = ends.reshape(-1)
    degree = np.bincount(flat, minlength=node_count)
    by_node = np.argsort(flat, kind="stable")
    inner = np.flatnonzero(degree == 2)
    at = (np.cumsum(degree) - degree)[inner]
    pairs, sides = np.divmod(np.column_stack([by_node[at], by_node[at + 1]]), 2)
    distinct = pairs[:, 0] != pairs[:, 1]  # both ends of one edge: already a ring of its own
    if group is not None:
        distinct &= group[pairs[:, 0]] == group[pairs[:, 1]]
    if directed is not None:
        distinct &= ~directed[pairs[:, 0]] | (sides[:, 0] != sides[:, 1])
    return pairs[distinct], inner[distinct]


def _in_order(links: Ints, nodes: Ints, count: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the edges chain by chain, the offsets of chains, and the links without one per ring.

    The chains are linked end to start into one long path; a breadth-first search walks it from one
    end to the other.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order

    number, chain = connected(links, count)
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
    steps = np.concatenate([links, ties])
    path = coo_array((np.ones(len(steps), np.int8), steps.T), shape=(count, count)).tocsr()
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


def with_chains_joined(network: RoadGraph, *, equal: bool = False) -> RoadGraph:
    """Return a network without nodes of degree 2 and without isolated nodes.

    A joined edge takes as long to travel as its parts of known speed. A ring keeps one node. With
    ``equal``, edges are only joined where speed, confidence and attributes are equal; without, what
    attributes say is lost.
    """
    back = network.attributes.get(SPEED_BACK) if equal else None
    directed = None if back is None else np.isfinite(back)
    group = _groups(network) if equal else None
    walk = chains(network.ends, len(network.nodes), group, directed)
    if len(walk.ends) == len(network.ends):
        return used(network)
    rows, ends = renumbered(walk.ends)
    nodes, lines = network.nodes[rows], _joined_lines(walk, network.lines)
    first = walk.offsets[:-1]
    if directed is not None:
        turned = directed[walk.edges[first]] & walk.backwards[first]
        lines[turned], ends[turned] = shapely.reverse(lines[turned]), ends[turned, ::-1]
    if equal:
        return network.parts(nodes, ends, lines, walk.edges[first])
    speed, confidence = _joined_speeds(walk, network), _joined_confidence(walk, network)
    return RoadGraph(nodes, ends, lines, speed, network.crs, confidence)


def _groups(network: RoadGraph) -> Ints:
    """Return a number per edge, equal where all that is known of edges is equal."""
    confidence = [] if network.confidence is None else list(network.confidence.T)
    group = np.zeros(len(network.ends), np.int64)
    for values in (network.speed_mph, *confidence, *network.attributes.values()):
        plain = values.astype(str) if values.dtype == object else values
        _, number = np.unique(plain, return_inverse=True)
        group = np.unique(group * (number.max(initial=0) + 1) + number, return_inverse=True)[1]
    return group


def used(network: RoadGraph) -> RoadGraph:
    """Return a network without nodes that no edge has."""
    rows, ends = renumbered(network.ends)
    return replace(network, nodes=network.nodes[rows], ends=ends)


def renumbered(ends: Ints) -> tuple[Ints, Ints]:
    """Return the nodes that edges use, rising, and the edges' nodes counted among those."""
    nodes, numbers = np.unique(ends, return_inverse=True)
    return nodes, numbers.reshape(-1, 2).astype(np.int64)


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


def _joined_confidence(walk: Chains, network: RoadGraph) -> NDArray[np.float64] | None:
    """Return the mean and the least confidence of every chain."""
    if network.confidence is None:
        return None
    mean, least = network.confidence[walk.edges].T
    length, begins = network.length_m[walk.edges], walk.offsets[:-1]
    mean = np.add.reduceat(mean * length, begins) / np.add.reduceat(length, begins)
    return np.column_stack([mean, np.minimum.reduceat(least, begins)])


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


def clipped(network: RoadGraph, area: shapely.Geometry) -> RoadGraph:
    """Return the roads within an area.

    A road that leaves the area ends in a new node on its border; one that returns is two edges.
    """
    shapely.prepare(area)
    touching = subnetwork(network, shapely.intersects(area, network.lines))
    return _cut(touching, area, ~shapely.contains_properly(area, touching.lines))


def _cut(network: RoadGraph, area: shapely.Geometry, crosses: NDArray[np.bool_]) -> RoadGraph:
    """Return a network with the edges where ``crosses``, bool (edge,), is set cut at the border."""
    nodes, ends = list(network.nodes), list(network.ends[~crosses])
    lines, source = list(network.lines[~crosses]), np.flatnonzero(~crosses).tolist()
    for edge in np.flatnonzero(crosses).tolist():
        line = network.lines[edge]
        for begin, end in _inside(line, area):
            part = substring(line, begin, end)
            pair = network.ends[edge].copy()
            for side, at, limit in ((0, begin, 0.0), (1, end, line.length)):
                if at != limit:
                    pair[side] = len(nodes)
                    nodes.append(np.array(part.coords[-side][:2]))
            ends.append(pair)
            lines.append(part)
            source.append(edge)
    rows, pairs = renumbered(np.array(ends, np.int64).reshape(-1, 2))
    xy = np.array(nodes, np.float64).reshape(-1, 2)[rows]
    return network.parts(xy, pairs, np.array(lines, object), source)


def _inside(line: shapely.LineString, area: shapely.Geometry) -> list[tuple[float, float]]:
    """Return begin and end of every stretch of a line within an area, in metres along it."""
    meets = shapely.intersection(line, shapely.boundary(area))
    at = shapely.line_locate_point(line, shapely.points(shapely.get_coordinates(meets)))
    stops = np.unique(np.concatenate([[0.0], at, [line.length]]))
    middles = shapely.line_interpolate_point(line, (stops[:-1] + stops[1:]) / 2)
    stretches: list[tuple[float, float]] = []
    for begin, end, inside in zip(
        stops[:-1].tolist(), stops[1:].tolist(), shapely.intersects(area, middles), strict=True
    ):
        if not inside or end == begin:
            continue
        if stretches and stretches[-1][1] == begin:  # the line only touches the border
            begin = stretches.pop()[0]
        stretches.append((begin, end))
    return stretches


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
