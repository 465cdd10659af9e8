"""Junctions put where roads meet: forks that thinning delayed, crossings that it split in two.

An arm is an edge as it leaves a node; number ``2 * edge + side`` names it (side 0: the first node).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.graph import anchored, connected, degrees, with_chains_joined
from geoprep.roads.network import RoadGraph, points_along, segments

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
IsRoad = Callable[[Floats, Floats], NDArray[np.bool_]]
"""Whether places along the straight lines between two rows of points are road, (line, place)."""

JUNCTION_M: Final = 5.0
"""Junctions linked by a shorter edge are one: a crossing thins to two forks about that far apart.
"""
_APART_M: Final = 3.0
"""Two roads that meet a third one at least this far apart, across themselves, have two junctions.
"""
_NEAR_M, _FAR_M = 12.0, 32.0
"""The line of an arm is taken between these distances from its junction: nearer it is bent, for 7 m
where roads 8 m wide part at 15 degrees, and by smoothing.
"""
_DRAWN_M: Final = 4.4
"""Side roads draw the line of a through road aside for at most this distance, and by smoothing."""
_SHIFT_M: Final = 3.5
"""Junctions of side roads move by at most this distance: roads 8 m wide that meet at 60 degrees."""
_BEYOND_M: Final = 4.0
"""The line of a trunk is taken from this distance beyond the fork on."""
_FITTED: Final = 17
"""Number of points that the line of an arm is fitted to."""
_BENT_M: Final = 8.0
"""Thinning bends the last metres of a dead end into a corner, for 0.7 times the road's width."""
_LINE_M: Final = 12.0
"""Length that the line of a dead end, or of a road at its side road, is fitted over."""
_LEAST_M: Final = 6.0
"""Minimum length that the line of an arm is taken over."""
_STRAIGHT_COS: Final = np.cos(np.radians(25))
_SIDE_SIN: Final = np.sin(np.radians(35))
_FORK_COS: Final = np.cos(np.radians(50))
_TRUNK_COS: Final = np.cos(np.radians(52))
"""A branch leaves the trunk by at most the angle of a fork; headings are right to 2 degrees."""
_MOVED_M: Final = 2.0, 48.0
"""Forks move by distances between these: a fork of 12 degrees of roads 10 m wide moves by 48 m."""
_ASIDE_M: Final = 7.0
"""The junction of thinning lies half a road's width off the trunk's line, or more."""
_MOSTLY: Final = 0.9
"""Share of a line on road pixels from which on it is on road: edges of coarse pixels are ragged."""
_ACROSS: Final = np.linspace(-0.75, 0.75, 16)
"""Places across a road, in half widths, where its end is measured: nearer its edge it is ragged."""
_BEHIND: Final = 0.9
"""Distance in half widths from which it is measured."""
_ROUND: Final = 0.6
"""Share of a semicircle from which on an end is round: 0 if flat, 1 if round, 2 if pointed."""
_PIXELS: Final = 2.0
"""Half width in pixels from which on the shape of an end can be told."""
_TOGETHER: Final = 2000
"""Number of dead ends whose shape is measured at a time, to limit memory."""


def with_junctions_merged(network: RoadGraph) -> RoadGraph:
    """Return a network in which junctions linked by a short edge are one, at their mean position.

    Two roads that meet a third one in different places keep their two junctions.
    """
    a, b = network.ends.T
    junction, is_short = degrees(network) > 2, network.length_m < JUNCTION_M
    short = is_short & junction[a] & junction[b] & (a != b)
    network, apart = _with_offset_junctions(network, np.flatnonzero(short))
    short[apart] = False
    if not short.any():
        return network
    count = len(network.nodes)
    number, group = connected(network.ends[short], count)
    size = np.bincount(group, minlength=number)[:, None]
    middle = np.column_stack([np.bincount(group, weights=v) for v in network.nodes.T]) / size
    ends = group[network.ends].astype(np.int64)
    inside = (ends[:, 0] == ends[:, 1]) & (network.length_m < JUNCTION_M)
    ends, speed = ends[~inside], network.speed_mph[~inside]
    lines = anchored(network.lines[~inside], ends, middle)
    return with_chains_joined(RoadGraph(middle, ends, lines, speed, network.crs))


