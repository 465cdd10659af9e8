"""Road networks from lines: the one form of all networks, and which roads of a label count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.components import connected
from geoprep.roads.edge_points import cost_graph
from geoprep.roads.graph import (
    degrees,
    edge_components,
    subnetwork,
    with_chains_joined,
)
from geoprep.roads.network import (
    LEVELS,
    SPEED_BACK,
    RoadGraph,
    line_ends,
    line_strings,
    points,
    segments,
)

JOINED_M: Final = 0.1
"""Distance up to which roads of networks are joined: a road drawn onto a straight line in one CRS
is some centimetres away from it in another. Edges this close all along are one."""
SAME_M: Final = 0.001
"""Distance up to which places are the same."""
_NO_LEVEL: Final = ("", "no", "0", "none", "nan")
_DIGITS: Final = 3

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Lines = NDArray[np.object_]
ToMetres = Callable[[Floats], Floats]


def network_from_lines(
    lines: Lines,
    speed_mph: Floats,
    crs: str | None,
    confidence: Floats | None = None,
    attributes: Mapping[str, NDArray[Any]] | None = None,
    *,
    within_m: float = SAME_M,
) -> RoadGraph:
    """Return the network of lines in metres, in normal form; lines without a length are left out.

    Ends of lines within a distance of each other are one node.
    """
    from scipy.spatial import cKDTree

    ends = line_ends(lines).reshape(-1, 2) + 0.0  # -0.0 and 0.0 are the same
    places, place = np.unique(ends, axis=0, return_inverse=True)
    close = cKDTree(places).query_pairs(within_m, output_type="ndarray")
    _, node = connected(close, len(places))
    nodes = places[np.unique(node, return_index=True)[1]]
    pairs = node[place].reshape(-1, 2).astype(np.int64)
    drawn = RoadGraph(nodes, pairs, lines, speed_mph, crs, confidence, attributes or {})
    return normal_form(drawn, within_m=within_m)


def normal_form(network: RoadGraph, *, within_m: float = SAME_M) -> RoadGraph:
    """Return a network in the form that does not depend on how its lines were drawn.

    1. Lines are split wherever they meet a node, which is an end of a line, a vertex that lines
       share or pass twice, or one where a line runs back; as often as they meet it. Lines that
       merely cross stay separate, and those whose ``bridge``, ``tunnel`` or ``layer`` differ,
       unless a line would end at nothing.
    2. The fastest of edges with the same course is kept, with the speed in the other direction.
    3. Edges are joined where they are equal in all that is known of them.
    """
    if not len(network.lines):
        return network
    return joined(_without_duplicates(_split_at_nodes(network, within_m)), equal=True)


def joined(network: RoadGraph, *, equal: bool = False) -> RoadGraph:
    """Return a network with chains joined (`with_chains_joined`); rings begin in their south-west.

    So the node of a ring that touches nothing else does not depend on how it was drawn.
    """
    network = with_chains_joined(network, equal=equal)
    alone = (network.ends[:, 0] == network.ends[:, 1]) & (degrees(network) == 2)[network.ends[:, 0]]
    if not alone.any():
        return network
    nodes, lines = network.nodes.copy(), network.lines.copy()
    for edge in np.flatnonzero(alone).tolist():
        ring = shapely.get_coordinates(lines[edge])[:-1]
        first = np.lexsort(np.round(ring, _DIGITS).T[::-1])[0]
        ring = np.roll(ring, -first, axis=0)
        nodes[network.ends[edge, 0]] = ring[0]
        lines[edge] = shapely.LineString([*ring, ring[0]])
    return replace(network, nodes=nodes, lines=lines)


def network_of_labels(
    lines: Lines,
    speed_mph: Floats,
    crs: str | None,
    *,
    to_metres: ToMetres | None = None,
    min_path: float = 5.0,
    small_nodes: int = 100,
    attributes: Mapping[str, NDArray[Any]] | None = None,
) -> RoadGraph:
    """Return the network of lines that share points, as APLS reads labels and proposals.

    Connected components without a path of some length in metres are left out, unless they have many
    nodes.

    CosmiQ's reference program removes segments that two lines share altogether by mistake (it
    removes one edge for every duplicate that it finds, and finds each twice). This may cut the
    ground truth in two: SpaceNet's Vegas chip 0 scores 0.73 there instead of 0.82.
    """
    if to_metres is not None:
        lines = shapely.set_coordinates(lines.copy(), to_metres(shapely.get_coordinates(lines)))
    network = network_from_lines(lines, speed_mph, crs, attributes=attributes)
    return subnetwork(network, _is_in_large_component(network, min_path, small_nodes))


def _split_at_nodes(network: RoadGraph, within_m: float) -> RoadGraph:
    """Return a network whose lines are split at every node that they meet, and end at their nodes.

    Edges without a length are left out.
    """
    lines = shapely.remove_repeated_points(network.lines)
    xy, line = shapely.get_coordinates(lines, return_index=True)
    first, last = np.diff(line, prepend=-1) != 0, np.diff(line, append=-1) != 0
    steps = np.where(first, 0.0, np.hypot(*np.diff(xy, axis=0, prepend=xy[:1]).T))
    along = np.cumsum(steps)
    along -= along[first][line]
    places, number, at, cut_line = _cuts(network, xy, line, along, within_m)
    # Vertices and cuts in order; a vertex where a line is cut is left out.
    is_cut = np.arange(len(xy) + len(at)) >= len(xy)
    line, along = np.append(line, cut_line), np.append(along, at)
    xy = np.concatenate([xy, places[number]])
    node = np.concatenate([np.full(len(first), -1), number])
    node[: len(first)][first], node[: len(first)][last] = network.ends.T
    order = np.lexsort((is_cut, along, line))
    near = (np.diff(line[order]) == 0) & (np.diff(along[order]) <= SAME_M)
    beside = np.append(near & is_cut[order][1:], False) | np.append(
        False, near & is_cut[order][:-1]
    )
    order = order[~(beside & (node[order] < 0))]
    line, node, xy = line[order], node[order], xy[order]
    xy[node >= 0] = places[node[node >= 0]]
    cut = is_cut[order]
    copies = np.where(cut, 2, 1)  # one ends a part, the other begins the next
    begins = np.zeros(copies.sum(), np.bool_)
    begins[np.cumsum(copies)[cut | (np.diff(line, prepend=-1) != 0)] - 1] = True
    parts = line_strings(np.repeat(xy, copies, axis=0), np.cumsum(begins) - 1)
    start, node = np.flatnonzero(begins), np.repeat(node, copies)
    ends = np.column_stack([node[start], node[np.append(start[1:], len(node)) - 1]])
    split = network.parts(places, ends, parts, np.repeat(line, copies)[begins])
    return subnetwork(split, shapely.length(parts) > 0)


def _cuts(
    network: RoadGraph, xy: Floats, line: Ints, along: Floats, within_m: float
) -> tuple[Floats, Ints, Floats, Ints]:
    """Return all places where lines may be split; per split, the place, metres along, the line.

    ``xy``, ``line`` and ``along`` are the vertices, the line of each, and metres along it.
    """
    level, count = _levels(network), len(network.nodes)
    inner = (np.diff(line, prepend=-1) == 0) & (np.diff(line, append=-1) == 0)
    vertices = np.column_stack([xy[inner] + 0.0, level[line[inner]]])
    shared, vertex, times = np.unique(vertices, axis=0, return_inverse=True, return_counts=True)
    times[vertex[_turns_back(xy, inner)]] = 2
    shared = shared[times > 1]
    places = np.concatenate([network.nodes, shared[:, :2]])
    # A line is split at places of its level, and where one line would end at nothing.
    levels = int(level.max()) + 1
    place_level = np.concatenate(
        [
            network.ends.T.ravel() * levels + np.tile(level, 2),
            np.arange(count, len(places)) * levels + shared[:, 2].astype(np.int64),
        ]
    )
    lonely = np.append(degrees(network) == 1, np.zeros(len(shared), np.bool_))
    begin = np.flatnonzero(line[:-1] == line[1:])
    pieces = segments(np.stack([xy[begin], xy[begin + 1]], axis=1))
    place, piece = shapely.STRtree(pieces).query(
        points(places), predicate="dwithin", distance=within_m
    )
    owner, start = line[begin[piece]], along[begin[piece]]
    at = start + shapely.line_locate_point(pieces[piece], points(places[place]))
    length = along[np.flatnonzero(np.diff(line, append=-1))][owner]
    fits = (at > within_m) & (at < length - within_m)
    fits &= lonely[place] | np.isin(place * levels + level[owner], place_level)
    place, at, owner = place[fits], at[fits], owner[fits]
    order = np.lexsort((place, np.round(at, _DIGITS), owner))
    place, at, owner = place[order], at[order], owner[order]
    again = (np.diff(owner) == 0) & (np.diff(at) <= within_m)
    once = np.append(True, ~again)[: len(at)]
    return places, place[once], at[once], owner[once]


def _turns_back(xy: Floats, inner: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return at which inner vertices a line runs back over itself."""
    vertex = np.flatnonzero(inner)
    before, after = xy[vertex - 1] - xy[vertex], xy[vertex + 1] - xy[vertex]
    longest = np.maximum(np.hypot(*before.T), np.hypot(*after.T))
    aside = np.abs(before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0])
    back: NDArray[np.bool_] = (aside <= SAME_M * longest) & ((before * after).sum(axis=1) > 0)
    return back


