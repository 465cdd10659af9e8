"""Outlines of buildings with right angles.

Each building has a main direction. Its walls are moved onto lines along it and across it, and a
wall between two buildings is moved once, so that they keep touching.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.components import connected

Shapes: TypeAlias = NDArray[np.object_]
Indices: TypeAlias = NDArray[np.intp]
Flags: TypeAlias = NDArray[np.bool_]
Points: TypeAlias = NDArray[np.complex128]

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


def right_angled(
    faces: Shapes, exact: Shapes, buildings: Flags, *, tolerance: float, stretch: float = 1.0
) -> Shapes:
    """Return polygons whose buildings have right angles where these fit.

    A building stays as it is, but for a wall that it shares with one that changes, if it is round
    or oblique, or if right angles would change its area by more than 5 %, lower its IoU with
    ``exact`` below 0.9, or make it overlap itself or another polygon.

    Parameters
    ----------
    faces
        Polygons that share the vertices of common edges.
    exact
        The same polygons with the edges of pixels.
    buildings
        Which polygons are to have right angles.
    tolerance
        Distance by which ``faces`` were simplified, about a pixel or more.
    stretch
        Length of a unit of x in units of y, such as 0.5 for degrees at a latitude of 60.
    """
    faces, exact = (
        shapely.transform(shapes, lambda xy: xy * (stretch, 1)) for shapes in (faces, exact)
    )
    tolerance *= stretch**0.5
    # A larger building leads its neighbours.
    order = np.argsort(-shapely.area(exact), kind="stable")
    faces, exact, active = faces[order], exact[order], buildings[order]
    walls = _walls(faces, exact, _DEVIATION * tolerance)
    angles, leaders = _directions(walls, active)
    active = leaders >= 0
    areas = shapely.area(exact)
    while True:
        leader = np.where(active, leaders, len(faces))
        points, changed = _moved(walls, leader, angles, _SHORTEST * tolerance)
        corners = np.column_stack([points.real, points.imag])[walls.corners]
        moved = shapely.set_coordinates(faces.copy(), corners)
        right = shapely.is_valid(moved)
        right[right] = shapely.is_empty(shapely.coverage_invalid_edges(moved[right]))
        wrong = active & ~right
        own = np.flatnonzero(active & right)
        new, old = shapely.area(moved[own]), areas[own]
        common = shapely.area(shapely.intersection(moved[own], exact[own]))
        wrong[own] = np.abs(new / old - 1) > _MOST_GROWTH
        wrong[own] |= common < _LEAST_IOU * (new + old - common)
        if not wrong.any():  # but a polygon beside them may be folded
            folded = walls.corners[~right[walls.face_of_corner]]
            wrong[walls.face_of_corner[np.isin(walls.corners, folded)]] = True
            wrong &= active
        if not wrong.any():
            break
        active &= ~wrong
    touched = np.zeros(len(faces), bool)
    touched[walls.face_of_corner[changed[walls.corners]]] = True
    moved = np.where(touched, shapely.coverage_simplify(moved, _TIDY * tolerance), faces)
    return shapely.transform(moved[np.argsort(order)], lambda xy: xy / (stretch, 1))


@dataclass(frozen=True, slots=True)
class _Walls:
    """The outlines of polygons as walls, which are straight but for steps of pixels."""

    points: Points  # (point,) vertices of the polygons
    corners: Indices  # (corner,) point of each coordinate of the polygons
    face_of_corner: Indices
    starts: Indices  # (wall,) point
    ends: Indices
    middles: Points  # (wall,) mean along the steps
    moments: Points  # (wall,) second moments about the middle, of which the angle is doubled
    face: Indices  # (side,) polygon, of the one or two sides of each wall
    wall: Indices  # (side,)
    within: Indices  # (inner,) point between the ends of a wall
    wall_within: Indices  # (inner,)
    share_within: NDArray[np.float64]  # (inner,) of the wall's length from its start


def _complex(shapes: Shapes) -> Points:
    """Return the coordinates of shapes as x + iy."""
    return shapely.get_coordinates(shapes).view(np.complex128)[:, 0]


def _lines(shapes: Shapes) -> Shapes:
    """Return the edges of polygons, each once, as lines from junction to junction, and rings."""
    rings = shapely.get_rings(shapes)
    ring = shapely.get_coordinates(rings, return_index=True)[1]
    points, corner = np.unique(_complex(rings), return_inverse=True)
    ends = np.sort(np.column_stack([corner[:-1], corner[1:]])[ring[1:] == ring[:-1]], axis=1)
    edges = points[np.column_stack(np.divmod(np.unique(ends @ (len(points), 1)), len(points)))]
    lines = np.asarray(shapely.linestrings(edges.view(np.float64).reshape(-1, 2, 2)))
    return shapely.get_parts(shapely.line_merge(shapely.multilinestrings(lines)))


def _walls(faces: Shapes, exact: Shapes, deviation: float) -> _Walls:
    """Return the walls of polygons: lines between junctions, divided by Douglas and Peucker.

    They are divided at vertices of ``faces``, and measured along the pixels of ``exact``.
    """
    lines, simplified = _lines(exact), _lines(faces)
    ends = _complex(shapely.simplify(simplified, deviation, preserve_topology=False))
    way, line = _complex(lines), shapely.get_coordinates(lines, return_index=True)[1]
    at_end = np.isin(way, ends)
    for start, stop in pairwise(np.flatnonzero(np.diff(line, prepend=-1, append=-1))):
        if not at_end[start]:  # a ring, which may begin within a wall
            turn = start + int(at_end[start:stop].argmax())
            way[start:stop] = np.append(way[turn:stop], way[start + 1 : turn + 1])
    points, at = np.unique(way, return_inverse=True)
    turns = np.isin(points, ends)
    inner = line[1:] == line[:-1]
    a, b = at[:-1][inner], at[1:][inner]  # the ends of each edge
    begins = np.append(True, ~inner) | turns[at]
    number = (np.cumsum(begins) - 1)[:-1][inner]
    _, first, wall_of_edge = np.unique(number, return_index=True, return_inverse=True)
    last = np.append(first[1:], len(a)) - 1
    lengths = np.abs(points[b] - points[a])
    along = np.cumsum(lengths)
    total = np.add.reduceat(lengths, first)
    steps, middle = points[b] - points[a], (points[a] + points[b]) / 2
    middles = np.add.reduceat(lengths * middle, first) / total
    # Second moments of the edges about the middle: twice the angle of the line that fits best.
    beside = (middle - middles[wall_of_edge]) ** 2 + steps**2 / 12
    moments = np.add.reduceat(lengths * beside, first)
    share = (along - (along - lengths)[first][wall_of_edge]) / total[wall_of_edge]
    within = np.setdiff1d(np.arange(len(a)), last)
    rings, face_of_ring = shapely.get_rings(exact, return_index=True)
    ring = shapely.get_coordinates(rings, return_index=True)[1]
    around = np.searchsorted(points, _complex(rings))
    same = ring[1:] == ring[:-1]
    edges, sides = (
        np.minimum(start, end) * len(points) + np.maximum(start, end)
        for start, end in ((a, b), (around[:-1][same], around[1:][same]))
    )
    sort = np.argsort(edges)
    wall = wall_of_edge[sort[np.searchsorted(edges[sort], sides)]]
    pairs = np.column_stack([wall, face_of_ring[ring[1:][same]]])
    wall, face = np.unique(pairs, axis=0).T
    return _Walls(
        points=points,
        corners=np.searchsorted(points, _complex(faces)),
        face_of_corner=shapely.get_coordinates(faces, return_index=True)[1],
        starts=a[first],
        ends=b[last],
        middles=middles.astype(complex),
        moments=moments.astype(complex),
        face=face,
        wall=wall,
        within=b[within],
        wall_within=wall_of_edge[within],
        share_within=share[within],
    )


def _directions(walls: _Walls, buildings: Flags) -> tuple[NDArray[np.float64], Indices]:
    """Return the main direction of polygons in radians, and each one's leader, -1 for none.

    The direction is the circular mean of four times the angles of the walls, weighted by about the
    cubes of their lengths, as the angle of a long wall is more certain. A building takes the
    direction of a larger neighbour if they differ by less than 10 degrees.
    """
    weights = np.abs(walls.moments)
    fourfold = weights * np.exp(2j * np.angle(walls.moments))
    total = np.zeros(len(buildings), complex)
    np.add.at(total, walls.face, fourfold[walls.wall])
    most = np.bincount(walls.face, weights[walls.wall], len(buildings))
    angles = np.angle(total) / 4
    fits = buildings & (np.abs(total) > _LEAST_FIT * most)
    leaders = np.where(fits, np.arange(len(buildings)), -1)
    twice = walls.wall[1:] == walls.wall[:-1]
    pairs = np.column_stack([walls.face[1:], walls.face[:-1]])[twice]
    for small, large in np.unique(pairs[fits[pairs].all(axis=1)], axis=0):
        apart = angles[small] - angles[leaders[large]]
        apart -= np.round(apart / (np.pi / 2)) * np.pi / 2
        if leaders[small] == small and abs(apart) < _SAME_DIRECTION:
            leaders[small] = leaders[large]
    return angles, leaders


def _moved(
    walls: _Walls, leader: Indices, angles: NDArray[np.float64], shortest: float
) -> tuple[Points, Flags]:
    """Return the points with the walls on lines along and across the directions, and which changed.

    ``leader`` is the polygon that gives each polygon its direction; their number for those that
    stay. A wall between two follows the first leader.
    """
    none = len(leader)
    owner = np.full(len(walls.starts), none)
    np.minimum.at(owner, walls.wall, leader[walls.face])
    of_point = np.full(len(walls.points), none)
    for ends in (walls.starts, walls.ends):
        np.minimum.at(of_point, ends, owner)
    axes = np.exp(1j * np.append(angles, 0.0))
    free = (owner < none) & (of_point[walls.starts] == owner) & (of_point[walls.ends] == owner)
    starts, ends, middles = walls.starts[free], walls.ends[free], walls.middles[free]
    middles = middles / axes[owner[free]]
    turned = walls.points / axes[of_point]
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
    points = np.where(changed, places * axes[of_point], walls.points)
    moves = owner[walls.wall_within] < none
    wall, within = walls.wall_within[moves], walls.within[moves]
    begin, end = points[walls.starts[wall]], points[walls.ends[wall]]
    points[within] = begin + walls.share_within[moves] * (end - begin)
    changed[within] = True
    return points, changed


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