def _with_offset_junctions(network: RoadGraph, short: Ints) -> tuple[RoadGraph, Ints]:
    """Return a network with the pairs of junctions that stay apart in place, and their edges.

    Each junction is put where the line of its side road meets that of the road through both.
    """
    pairs = network.ends[short]
    alone = (np.bincount(pairs.reshape(-1), minlength=len(network.nodes)) == 1)[pairs].all(axis=1)
    three = (degrees(network)[pairs] == 3).all(axis=1)
    short = short[alone & three]
    arms = _arms(network, network.ends[short].reshape(-1))
    outer = arms[arms // 2 != np.repeat(short, 2)[:, None]].reshape(-1, 2, 2)
    near, heading, known = _directions(network, outer)
    rows = np.arange(len(short))
    between = near[:, 1, None] - near[:, 0, :, None]  # (pair, arm of the first, of the second, xy)
    between /= np.maximum(np.linalg.norm(between, axis=-1, keepdims=True), 1e-9)
    straight = np.minimum(
        -(heading[:, 0, :, None] * between).sum(axis=-1),
        (heading[:, 1, None] * between).sum(axis=-1),
    ).reshape(-1, 4)
    first, second = np.divmod(straight.argmax(axis=1), 2)
    begin, stop = near[rows, 0, first], near[rows, 1, second]
    along = stop - begin
    along /= np.maximum(np.linalg.norm(along, axis=1), 1e-9)[:, None]
    feet, sine = [], []
    for side, chosen in ((0, 1 - first), (1, 1 - second)):
        place, away = near[rows, side, chosen], heading[rows, side, chosen]
        turn = _cross(along, away)
        sine.append(np.abs(turn))
        with np.errstate(divide="ignore", invalid="ignore"):
            feet.append(_cross(place - begin, away) / turn)
    gap = (feet[1] - feet[0]) * np.minimum(*sine)
    apart = known.all(axis=(1, 2)) & (straight.max(axis=1) >= _STRAIGHT_COS)
    apart &= (np.minimum(*sine) >= _SIDE_SIN) & (gap >= _APART_M)
    xy = begin[:, None] + np.stack(feet, axis=1)[..., None] * along[:, None]
    moved = np.linalg.norm(xy - network.nodes[network.ends[short]], axis=2)
    apart &= (moved < JUNCTION_M / 2).all(axis=1)
    nodes = network.nodes.copy()
    nodes[network.ends[short[apart]]] = xy[apart]
    lines = anchored(network.lines, network.ends, nodes)
    return replace(network, nodes=nodes, lines=lines), short[apart]


def with_forks_moved(network: RoadGraph, is_road: IsRoad) -> RoadGraph:
    """Return a network whose forks are where the lines of their branches meet.

    Roads that meet at a small angle share one band of pixels for a while; thinning puts their
    junction where the band parts. A fork is moved back along the trunk's line if both branches,
    extended, stay on road.
    """
    nodes = np.flatnonzero(degrees(network) == 3)
    arms = _arms(network, nodes)
    near, heading, known = _directions(network, arms)
    others = _cosines(heading)
    trunk, rows = others.argmax(axis=0), np.arange(len(nodes))
    one, two = (trunk + 1) % 3, (trunk + 2) % 3
    u, v, back = (heading[rows, arm] for arm in (one, two, trunk))
    a, b = near[rows, one], near[rows, two]
    _, bend, apart = np.sort(others, axis=0)
    fork = known.all(axis=1) & (apart >= _FORK_COS) & (-bend >= _TRUNK_COS)
    with np.errstate(divide="ignore", invalid="ignore"):
        xy = a + (_cross(b - a, v) / _cross(u, v))[:, None] * u
        xy = _on_trunk(network, nodes, arms[rows, trunk], xy, (a, b), (u, v))
    step = xy - network.nodes[nodes]
    distance = np.linalg.norm(step, axis=1)
    fork &= (distance >= _MOVED_M[0]) & (distance <= _MOVED_M[1])
    fork &= ((step * back).sum(axis=1) > 0) & (np.abs(_cross(step, back)) <= _ASIDE_M)
    chosen = np.flatnonzero(fork)
    on_road = [is_road(xy[chosen], end[chosen]).mean(axis=1) >= _MOSTLY for end in (a, b)]
    chosen = chosen[on_road[0] & on_road[1]]
    cut = np.full(arms.shape, _NEAR_M)
    cut[rows, trunk] = distance
    return _moved(network, nodes[chosen], arms[chosen], cut[chosen], xy[chosen])


def with_through_roads_straight(network: RoadGraph) -> RoadGraph:
    """Return a network in which roads run straight through the junctions of their side roads.

    Thinning draws a junction towards the side road, by an eighth of the width where all are equally
    wide. The junction is put where the line of the side road meets the through road.
    """
    nodes = np.flatnonzero(degrees(network) == 3)
    arms = _arms(network, nodes)
    cut = np.minimum(_DRAWN_M, network.length_m[arms // 2] / 3)
    near, heading, known = _directions(network, arms, (cut, cut + _LINE_M))
    others = _cosines(heading)
    side, rows = others.argmin(axis=0), np.arange(len(nodes))
    one, two = (side + 1) % 3, (side + 2) % 3
    a, b = near[rows, one], near[rows, two]
    along = b - a
    size = np.linalg.norm(along, axis=1)
    along /= np.maximum(size, 1e-9)[:, None]
    turn = _cross(along, heading[rows, side])
    with np.errstate(divide="ignore", invalid="ignore"):
        foot = _cross(near[rows, side] - a, heading[rows, side]) / turn
    xy = a + foot[:, None] * along
    moved = np.linalg.norm(xy - network.nodes[nodes], axis=1)
    chosen = known.all(axis=1) & (-others.min(axis=0) >= _STRAIGHT_COS)
    chosen &= (np.abs(turn) >= _SIDE_SIN) & (moved <= _SHIFT_M)
    chosen &= (foot > 0) & (foot < size)
    return _moved(network, nodes[chosen], arms[chosen], cut[chosen], xy[chosen])


def _cosines(heading: Floats) -> Floats:
    """Return the cosines between the other two arms of every arm, (3, node)."""
    return np.stack([(heading[:, k - 2] * heading[:, k - 1]).sum(axis=1) for k in range(3)])


def _moved(network: RoadGraph, nodes: Ints, arms: Ints, cut: Floats, xy: Floats) -> RoadGraph:
    """Return a network with moved junctions; ``cut`` metres of each arm become straight.

    A junction with an arm too short for that stays, and one with an edge that returns to it.
    """
    edge = arms // 2
    total = np.bincount(edge.ravel(), weights=cut.ravel(), minlength=len(network.lines))
    moves = (total[edge] + _LEAST_M <= network.length_m[edge]).all(axis=1)
    first, second, third = np.sort(edge, axis=1).T
    moves &= (first < second) & (second < third)
    places = network.nodes.copy()
    places[nodes[moves]] = xy[moves]
    lines = _begun_at(network, arms[moves].ravel(), cut[moves].ravel(), np.repeat(xy[moves], 3, 0))
    return replace(network, nodes=places, lines=lines)


def _on_trunk(
    network: RoadGraph,
    nodes: Ints,
    trunks: Ints,
    xy: Floats,
    points: tuple[Floats, Floats],
    headings: tuple[Floats, Floats],
) -> Floats:
    """Return forks moved to the lines of their trunks, as near to both branches' lines as possible.

    The trunk is straight beyond the fork. Forks whose trunks are too short there stay as they are.
    """
    moved = np.nan_to_num(np.linalg.norm(xy - network.nodes[nodes], axis=1))
    near = np.clip(moved, 0, _MOVED_M[1]) + _BEYOND_M
    begin, along, known = _directions(network, trunks, (near, near + _FAR_M - _NEAR_M))
    turn = np.stack([_cross(heading, along) for heading in headings])
    aside = np.stack([_cross(u, begin - a) for a, u in zip(points, headings, strict=True)])
    place = (aside * turn).sum(axis=0) / (turn**2).sum(axis=0)
    return np.where(known[:, None], begin - place[:, None] * along, xy)


def _begun_at(network: RoadGraph, arms: Ints, cut: Floats, xy: Floats) -> NDArray[np.object_]:
    """Return the lines of a network, of which arms begin at other points."""
    lines, (edge, side) = network.lines.copy(), np.divmod(arms, 2)
    changed, line = np.unique(edge, return_inverse=True)
    length = network.length_m[changed]
    bounds = np.stack([np.full(len(changed), -1.0), length + 1])
    at = np.where(side == 1, length[line] - cut, cut)
    bounds[side, line] = at
    start = shapely.get_coordinates(shapely.line_interpolate_point(lines[edge], at))
    vertices, of = shapely.get_coordinates(lines[changed], return_index=True)
    along = np.cumsum(np.linalg.norm(np.diff(vertices, axis=0, prepend=vertices[:1]), axis=1))
    along -= along[np.searchsorted(of, np.arange(len(changed)))][of]
    kept = (along > bounds[0][of]) & (along < bounds[1][of])
    outside = np.where(side == 1, np.inf, -np.inf)
    place = np.concatenate([outside, at, along[kept]])
    of = np.concatenate([line, line, of[kept]])
    order = np.lexsort([place, of])
    points = np.concatenate([xy, start, vertices[kept]])[order]
    lines[changed] = shapely.linestrings(points, indices=of[order])
    return lines


def _arms(network: RoadGraph, nodes: Ints, degree: int = 3) -> Ints:
    """Return the arms of nodes of a degree, int64 (node, degree)."""
    flat = network.ends.reshape(-1)
    order = np.argsort(flat, kind="stable")
    first = np.searchsorted(flat[order], nodes)
    arms: Ints = order[first[:, None] + np.arange(degree)]
    return arms


def _directions(
    network: RoadGraph, arms: Ints, between: tuple[Floats, Floats] | None = None
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return where the straight part of arms begins, their headings, and which are long enough.

    A straight line is fitted to points of each arm: two of them would give its heading with
    nearly twice the error.
    """
    edge, last = arms // 2, arms % 2 == 1
    length = network.length_m[edge]
    near, far = between or (np.minimum(_NEAR_M, length / 3), _FAR_M)
    far = np.minimum(far, length)
    place = np.linspace(-1.0, 1.0, _FITTED)
    at = np.multiply.outer((1 - place) / 2, near) + np.multiply.outer((1 + place) / 2, far)
    at = np.where(last, length - at, at)
    line = np.broadcast_to(edge, at.shape).ravel()
    xy = points_along(network.lines, line, at.ravel()).reshape(*at.shape, 2)
    step = np.einsum("p,p...->...", place, xy) / (place**2).sum()
    size = np.linalg.norm(step, axis=-1)
    heading = step / np.maximum(size, 1e-9)[..., None]
    return xy.mean(axis=0) - step, heading, far - near >= _LEAST_M


def _cross(a: Floats, b: Floats) -> Floats:
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0], np.float64)


def with_ends_extended(
    network: RoadGraph,
    tips: Ints,
    is_road: IsRoad,
    farthest_m: float,
    *,
    cap_pixel_m: float | None = None,
) -> RoadGraph:
    """Return a network whose dead ends run on, straight, to the end of the road's pixels.

    Thinning shortens a dead end by half the road's width. A dead end that would meet another edge
    is left. One with a round end runs to the centre of the semicircle, where the line ended that
    was widened to the road.
    """
    arms = _arms(network, tips, 1)[:, 0]
    edge = arms // 2
    length = network.length_m[edge]
    cut = np.minimum(_BENT_M, length / 3)
    xy, away, _ = _directions(network, arms, (cut, cut + _LINE_M))
    step = -away
    ahead = xy + _reach(is_road, xy, xy + farthest_m * step)[:, None] * farthest_m * step
    rays = segments(np.stack([xy, ahead + step], axis=1))
    met, other = shapely.STRtree(network.lines).query(rays, predicate="intersects")
    free = np.linalg.norm(ahead - xy, axis=1) > cut / 2
    free[met[other != edge[met]]] = False
    if cap_pixel_m is not None:
        chosen = np.flatnonzero(free)
        for some in np.split(chosen, range(_TOGETHER, len(chosen), _TOGETHER)):
            radius = _cap_radius(xy[some], ahead[some], step[some], is_road, farthest_m)
            ahead[some] -= np.where(radius < _PIXELS * cap_pixel_m, 0, radius)[:, None] * step[some]
        cut += np.maximum(0, cut / 2 - ((ahead - xy) * step).sum(axis=1))  # never turn back
        free &= cut < length * 2 / 3
        free &= np.bincount(edge, weights=free * cut)[edge] < length  # of both ends of a line
    nodes = network.nodes.copy()
    nodes[tips[free]] = ahead[free]
    lines = _begun_at(network, arms[free], cut[free], ahead[free])
    return replace(network, nodes=nodes, lines=lines)


def _reach(is_road: IsRoad, start: Floats, stop: Floats) -> Floats:
    """Return the share of straight lines up to where they leave road pixels, float64 (line,)."""
    share: Floats = np.logical_and.accumulate(is_road(start, stop), axis=1).mean(axis=1)
    return share


def _cap_radius(
    inside: Floats, stop: Floats, step: Floats, is_road: IsRoad, farthest_m: float
) -> Floats:
    """Return half the width of roads with round or pointed ends in metres; 0 of other ends.

    Distances to the end, measured at places across the road, are fitted by a line of any slope
    and a share of a semicircle.
    """

    def reach(xy: Floats, way: Floats) -> Floats:
        way = np.broadcast_to(farthest_m * way, xy.shape).reshape(-1, 2)
        start = xy.reshape(-1, 2)
        return farthest_m * _reach(is_road, start, start + way).reshape(xy.shape[:-1])

    side = np.column_stack([-step[:, 1], step[:, 0]])[:, None]
    step = step[:, None]
    before = inside[:, None] - np.arange(4)[:, None] * step
    half = np.median(reach(before, side) + reach(before, -side), axis=1)[:, None, None] / 2
    begin = stop[:, None] - half * step
    aside = (reach(begin, side) - reach(begin, -side))[..., None] / 2  # the line is off the middle
    places = stop[:, None] - _BEHIND * half * step + (aside + _ACROSS[:, None] * half) * side
    terms = np.column_stack([np.ones_like(_ACROSS), _ACROSS, np.sqrt(1 - _ACROSS**2)])
    half = half[..., 0]
    share = (reach(places, step) / np.maximum(half, 1e-9)) @ np.linalg.pinv(terms)[2]
    radius: Floats = np.where(share > _ROUND, half[:, 0], 0.0)
    return radius
