"""Outlines of buildings with right angles.

Each building has a main direction. Its walls are moved onto lines along it and across it, and a
wall between two buildings is moved once, so that they keep touching.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, TypeAlias

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.classes.outlines import Coverage, ranges
from geoprep.compiled import compiled
from geoprep.components import connected

Shapes: TypeAlias = NDArray[np.object_]
Indices: TypeAlias = NDArray[np.intp]
Flags: TypeAlias = NDArray[np.bool_]
Points: TypeAlias = NDArray[np.complex128]
Corners: TypeAlias = NDArray[np.int32]
Rings: TypeAlias = NDArray[np.int64]

# In tolerances, of about a pixel: corners of pixels lie up to 0.7 pixels beside a slanted wall.
_DEVIATION: Final = 1.25  # of the points of a wall from the line between its ends
_SHORTEST: Final = 1.5  # a shorter wall is a step between two parts of one wall
_TIDY: Final = 0.01  # of points on the line between their neighbours, but for rounding

_LEAST_FIT: Final = 0.5
"""Of a building's walls: 1 if all are parallel or at right angles, about 0 for a circle."""

_SAME_DIRECTION: Final = np.radians(10)
_LEAST_IOU, _MOST_GROWTH = 0.9, 0.05
_ROUNDS: Final = 4
_WEAK: Final = 1e-6
"""Weight of a step, and squared of a point: they count where no wall does."""

_LINES: Final = 1 << 16
_WALLS: Final = 1 << 13
_BUILDINGS: Final = 1 << 14
"""Lines, walls and buildings that are worked on at once."""
_BLOCK: Final = 512
"""Height of a block of walls in tolerances."""


def right_angled(coverage: Coverage, buildings: Flags, *, tolerance: float) -> Points:
    """Return the points of polygons with right angles, where these fit; others are not kept.

    A building stays as it is, but for a wall that it shares with one that changes, if it is round
    or oblique, or if right angles would change its area by more than 5 %, lower its IoU with
    its pixels below 0.9, or make it overlap itself or another polygon.

    Parameters
    ----------
    coverage
        Polygons, simplified; of two buildings that touch, the first one leads.
    buildings
        Which polygons are to have right angles.
    tolerance
        Distance by which they were simplified, about a pixel or more.
    """
    lines = _lines(coverage)
    walls = _walls(coverage, lines, _DEVIATION * tolerance)
    angles, leaders = _directions(walls, buildings)
    none, active, right = len(buildings), leaders >= 0, np.ones(len(buildings) + 1, bool)
    walls, used = _near(walls, np.append(active, False), len(coverage.points))
    home, places = coverage.points, coverage.points.copy()
    before = np.full(len(used), np.nan + 0j)
    while True:
        leader = np.where(active, leaders, none)
        points, changed = _moved(
            walls, home[used], np.append(leader, none), angles, _SHORTEST * tolerance
        )
        places[used] = points
        stale = _with(walls, points != before) | ~right[walls.faces].all(axis=1)
        before = points
        ends = points[walls.starts[stale]], points[walls.ends[stale]]
        _check(coverage, places, right, ends, tolerance)
        wrong = active & ~right[:-1]
        own = np.unique(walls.faces[stale]).astype(np.intp)
        own = own[np.append(active, False)[own] & right[own]]
        for start in range(0, len(own), _BUILDINGS):
            part = own[start : start + _BUILDINGS]
            rings = coverage.rings_of(part)
            moved, exact = (
                coverage.polygons(rings, places),
                coverage.polygons(rings, home, exact=True),
            )
            new, old = shapely.area(moved), shapely.area(exact)
            common = shapely.area(shapely.intersection(moved, exact))
            wrong[part] = np.abs(new / old - 1) > _MOST_GROWTH
            wrong[part] |= common < _LEAST_IOU * (new + old - common)
        if not wrong.any():  # but a polygon beside them may be folded
            folded = np.zeros(len(used), bool)
            bad = ~right[walls.faces].all(axis=1)
            folded[walls.starts[bad]] = folded[walls.ends[bad]] = True
            beside = np.zeros(none + 1, bool)
            beside[walls.faces[_with(walls, folded)]] = True
            wrong = active & beside[:-1]
        if not wrong.any():
            break
        active &= ~wrong
    touched = np.zeros(none + 1, bool)
    touched[walls.faces[_with(walls, changed)]] = touched[none] = True
    pieces = lines.pieces[touched[lines.faces].all(axis=1)]
    _tidy(coverage, pieces, np.flatnonzero(touched[:-1]), places, _TIDY * tolerance)
    return places


