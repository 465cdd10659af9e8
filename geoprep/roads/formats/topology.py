"""Nodes of a network from the ends of its lines, for files whose node numbers cannot be used."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.ops import substring

from geoprep.roads.graph import connected
from geoprep.roads.network import RoadGraph, empty_network, line_ends

_SAME_M: Final = 0.01
"""Distance of a line end from its node up to which node numbers count as right: rounding."""
_JOINED_M: Final = 0.1
"""Distance up to which roads are joined: a road drawn onto a straight line in one CRS is some
centimetres away from it in another."""
_COINCIDENT_M: Final = 0.001


def ends_agree(
    lines: NDArray[np.object_], ends: NDArray[np.int64], nodes: NDArray[np.float64]
) -> bool:
    """Return whether lines end where the nodes lie that they name.

    Node numbers are stale where a line ends more than 1 cm from its node, and where two different
    nodes that lines end at coincide within 1 mm.
    """
    from scipy.spatial import cKDTree

    if not len(ends):
        return True
    if ends.min() < 0 or ends.max() >= len(nodes):
        return False
    xy = line_ends(lines)
    if not (np.hypot(*(xy - nodes[ends]).reshape(-1, 2).T) <= _SAME_M).all():
        return False
    return not cKDTree(nodes[np.unique(ends)]).query_pairs(_COINCIDENT_M)


def network_from_ends(
    lines: NDArray[np.object_],
    speed_mph: NDArray[np.float64],
    crs: str | None,
    confidence: NDArray[np.float64] | None = None,
) -> RoadGraph:
    """Return the network of lines in metres that join where they end.

    Line ends within 10 cm of each other are one node. A line is split where another one ends within
    10 cm of it. Lines that merely cross stay separate, as at a bridge. Lines without a length are
    left out.
    """
    real = np.flatnonzero(shapely.length(lines) > 0)
    if not len(real):
        return empty_network(crs)
    lines, part_of = _split_where_others_end(lines[real])
    source = real[part_of]
    xy = line_ends(lines).reshape(-1, 2)
    node = _clusters(xy)
    _, first = np.unique(node, return_index=True)
    confidence = None if confidence is None else confidence[source]
    return RoadGraph(xy[first], node.reshape(-1, 2), lines, speed_mph[source], crs, confidence)


def _clusters(xy: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the cluster of every point, numbered from 0 in order of appearance, int64 (point,)."""
    from scipy.spatial import cKDTree

    pairs = cKDTree(xy).query_pairs(_JOINED_M, output_type="ndarray")
    _, component = connected(pairs, len(xy))
    _, first, label = np.unique(component, return_index=True, return_inverse=True)
    rank: NDArray[np.int64] = np.argsort(np.argsort(first))[label].astype(np.int64)
    return rank


def _split_where_others_end(
    lines: NDArray[np.object_],
) -> tuple[NDArray[np.object_], NDArray[np.int64]]:
    """Return the parts of lines between the points that lines end on, and the line of each part."""
    ends = np.asarray(shapely.points(line_ends(lines).reshape(-1, 2)), object)
    end, line = shapely.STRtree(lines).query(ends, predicate="dwithin", distance=_JOINED_M)
    along = shapely.line_locate_point(lines[line], ends[end])
    inside = (along > _JOINED_M) & (along < shapely.length(lines)[line] - _JOINED_M)
    cuts: dict[int, list[float]] = {}
    for number, at in sorted(zip(line[inside].tolist(), along[inside].tolist(), strict=True)):
        stops = cuts.setdefault(number, [0.0])
        if at - stops[-1] > _JOINED_M:
            stops.append(at)
    parts: list[shapely.LineString] = []
    part_of: list[int] = []
    for number, whole in enumerate(lines):
        stops = [*cuts.get(number, [0.0]), whole.length]
        pieces = [whole]
        if number in cuts:
            pieces = [substring(whole, begin, stop) for begin, stop in pairwise(stops)]
        parts += pieces
        part_of += [number] * len(pieces)
    made = np.empty(len(parts), object)
    made[:] = parts
    return made, np.array(part_of, np.int64)