def _levels(network: RoadGraph) -> Ints:
    """Return a number per edge, equal where bridge, tunnel and layer are."""
    texts = np.full(len(network.lines), "", object)
    for name in LEVELS:
        values = network.attributes.get(name, ())
        for edge, value in enumerate(values):
            text = str(value or "").strip().lower()
            texts[edge] += "" if text in _NO_LEVEL else f"{name}={text} "
    return np.unique(texts.astype(str), return_inverse=True)[1].astype(np.int64)


def _without_duplicates(network: RoadGraph) -> RoadGraph:
    """Return every edge once, of those with the same course the fastest.

    The speed of the next one is its speed back, if that is another: a street that is there once per
    direction.
    """
    pair, speed = np.sort(network.ends, axis=1), np.nan_to_num(network.speed_mph)
    _, key, count = np.unique(pair, axis=0, return_inverse=True, return_counts=True)
    rest = np.flatnonzero(count[key] > 1)
    if not len(rest):
        return network
    back = network.attributes.get(SPEED_BACK, np.full(len(speed), np.nan)).copy()
    kept = np.ones(len(speed), np.bool_)
    while len(rest):
        rest = rest[np.lexsort((-speed[rest], key[rest]))]
        _, first, group = np.unique(key[rest], return_index=True, return_inverse=True)
        best = rest[first][group]
        same = shapely.hausdorff_distance(network.lines[rest], network.lines[best]) <= JOINED_M
        other = same & (rest != best)
        kept[rest[other]] = False
        slower = other & (speed[rest] > 0) & (speed[rest] < speed[best])
        np.fmax.at(back, best[slower], speed[rest[slower]])
        rest = rest[~same]
    attributes = dict(network.attributes)
    if not np.isnan(back).all():
        attributes[SPEED_BACK] = back
    return subnetwork(replace(network, attributes=attributes), kept)


def _is_in_large_component(
    network: RoadGraph, min_path: float, most_nodes: int
) -> NDArray[np.bool_]:
    """Return which edges are in components of many nodes, or with a path of some length."""
    from scipy.sparse.csgraph import dijkstra

    component = edge_components(network)
    keep = np.ones(len(component), np.bool_)
    for number in np.unique(component).tolist():
        edges = component == number
        part = subnetwork(network, edges)
        if len(part.nodes) <= most_nodes:
            ring = part.length_m[part.ends[:, 0] == part.ends[:, 1]].max(initial=0.0) / 2
            keep[edges] = max(dijkstra(cost_graph(part).cheapest).max(), ring) >= min_path
    return keep