@dataclass(frozen=True, slots=True)
class _Lines:
    """The edges of polygons from junction to junction, and rings without one."""

    pieces: NDArray[np.int32]  # (line, 4) ring, first corner in it, edges, whether it is free
    faces: NDArray[np.int32]  # (line, 2) polygons on both sides; their number for none


@dataclass(slots=True)
class _Walls:
    """The outlines of polygons as walls, which are straight but for steps of pixels."""

    starts: Indices  # (wall,) point
    ends: Indices
    middles: Points  # (wall,) mean along the steps
    moments: Points  # (wall,) second moments about the middle, of which the angle is doubled
    lines: Indices  # (wall,)
    faces: NDArray[np.int32]  # (wall, 2) as of its line
    within: Indices  # (inner,) point between the ends of a wall that is kept
    wall_within: Indices  # (inner,)
    share_within: NDArray[np.float64]  # (inner,) of the wall's length from its start


def _lines(coverage: Coverage) -> _Lines:
    """Return the edges of polygons, each once."""
    pieces, keys = _pieces(coverage.corners, coverage.rings, coverage.kept, coverage.points)
    _, first, line = np.unique(keys, return_index=True, return_inverse=True)
    owner, second = coverage.faces[pieces[:, 0]], np.ones(len(keys), bool)
    second[first] = False
    faces = np.full((len(first), 2), coverage.faces[-1] + 1, np.int32)
    faces[:, 0], faces[line[second], 1] = owner[first], owner[second]
    return _Lines(pieces[first], faces)


@compiled
def _pieces(
    corners: Corners, rings: Rings, kept: Flags, points: Points
) -> tuple[Corners, NDArray[np.int64]]:
    """Return the pieces of rings between junctions, and keys, which are equal for both sides."""
    before, after = np.full(len(points), -1, np.int32), np.full(len(points), -1, np.int32)
    junctions = np.zeros(len(points), np.bool_)
    for start, stop in rings:
        for at in range(start, stop):
            here, last = corners[at], corners[at - 1 if at > start else stop - 1]
            following = corners[at + 1 if at + 1 < stop else start]
            if before[here] < 0:
                before[here], after[here] = last, following
            elif (before[here] != last or after[here] != following) and (
                before[here] != following or after[here] != last
            ):
                junctions[here] = True
    size, count = 0, 0
    for start, stop in rings:
        size += max(1, junctions[corners[start:stop]].sum())
    pieces, keys = np.empty((size, 4), np.int32), np.empty(size, np.int64)
    for ring in range(len(rings)):
        around = corners[rings[ring, 0] : rings[ring, 1]]
        first, size = -1, len(around)
        for at in range(size):  # a junction, or the leftmost corner that is kept
            place, least = points[around[at]], points[around[first]]
            if junctions[around[at]]:
                first = at
                break
            if kept[around[at]] and (
                first < 0
                or place.real < least.real
                or (place.real == least.real and place.imag < least.imag)
            ):
                first = at
        free, begin = not junctions[around[first]], first
        for end in range(first + 1, first + size + 1):
            here = around[end % size]
            if junctions[here] or end == first + size:
                one = around[begin % size] * np.int64(len(points)) + around[(begin + 1) % size]
                other = here * np.int64(len(points)) + around[(end - 1) % size]
                keys[count] = min(one, other)
                pieces[count, 0], pieces[count, 1] = ring, begin % size
                pieces[count, 2], pieces[count, 3] = end - begin, free
                count += 1
                begin = end
    return pieces, keys


def _walls(coverage: Coverage, lines: _Lines, deviation: float) -> _Walls:
    """Return the walls of polygons: lines between junctions, divided by Douglas and Peucker.

    They are divided at vertices of the simplified rings, and measured along all of them.
    """
    starts = range(0, len(lines.pieces), _LINES)
    parts = [_walls_of(coverage, lines, start, deviation) for start in starts]
    before = np.cumsum([0, *(len(part.starts) for part in parts)])
    for part, walls in zip(parts, before, strict=False):
        part.wall_within += walls
    return _Walls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(_Walls)))


