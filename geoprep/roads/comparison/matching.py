"""Which portions of the roads of a network lie along roads of another one, and their offset.

Roads are compared at samples in equal distances. A sample matches the nearest road of the other
network that is near and has about the same heading. So part of an edge may match, whatever the
edges of the other network are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.ops import substring

from geoprep.roads.edge_points import EdgePoints, cosine, headings
from geoprep.roads.graph import edge_components, ranges, subnetwork
from geoprep.roads.network import RoadGraph, points, points_along, segments

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_STEP_M: Final = 5.0
_SAME_HEADING: Final = np.cos(np.radians(30))
_AHEAD: Final = 0.6
"""Sine of the angle that another road may lie ahead by: in curves, it is not quite at the side."""
_ENDS_M: Final = 1.0
"""The other road may end this much earlier."""
_BLOCK: Final = 100_000
"""Samples whose neighbours are in memory."""
MOST_OFFSET_M: Final = 20.0
"""Largest systematic offset that is looked for."""
_ROUNDS: Final = 3
_REWEIGHTINGS: Final = 10
_LEAST_SAMPLES: Final = 20
_MOST_SAMPLES: Final = 20_000
_MAD_TO_SIGMA: Final = 1.4826


@dataclass(frozen=True, slots=True)
class Matches:
    """Samples of a network, and the nearest road of another one that runs along each."""

    points: EdgePoints
    step_m: Floats  # (sample,): length of road that a sample stands for
    heading: Floats  # (sample, 2): unit vectors along the road
    edge: Ints  # (sample,): edge of the other network, -1 without any
    away: Floats  # (sample, 2): metres from the sample to that road; NaN without any

    @property
    def distance_m(self) -> Floats:
        """Distance to the other road in metres, float64 (sample,)."""
        return np.asarray(np.hypot(*self.away.T), np.float64)


@dataclass(frozen=True, slots=True)
class Offset:
    """The systematic offset of a map from a proposal, in metres."""

    east: float  # 0 if there are too few roads to tell
    north: float
    spread: float  # robust standard deviation of what is left, across the roads; NaN if unknown


def matches(
    network: RoadGraph, other: RoadGraph, within_m: float, most: int | None = None
) -> Matches:
    """Return the samples of a network with their roads in another one, in one plane of metres.

    With ``most``, only about so many samples in equal distances.
    """
    count = np.maximum(np.ceil(network.length_m / _STEP_M), 1).astype(np.int64)
    owner = np.repeat(np.arange(len(count)), count)
    nth = ranges(np.zeros_like(count), count)
    found = EdgePoints(owner, network.length_m[owner] * (nth + 0.5) / count[owner])
    found = found[:: 1 if most is None else max(1, len(found) // most)]
    step = (network.length_m / count)[found.edge]
    at = found.along_m * network.stretch[found.edge]
    xy, heading = points_along(network.lines, found.edge, at), headings(network, found)
    edge, away = np.full(len(found), -1), np.full((len(found), 2), np.nan)
    if len(other.lines):
        vertex, line = shapely.get_coordinates(other.lines, return_index=True)
        begin = np.flatnonzero(line[:-1] == line[1:])
        start, owner = vertex[begin], line[begin]
        piece_m = np.maximum(np.hypot(*(vertex[begin + 1] - start).T), 1e-9)
        along = (vertex[begin + 1] - start) / piece_m[:, None]
        tree = shapely.STRtree(segments(np.stack([start, vertex[begin + 1]], axis=1)))
        for block in range(0, len(found), _BLOCK):
            here, way = xy[block : block + _BLOCK], heading[block : block + _BLOCK]
            sample, piece = tree.query(points(here), predicate="dwithin", distance=within_m)
            reach = ((here[sample] - start[piece]) * along[piece]).sum(axis=1)
            nearest = np.clip(reach, 0, piece_m[piece])[:, None] * along[piece] + start[piece]
            vector = nearest - here[sample]
            distance = np.hypot(*vector.T)
            ahead = np.abs((vector * way[sample]).sum(axis=1))
            fits = cosine(way[sample], along[piece]) >= _SAME_HEADING
            fits &= ahead <= _AHEAD * distance + _ENDS_M  # not beyond the end of a road
            sample, piece, vector = sample[fits], piece[fits], vector[fits]
            order = np.lexsort((distance[fits], sample))
            matched, first = np.unique(sample[order], return_index=True)
            edge[block + matched] = owner[piece[order][first]]
            away[block + matched] = vector[order][first]
    return Matches(found, step, heading, edge, away)


def offset_between(network: RoadGraph, other: RoadGraph) -> Offset:
    """Return by how much a network must be moved to lie on another one.

    Only the offset across a road can be seen. So roads of several headings are needed, and the
    offset that fits them best is found with weights that fall with the residual (Tukey's biweight),
    because some roads have no partner and take another one.
    """
    offset = np.zeros(2)
    spread = np.nan
    for _ in range(_ROUNDS):
        found = matches(moved_by(network, offset), other, MOST_OFFSET_M, _MOST_SAMPLES)
        chosen = found.edge >= 0
        across = found.heading[chosen][:, ::-1] * (1, -1)
        residual = (found.away[chosen] * across).sum(axis=1)
        weight = np.ones(len(residual))
        step = np.zeros(2)
        for _ in range(_REWEIGHTINGS):
            normal = (across * weight[:, None]).T @ across
            if len(residual) < _LEAST_SAMPLES or np.linalg.cond(normal) > 1e4:
                return Offset(0.0, 0.0, np.nan)
            step = np.linalg.solve(normal, (across * weight[:, None]).T @ residual)
            left = residual - across @ step
            spread = max(_MAD_TO_SIGMA * float(np.median(np.abs(left))), 0.05)
            weight = np.clip(1 - (left / (4.685 * spread)) ** 2, 0, None) ** 2
        offset = offset + step
    east, north = np.round(offset, 3).tolist()
    return Offset(east, north, round(spread, 3))


def moved_by(network: RoadGraph, offset: Floats) -> RoadGraph:
    """Return a network moved by metres (x, y)."""
    lines = shapely.transform(network.lines, lambda xy: xy + offset)
    return replace(network, nodes=network.nodes + offset, lines=lines)


def portions(
    network: RoadGraph, found: Matches, *, within_m: float, least_m: float
) -> tuple[RoadGraph, Flags]:
    """Return a network cut where its roads begin or cease to match, and which parts do not.

    1. A part that matches for less than ``least_m`` between two that do not does not either: a
       road that it crosses or touches.
    2. Parts that do not match and are connected count from ``least_m`` on in total. Shorter ones
       match: ends that are drawn a little longer, and curves that are cut.
    """
    unmatched = ~(found.distance_m <= within_m)
    edge = found.points.edge
    unmatched = _without_short_runs(unmatched, edge, found.step_m, least_m)
    first = np.unique(_runs(unmatched, edge), return_index=True)[1]
    parts, missing = _cut_at_runs(network, found, first), unmatched[first]
    alone = subnetwork(replace(parts, attributes={}), missing)
    if len(alone.lines):
        component = edge_components(alone)
        long = np.bincount(component, weights=alone.length_m) >= least_m
        missing[np.flatnonzero(missing)[~long[component]]] = False
    return parts, missing


def _runs(flag: Flags, edge: Ints) -> Ints:
    """Return the number of the run of equal flags on one edge, per sample."""
    begins = np.append(True, (np.diff(edge) != 0) | (flag[1:] != flag[:-1]))[: len(edge)]
    return np.cumsum(begins) - 1


def _without_short_runs(unmatched: Flags, edge: Ints, step_m: Floats, least_m: float) -> Flags:
    """Return flags in which short matched runs between unmatched ones are unmatched too."""
    if not len(edge):
        return unmatched
    run = _runs(unmatched, edge)
    first = np.unique(run, return_index=True)[1]
    length, owner = np.bincount(run, weights=step_m), edge[first]
    between = np.zeros(len(first), np.bool_)
    between[1:-1] = (owner[1:-1] == owner[:-2]) & (owner[1:-1] == owner[2:])
    short = between & ~unmatched[first] & (length < least_m)
    return unmatched | short[run]


def _cut_at_runs(network: RoadGraph, found: Matches, first: Ints) -> RoadGraph:
    """Return the network with every edge cut between its runs, which begin at these samples."""
    owner = found.points.edge[first]
    begin = np.where(
        np.append(True, np.diff(owner) != 0)[: len(first)],
        0.0,
        found.points.along_m[first] - found.step_m[first] / 2,
    )
    is_last = np.append(np.diff(owner) != 0, True)[: len(first)]
    stop = np.where(is_last, network.length_m[owner], np.append(begin[1:], 0.0)[: len(first)])
    nodes, ends = [network.nodes], network.ends[owner].copy()
    lines = network.lines[owner].copy()
    cut = np.flatnonzero(~is_last)
    number = len(network.nodes) + np.arange(len(cut))
    ends[cut, 1], ends[cut + 1, 0] = number, number
    for row in np.unique(np.concatenate([cut, cut + 1])).tolist():
        stretch = shapely.length(network.lines[owner[row]]) / network.length_m[owner[row]]
        lines[row] = substring(lines[row], begin[row] * stretch, stop[row] * stretch)
    nodes.append(shapely.get_coordinates(shapely.get_point(lines[cut], -1)))
    return network.parts(np.concatenate(nodes), ends, lines, owner)