def _walls_of(coverage: Coverage, lines: _Lines, start: int, deviation: float) -> _Walls:
    """Return the walls of some lines, from a first one on."""
    line, at = _along(coverage, lines.pieces[start : start + _LINES])
    way, turns = coverage.points[at], coverage.kept[at]
    turns[turns] = _turns(way[turns], line[turns], deviation)
    inner = line[1:] == line[:-1]
    a, b = at[:-1][inner], at[1:][inner]  # the ends of each edge
    begins = turns[:-1][inner]
    first = np.flatnonzero(begins)
    wall = np.cumsum(begins) - 1
    steps, middle = np.diff(way)[inner], (way[1:] + way[:-1])[inner] / 2
    lengths = np.abs(steps)
    along = np.cumsum(lengths)
    total = np.add.reduceat(lengths, first)
    middles = np.add.reduceat(lengths * middle, first) / total
    # Second moments of the edges about the middle: twice the angle of the line that fits best.
    beside = (middle - middles[wall]) ** 2 + steps**2 / 12
    moments = np.add.reduceat(lengths * beside, first)
    share = (along - (along - lengths)[first][wall]) / total[wall]
    within = np.flatnonzero(coverage.kept[b] & ~turns[1:][inner])
    numbers = start + line[:-1][inner][first]
    return _Walls(
        starts=a[first],
        ends=b[np.append(first[1:], len(a)) - 1],
        middles=middles.astype(complex),
        moments=moments.astype(complex),
        lines=numbers,
        faces=lines.faces[numbers],
        within=b[within],
        wall_within=wall[within],
        share_within=share[within],
    )


def _along(coverage: Coverage, pieces: Corners) -> tuple[Indices, Corners]:
    """Return the corners along lines, and the line of each of these."""
    ring, begin, count, _ = pieces.T.astype(np.int64)
    line = np.repeat(np.arange(len(ring)), count + 1)
    step = ranges(begin, count + 1) % np.diff(coverage.rings)[ring, 0][line]
    return line, coverage.corners[coverage.rings[ring, 0][line] + step]


def _turns(way: Points, line: Indices, deviation: float) -> Flags:
    """Return which points of lines are ends of walls.

    Equal deviations are decided by the direction of a line: most of its edges go to the right.
    """
    first, stop = (
        np.flatnonzero(np.diff(line, prepend=-1)),
        np.flatnonzero(np.diff(line, append=-1)),
    )
    step = np.diff(way)
    step[stop[:-1]] = 0
    right = np.add.reduceat(np.append(_signs(step), 0), first)
    begin, end = way[first], way[stop]
    turn = [
        np.angle(one - two) % (2 * np.pi)
        for one, two in ((way[first + 1], begin), (way[stop - 1], end))
    ]
    tie = np.where(begin == end, turn[1] < turn[0], _signs(end - begin) < 0)
    is_back = (right < 0) | ((right == 0) & tie)
    place = np.arange(len(way))
    place = np.where(is_back[line], first[line] + stop[line] - place, place)
    shapes = shapely.linestrings(way[place].view(np.float64).reshape(-1, 2), indices=line)
    ends = shapely.get_coordinates(shapely.simplify(shapes, deviation, preserve_topology=False))
    return np.isin(way, ends.view(np.complex128)[:, 0])


def _signs(steps: Points) -> Indices:
    """Return 1 for steps to the right, or up, and -1 for others."""
    x, y = np.sign(steps.real), np.sign(steps.imag)
    return np.where(x != 0, x, y).astype(np.intp)


def _near(walls: _Walls, active: Flags, points: int) -> tuple[_Walls, Indices]:
    """Return walls of active polygons, and those that end where one of them does; their points."""
    moved = np.zeros(points, bool)
    own = active[walls.faces].any(axis=1)
    moved[walls.starts[own]] = moved[walls.ends[own]] = True
    near = moved[walls.starts] | moved[walls.ends]
    inner = near[walls.wall_within]
    found = {field.name: getattr(walls, field.name) for field in fields(_Walls)}
    found = {name: a[inner if "within" in name else near] for name, a in found.items()}
    moved[...] = False
    names = "starts", "ends", "within"
    for name in names:
        moved[found[name]] = True
    number = np.cumsum(moved, dtype=np.int32) - 1
    found |= {name: number[found[name]] for name in names}
    found["wall_within"] = (np.cumsum(near) - 1)[found["wall_within"]]
    return _Walls(**found), np.flatnonzero(moved)


def _with(walls: _Walls, points: Flags) -> Flags:
    """Return which walls have one of some points at an end or within."""
    found = points[walls.starts] | points[walls.ends]
    found[walls.wall_within[points[walls.within]]] = True
    return found


def _directions(walls: _Walls, buildings: Flags) -> tuple[NDArray[np.float64], Indices]:
    """Return the main direction of polygons in radians, and each one's leader, -1 for none.

    The direction is the circular mean of four times the angles of the walls, weighted by about the
    cubes of their lengths, as the angle of a long wall is more certain. A building takes the
    direction of a larger neighbour if they differ by less than 10 degrees.
    """
    weights, none = np.abs(walls.moments), len(buildings)
    fourfold = weights * np.exp(2j * np.angle(walls.moments))
    total, most = np.zeros(none + 1, complex), np.zeros(none + 1)
    for side in walls.faces.T:
        np.add.at(total, side, fourfold)
        np.add.at(most, side, weights)
    angles = np.angle(total[:-1]) / 4
    fits = np.append(buildings, False) & (np.abs(total) > _LEAST_FIT * most)
    leaders = np.where(fits[:-1], np.arange(none), -1)
    pairs = np.sort(walls.faces[fits[walls.faces].all(axis=1)], axis=1)[:, ::-1]
    for small, large in np.unique(pairs, axis=0):
        apart = angles[small] - angles[leaders[large]]
        apart -= np.round(apart / (np.pi / 2)) * np.pi / 2
        if leaders[small] == small and abs(apart) < _SAME_DIRECTION:
            leaders[small] = leaders[large]
    return angles, leaders


def _moved(
    walls: _Walls, home: Points, leader: Indices, angles: NDArray[np.float64], shortest: float
) -> tuple[Points, Flags]:
    """Return the points with the walls on lines along and across the directions, and which changed.

    ``leader`` is the polygon that gives each polygon its direction; their number for those that
    stay, and for none. A wall between two follows the first leader.
    """
    none = len(angles)
    owner = leader[walls.faces].min(axis=1)
    of_point = np.full(len(home), none)
    for ends in (walls.starts, walls.ends):
        np.minimum.at(of_point, ends, owner)
    axes = np.exp(1j * np.append(angles, 0.0))
    free = (owner < none) & (of_point[walls.starts] == owner) & (of_point[walls.ends] == owner)
    starts, ends, middles = walls.starts[free], walls.ends[free], walls.middles[free]
    middles = middles / axes[owner[free]]
    turned = home / axes[of_point]
    step = turned[ends] - turned[starts]
    lengths = np.abs(step)
    across = np.abs(step.imag) > np.abs(step.real)
    places = turned
    for _ in range(_ROUNDS):  # walls become shorter as others move
        short = np.abs(places[ends] - places[starts]) < shortest
        x = _levelled(turned.real, starts, ends, middles.real, across, short, lengths)
        y = _levelled(turned.imag, starts, ends, middles.imag, ~across, short, lengths)
        places = x + 1j * y
    changed = of_point < none
    points = np.where(changed, places * axes[of_point], home)
    moves = owner[walls.wall_within] < none
    wall, within = walls.wall_within[moves], walls.within[moves]
    begin, end = points[walls.starts[wall]], points[walls.ends[wall]]
    points[within] = begin + walls.share_within[moves] * (end - begin)
    changed[within] = True
    return points, changed


def _check(
    coverage: Coverage,
    places: Points,
    right: Flags,
    walls: tuple[Points, Points],
    tolerance: float,
) -> None:
    """Write which polygons are right: valid, and without overlaps.

    Those near ``walls``, which are from points to others, are checked in blocks, with the rings
    whose boxes touch those of walls.
    """
    right[...] = True
    boxes = _boxes(places, coverage.corners, coverage.rings)
    x, y = np.stack([part.real for part in walls]), np.stack([part.imag for part in walls])
    low = np.column_stack([x.min(axis=0), y.min(axis=0)]) - 2 * tolerance
    high = np.column_stack([x.max(axis=0), y.max(axis=0)]) + 2 * tolerance
    order = np.lexsort((low[:, 0], low[:, 1] // (_BLOCK * tolerance)))
    for start in range(0, len(order), _WALLS):
        part = order[start : start + _WALLS]
        near = (boxes[:, :2] <= high[part].max(axis=0)) & (boxes[:, 2:] >= low[part].min(axis=0))
        rings = np.flatnonzero(near.all(axis=1))
        around = np.asarray(shapely.box(*low[part].T, *high[part].T), object)
        rings = rings[np.unique(shapely.STRtree(around).query(shapely.box(*boxes[rings].T))[0])]
        faces = np.unique(coverage.faces[rings])
        rings = np.union1d(rings, np.searchsorted(coverage.faces, faces))  # the outer ones
        shapes = coverage.polygons(rings, places)
        fine = shapely.is_valid(shapes)
        fine[fine] = shapely.is_empty(shapely.coverage_invalid_edges(shapes[fine]))
        right[faces[~fine]] = False


@compiled
def _boxes(points: Points, corners: Corners, rings: Rings) -> NDArray[np.float64]:
    """Return the least x and y, and the largest ones, of rings."""
    boxes = np.empty((len(rings), 4))
    for ring in range(len(rings)):
        around = points[corners[rings[ring, 0] : rings[ring, 1]]]
        boxes[ring] = around.real.min(), around.imag.min(), around.real.max(), around.imag.max()
    return boxes


def _tidy(
    coverage: Coverage, pieces: Corners, faces: Indices, places: Points, tolerance: float
) -> None:
    """Remove points on straight parts of lines, but where a polygon would not be valid."""
    kept = coverage.kept.copy()
    _straighten(coverage.corners, coverage.rings, pieces, coverage.kept, places, tolerance**2)
    for start in range(0, len(faces), _BUILDINGS):
        part = faces[start : start + _BUILDINGS]
        shapes = coverage.polygons(coverage.rings_of(part), places)
        wrong = coverage.rings_of(part[~shapely.is_valid(shapes)])
        corners, _ = coverage.corners_of(wrong)
        coverage.kept[corners] = kept[corners]


@compiled
def _straighten(
    corners: Corners,
    rings: Rings,
    pieces: Corners,
    kept: Flags,
    points: Points,
    limit: float,
) -> None:
    """Remove points of lines that form a triangle of a small area with their neighbours."""
    all_kept = kept.copy()
    for number in range(len(pieces)):
        ring, begin, count, free = pieces[number]
        around = corners[rings[ring, 0] : rings[ring, 1]]
        line = np.array([around[(begin + at) % len(around)] for at in range(count + 1)])
        line = line[kept[line]]
        before = len(line) + 1
        while len(line) < before:
            before = len(line)
            last = points[line[0]]
            for at in range(1, before - 1):
                here, after = points[line[at]], points[line[at + 1]]
                one, other = here - last, after - last
                if abs(one.real * other.imag - one.imag * other.real) <= 2 * limit:
                    kept[line[at]] = False
                else:
                    last = here
            line = line[kept[line]]
        if free:
            one, other = points[line[1]] - points[line[0]], points[line[-2]] - points[line[0]]
            if abs(one.real * other.imag - one.imag * other.real) <= 2 * limit:
                kept[line[0]] = False
    for start, stop in rings:  # one that is almost a line stays as it was
        around = corners[start:stop]
        if kept[around].sum() < 3:
            kept[around] = all_kept[around]


def _levelled(
    values: NDArray[np.float64],
    starts: Indices,
    ends: Indices,
    middles: NDArray[np.float64],
    level: Flags,
    short: Flags,
    lengths: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return one coordinate of points, the same for both ends of walls that are level or short.

    It is the mean of the walls that join them, weighted by their lengths.
    """
    joined = level | short
    a, b, count = starts[joined], ends[joined], len(values)
    _, group = connected(np.column_stack([a, b]), count)
    weights = np.where(level & ~short, lengths, _WEAK)[joined]
    # A point alone keeps its own value.
    total = np.bincount(group, np.full(count, _WEAK**2))
    means = np.bincount(group, values * _WEAK**2)
    total += np.bincount(group[a], weights, len(total))
    means += np.bincount(group[a], weights * middles[joined], len(total))
    levels: NDArray[np.float64] = (means / total)[group]
    return levels
