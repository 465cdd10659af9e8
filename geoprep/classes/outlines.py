"""Outlines of areas of equal pixels, found by strips of rows, with common vertices.

The corners of pixels where an outline turns, or where outlines meet, are the vertices of a planar
graph. Strips add their vertices to it; pixels are not kept. Simplification removes vertices from
the edges of the graph, so that neighbours keep touching.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.compiled import compiled

NO_CLASS: Final = 255

_EAST, _NORTH, _WEST, _SOUTH = range(4)  # the next direction is to the left
_VERTEX: Final = np.dtype(
    [
        ("x", np.int32),  # column of the corner
        ("y", np.int32),
        ("north", np.int32),  # vertex at the other end of the side; those of a row are in order
        ("south", np.int32),
        ("area", np.int32),  # of the pixel to the south-east; -1: none
        ("opposite", np.int32),  # of the pixel to the north-west
        ("sides", np.uint8),  # a bit for each direction in which an outline leaves
        ("kept", np.bool_),  # not removed by simplification
        ("done", np.bool_),  # traced; later: its edge is simplified
    ],
    align=True,
)
AREA: Final = np.dtype(
    [
        ("joined", np.int32),  # the area that it was found to belong to, or itself
        ("value", np.uint8),
        ("pixels", np.int64),
        ("confidence", np.float64),  # sum over the pixels
    ],
    align=True,
)
_RING: Final = np.dtype(
    [
        ("area", np.int32),  # to the left of the ring
        ("is_hole", np.bool_),
        ("start", np.int64),  # first corner: the upper one on the left, (left, first)
        ("length", np.int64),
        *((name, np.int32) for name in ("left", "first", "top", "right", "bottom")),
    ],
    align=True,
)


Strip = tuple[NDArray[np.uint8], NDArray[np.float32], int]
"""Rows of a raster: numbers of classes (y, x), 255 for none, confidences (y, x), and the first of
their columns; there are no classes beside them."""


@dataclass(frozen=True, slots=True)
class Outlines:
    """Areas of a raster: pixels of one class that are connected by their sides.

    They are in the order of their bounding boxes, by bottom, right, top and left.
    """

    vertices: NDArray[np.void]  # (vertex,) of _VERTEX, by row and column
    lines: NDArray[np.int64]  # (line + 1,) first vertex on each line between rows of pixels
    corners: NDArray[np.int32]  # (corner,) vertices along the rings
    rings: NDArray[np.void]  # (ring,) of _RING: the outer ring of each area, then its holes
    first_ring: NDArray[np.int64]  # (area + 1,)
    areas: NDArray[np.void]  # (area,) of AREA
    origin: tuple[int, int]  # column and row of the first pixel

    def simplify(self, tolerance: float) -> None:
        """Remove vertices from the edges.

        It is the algorithm of Visvalingam and Whyatt for coverages, with the results of
        ``shapely.coverage_simplify``: while the smallest triangle of three successive vertices is
        at most the square of the ``tolerance`` in pixels, its middle vertex is removed, unless
        another vertex lies in it.
        """
        _simplify(self.vertices, self.lines, self.corners, self.rings, 2 * tolerance**2)

    def polygons(self, chosen: NDArray[np.intp], *, exact: bool = False) -> NDArray[np.object_]:
        """Return areas as polygons of columns and rows; ``exact``: with all of their vertices."""
        counts = np.diff(self.first_ring)[chosen]
        rings = self.rings[ranges(self.first_ring[chosen], counts)]
        vertices = self.vertices[self.corners[ranges(rings["start"], rings["length"])]]
        ring = np.repeat(np.arange(len(rings)), rings["length"])
        if not exact:
            vertices, ring = vertices[vertices["kept"]], ring[vertices["kept"]]
        return _shapes(self._xy(vertices), ring, np.repeat(np.arange(len(chosen)), counts))

    def coverage(self, chosen: NDArray[np.intp]) -> Coverage:
        """Return areas with the numbers of their vertices."""
        counts = np.diff(self.first_ring)[chosen]
        rings = self.rings[ranges(self.first_ring[chosen], counts)]
        face = np.repeat(np.arange(len(chosen), dtype=np.int32), counts)
        points = self._xy(self.vertices).view(np.complex128)[:, 0]
        kept, ends = (
            self.vertices["kept"].copy(),
            [rings["start"], rings["start"] + rings["length"]],
        )
        return Coverage(points, kept, self.corners, np.column_stack(ends), face)

    def _xy(self, vertices: NDArray[np.void]) -> NDArray[np.float64]:
        return np.column_stack([vertices["x"], vertices["y"]]) + np.array(self.origin, np.float64)


@dataclass(slots=True)
class Coverage:
    """Polygons whose rings go along common points."""

    points: NDArray[np.complex128]  # (point,) x + iy
    kept: NDArray[np.bool_]  # (point,) not removed by simplification
    corners: NDArray[np.int32]  # (corner,) points along the rings, all of them
    rings: NDArray[np.int64]  # (ring, 2) first corner, and the first one after it
    faces: NDArray[np.int32]  # (ring,) polygon, ascending; its outer ring comes first

    def polygons(
        self, rings: NDArray[np.intp], points: NDArray[np.complex128], *, exact: bool = False
    ) -> NDArray[np.object_]:
        """Return the polygons of ascending rings with points; ``exact``: with all of them."""
        corners, ring = self.corners_of(rings)
        if not exact:
            corners, ring = corners[self.kept[corners]], ring[self.kept[corners]]
        owner = np.cumsum(np.diff(self.faces[rings], prepend=self.faces[rings[:1]]) != 0)
        return _shapes(points[corners].view(np.float64).reshape(-1, 2), ring, owner)

    def corners_of(self, rings: NDArray[np.intp]) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """Return the corners of rings, and the ring of each."""
        starts, counts = self.rings[rings, 0], np.diff(self.rings[rings])[:, 0]
        return self.corners[ranges(starts, counts)], np.repeat(np.arange(len(rings)), counts)

    def rings_of(self, faces: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the rings of ascending polygons."""
        first, stop = (np.searchsorted(self.faces, faces, side) for side in ("left", "right"))
        return ranges(first, stop - first)


def coverage_of(exact: NDArray[np.object_], simplified: NDArray[np.object_]) -> Coverage:
    """Return polygons with the numbers of their points, and those of the same ones simplified."""
    rings, face = shapely.get_rings(exact, return_index=True)
    xy, ring = shapely.get_coordinates(rings, return_index=True)
    around = np.diff(ring, append=-1) == 0  # not where a ring closes
    points, corners = np.unique(xy.view(np.complex128)[around, 0], return_inverse=True)
    kept = np.isin(points, shapely.get_coordinates(simplified).view(np.complex128))
    ends = np.cumsum(np.bincount(ring[around]))
    ends = np.column_stack([np.append(0, ends[:-1]), ends])
    return Coverage(points, kept, corners.astype(np.int32), ends, face.astype(np.int32))


def _shapes(
    xy: NDArray[np.float64], ring: NDArray[np.intp], owner: NDArray[np.intp]
) -> NDArray[np.object_]:
    """Return polygons by the ring of each coordinate and the polygon of each ring."""
    shells = np.asarray(shapely.linearrings(xy, indices=ring), object)
    return np.asarray(shapely.polygons(shells, indices=owner), object)


def ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of ranges, one after another."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + counts, counts)


def outlines_of(strips: Iterable[Strip], width: int, origin: tuple[int, int]) -> Outlines:
    """Return the outlines of the areas of a raster of a width, which is given by strips of rows.

    ``origin`` is the column and row of its first pixel.
    """
    scan = _Scan(width)
    for label, confidence, left in strips:
        scan.add(label, confidence, left)
    return scan.outlines(origin)


class _Scan:
    """The vertices and areas of the rows that were read."""

    def __init__(self, width: int) -> None:
        self.height = 0
        self.vertices, self.areas = np.empty(0, _VERTEX), np.empty(0, AREA)
        self.counts = np.zeros(2, np.int64)  # of vertices and areas
        self.lines = [np.zeros(1, np.int64)]
        self.columns = slice(0, 0)  # of the last strip
        self.above = np.full(width + 2, NO_CLASS, np.uint8)  # the last row, and its areas
        self.areas_above = np.full(width + 2, -1, np.int32)
        self.column = np.full(width + 1, -1, np.int32)  # last vertex on each line between columns

    def add(self, label: NDArray[np.uint8], confidence: NDArray[np.float32], left: int) -> None:
        """Add rows from a column on."""
        height, columns = len(label), slice(left, left + label.shape[1])
        begin = min(left, self.columns.start)
        width = max(columns.stop, self.columns.stop) - begin
        rows = np.full((height + 1, width + 2), NO_CLASS, np.uint8)
        rows[0] = self.above[begin : begin + width + 2]
        rows[1:, left - begin + 1 :][:, : label.shape[1]] = label
        self.vertices = _with_room(self.vertices, self.counts[0] + height * (width + 1))
        self.areas = _with_room(self.areas, self.counts[1] + label.size)
        ends = np.empty(height, np.int64)
        _scan_rows(
            rows,
            confidence,
            begin,
            left - begin,
            self.height,
            self.areas_above[begin:],
            self.column[begin:],
            self.vertices,
            self.areas,
            self.counts,
            ends,
        )
        self.lines.append(ends)
        self.height += height
        self.above[...] = NO_CLASS
        self.above[begin : begin + width + 2] = rows[-1]
        self.columns = columns

    def outlines(self, origin: tuple[int, int]) -> Outlines:
        """Return the areas of all rows."""
        self.add(np.empty((1, 0), np.uint8), np.empty((1, 0), np.float32), self.columns.start)
        vertices, areas = self.vertices[: self.counts[0]], self.areas[: self.counts[1]]
        number = _join_areas(areas)
        for name in ("area", "opposite"):
            vertices[name] = number[vertices[name]]
        areas = areas[areas["joined"] == np.arange(len(areas))]
        size = int(np.bitwise_count(vertices["sides"]).sum(dtype=np.int64))
        corners, rings = np.empty(size, np.int32), np.empty(size // 4, _RING)
        rings = rings[: _trace(vertices, corners, rings)]
        vertices["done"] = False
        outer = rings[~rings["is_hole"]]
        order = outer["area"][
            np.lexsort([outer[key] for key in ("left", "top", "right", "bottom")])
        ]
        place = np.empty(len(areas), np.int64)
        place[order] = np.arange(len(areas))
        owner = place[rings["area"]]
        sort = np.lexsort((-rings["first"], -rings["left"], rings["is_hole"], owner))
        first_ring = np.append(0, np.cumsum(np.bincount(owner, minlength=len(areas))))
        lines = np.concatenate(self.lines)
        return Outlines(vertices, lines, corners, rings[sort], first_ring, areas[order], origin)


def _with_room(items: NDArray[np.void], count: int) -> NDArray[np.void]:
    """Return an array with memory for more items."""
    if count <= len(items):
        return items
    larger = np.empty(max(count, 2 * len(items)), items.dtype)  # memory not written to is not used
    larger[: len(items)] = items
    return larger


@compiled
def _scan_rows(
    label: NDArray[np.uint8],
    confidence: NDArray[np.float32],
    left: int,
    skipped: int,
    top: int,
    areas_above: NDArray[np.int32],
    column: NDArray[np.int32],
    vertices: Any,  # noqa: ANN401 - of _VERTEX; numba sees its fields
    areas: Any,  # noqa: ANN401 - of AREA
    counts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> None:
    """Add the vertices and areas of rows, below the first one; ``ends`` are vertices up to each.

    They begin at the column ``left``, and so many columns before those with a confidence.
    """
    vertex, area = counts
    for row in range(1, label.shape[0]):
        northwest = -1
        for x in range(label.shape[1] - 1):
            nw, ne, sw, se = (
                label[row - 1, x],
                label[row - 1, x + 1],
                label[row, x],
                label[row, x + 1],
            )
            northeast, own = areas_above[x + 1], -1
            if se != NO_CLASS:
                if se == sw:
                    own = areas_above[x]
                    if se == ne:
                        _join(areas, own, northeast)
                elif se == ne:
                    own = northeast
                else:
                    own = area
                    areas[own].joined, areas[own].value = own, se
                    areas[own].pixels, areas[own].confidence = 0, 0.0
                    area += 1
                areas[own].pixels += 1
                areas[own].confidence += confidence[row - 1, x - skipped]
            sides = (ne != se) | (nw != ne) << _NORTH | (nw != sw) << _WEST | (sw != se) << _SOUTH
            if sides not in (0, 1 | 1 << _WEST, 1 << _NORTH | 1 << _SOUTH):  # no straight line
                new = vertices[vertex]
                new.x, new.y, new.sides = left + x, top + row - 1, sides
                new.area, new.opposite = own, northwest
                new.kept, new.done = True, False
                if sides >> _NORTH & 1:
                    new.north = column[x]
                    vertices[column[x]].south = vertex
                column[x] = vertex
                vertex += 1
            northwest = northeast
            areas_above[x + 1] = own
        ends[row - 1] = vertex
    counts[0], counts[1] = vertex, area


@compiled
def _root(areas: Any, area: int) -> int:  # noqa: ANN401 - of AREA
    """Return the first of the areas that one was found to belong to."""
    while areas[area].joined != area:
        areas[area].joined = areas[areas[area].joined].joined
        area = areas[area].joined
    return area


@compiled
def _join(areas: Any, one: int, other: int) -> None:  # noqa: ANN401 - of AREA
    a, b = _root(areas, one), _root(areas, other)
    areas[max(a, b)].joined = min(a, b)


@compiled
def _join_areas(areas: Any) -> NDArray[np.int32]:  # noqa: ANN401 - of AREA
    """Add areas to those that they belong to; return the number of each among these, last -1."""
    number = np.full(len(areas) + 1, -1, np.int32)
    count = 0
    for area in range(len(areas)):
        root = _root(areas, area)
        if root == area:
            number[area] = count
            count += 1
        else:
            number[area] = number[root]
            areas[root].pixels += areas[area].pixels
            areas[root].confidence += areas[area].confidence
    return number


@compiled
def _step(vertices: Any, vertex: int, way: int) -> int:  # noqa: ANN401 - of _VERTEX
    """Return the next vertex in a direction."""
    if way == _EAST:
        return vertex + 1
    if way == _WEST:
        return vertex - 1
    return int(vertices[vertex].north if way == _NORTH else vertices[vertex].south)


@compiled
def _is_node(sides: int) -> bool:
    """Return whether more than two outlines meet."""
    return (sides & 1) + (sides >> 1 & 1) + (sides >> 2 & 1) + (sides >> 3) > 2


@compiled
def _trace(vertices: Any, corners: NDArray[np.int32], rings: Any) -> int:  # noqa: ANN401 - of _VERTEX and _RING
    """Write the rings of all areas, which lie to the left of them, and return their number."""
    count, stop = 0, 0
    for first in range(len(vertices)):
        area = vertices[first].area
        if area < 0 or vertices[first].done or not vertices[first].sides >> _SOUTH & 1:
            continue
        start, vertex, way = stop, first, _SOUTH
        while True:
            corners[stop] = vertex
            stop += 1
            if way == _SOUTH:
                vertices[vertex].done = True
            vertex = _step(vertices, vertex, way)
            sides = vertices[vertex].sides
            left, right = (way + 1) % 4, (way + 3) % 4
            if sides == 15 and _touches_itself(vertices, vertex, way, area):
                way = right  # rings touch here, but do not cross
            elif sides >> left & 1:
                way = left
            elif not sides >> way & 1:
                way = right
            if vertex == first and way == _SOUTH:
                break
        rings[count].area = area
        _measure(vertices, corners, start, stop, rings[count])
        count += 1
    return count


@compiled
def _touches_itself(vertices: Any, vertex: int, way: int, area: int) -> bool:  # noqa: ANN401 - of _VERTEX
    """Return whether the pixel ahead on the right, where four meet, is of the area on the left."""
    if way == _EAST:
        return bool(vertices[vertex].area == area)
    if way == _WEST:
        return bool(vertices[vertex].opposite == area)
    other = vertex - 1 if way == _SOUTH else vertices[vertex].north
    return bool(vertices[other].area == area)


@compiled
def _measure(vertices: Any, corners: NDArray[np.int32], start: int, stop: int, ring: Any) -> None:  # noqa: ANN401 - of _VERTEX and _RING
    """Let a ring begin at the upper one of its leftmost corners, and write its other fields."""
    begin = vertices[corners[start]]
    ring.top, ring.bottom, ring.right = begin.y, begin.y, begin.x
    first, twice = start, 0
    before = vertices[corners[stop - 1]]
    for at in range(start, stop):
        here, least = vertices[corners[at]], vertices[corners[first]]
        if here.x < least.x or (here.x == least.x and here.y < least.y):
            first = at
        ring.top, ring.bottom = min(ring.top, here.y), max(ring.bottom, here.y)
        ring.right = max(ring.right, here.x)
        twice += before.x * np.int64(here.y) - here.x * np.int64(before.y)
        before = here
    corners[start:stop] = np.roll(corners[start:stop], start - first)
    ring.left, ring.first = vertices[corners[start]].x, vertices[corners[start]].y
    ring.start, ring.length, ring.is_hole = start, stop - start, twice > 0


@compiled
def _simplify(
    vertices: Any,  # noqa: ANN401 - of _VERTEX
    lines: NDArray[np.int64],
    corners: NDArray[np.int32],
    rings: Any,  # noqa: ANN401 - of _RING
    limit: float,
) -> None:
    """Simplify the edges of rings, each once; ``limit`` is twice the largest area of a triangle."""
    for number in range(len(rings)):
        start, length = rings[number].start, rings[number].length
        ring = corners[start : start + length]
        first = 0
        while first < length and not _is_node(vertices[ring[first]].sides):
            first += 1
        if first == length:
            if not vertices[ring[0]].done:
                _simplify_edge(vertices, lines, ring, True, True, limit)
            continue
        ring = np.append(ring[first:], ring[: first + 1])
        begin = 0
        for end in range(1, length + 1):
            if _is_node(vertices[ring[end]].sides):
                if end - begin > 1 and not vertices[ring[begin + 1]].done:
                    is_ring = ring[begin] == ring[end]
                    edge = ring[begin:end] if is_ring else ring[begin : end + 1]
                    _simplify_edge(vertices, lines, edge, is_ring, False, limit)
                begin = end


@compiled
def _simplify_edge(
    vertices: Any,  # noqa: ANN401 - of _VERTEX
    lines: NDArray[np.int64],
    edge: NDArray[np.int32],
    is_ring: bool,
    is_free: bool,
    limit: float,
) -> None:
    """Remove vertices of an edge between two nodes, of a ring from a node on, or of a free ring."""
    size = len(edge)
    after, before = np.arange(1, size + 1), np.arange(-1, size - 1)
    after[-1], before[0] = 0, size - 1
    begin, stop = 0 if is_free else 1, size if is_ring else size - 1
    heap: list[Any] = [(0, 0, 0, 0) for _ in range(0)]  # numba needs the types
    for at in range(begin, stop):
        vertices[edge[at]].done = True
        twice = _twice_area(vertices, edge[before[at]], edge[at], edge[after[at]])
        if twice <= limit:
            heappush(heap, (twice, at, before[at], after[at]))
    least = 3 if is_ring else 2
    while heap and size > least:
        _, at, low, high = heappop(heap)
        if before[at] != low or after[at] != high:
            continue  # a neighbour was removed
        here, one, other = edge[at], edge[low], edge[high]
        if _is_occupied(vertices, lines, one, here, other) or (
            size == 3 and not is_ring and _are_joined(vertices, one, other)
        ):
            continue
        vertices[here].kept = False
        after[low], before[high] = high, low
        before[at] = after[at] = -1
        size -= 1
        for at in (low, high):
            if begin <= at < stop:
                twice = _twice_area(vertices, edge[before[at]], edge[at], edge[after[at]])
                if twice <= limit:
                    heappush(heap, (twice, at, before[at], after[at]))


@compiled
def _twice_area(vertices: Any, a: int, b: int, c: int) -> int:  # noqa: ANN401 - of _VERTEX
    """Return twice the area of a triangle of three vertices."""
    x, y = np.int64(vertices[b].x), np.int64(vertices[b].y)
    left, up = np.int64(vertices[a].x) - x, np.int64(vertices[a].y) - y
    return int(abs(left * (vertices[c].y - y) - up * (vertices[c].x - x)))


@compiled
def _is_occupied(vertices: Any, lines: NDArray[np.int64], a: int, b: int, c: int) -> bool:  # noqa: ANN401 - of _VERTEX
    """Return whether another vertex that is kept lies in or on the triangle of three."""
    triangle = (a, b, c)
    top = min(vertices[a].y, vertices[b].y, vertices[c].y)
    bottom = max(vertices[a].y, vertices[b].y, vertices[c].y)
    for y in range(top, bottom + 1):
        low, high = np.int64(2**31), np.int64(-1)
        for i in range(3):  # where the sides of the triangle cross the line
            one, other = vertices[triangle[i]], vertices[triangle[i - 1]]
            tall = np.int64(other.y) - one.y
            if tall == 0:
                if one.y == y:
                    low, high = min(low, one.x, other.x), max(high, one.x, other.x)
            elif min(one.y, other.y) <= y <= max(one.y, other.y):
                across = (y - one.y) * (np.int64(other.x) - one.x)
                low = min(low, one.x - (-across // tall))
                high = max(high, one.x + across // tall)
        at, end = lines[y], lines[y + 1]
        at += np.searchsorted(vertices["x"][at:end], low)
        while at < end and vertices[at].x <= high:
            if vertices[at].kept and at not in triangle:
                return True
            at += 1
    return False


@compiled
def _are_joined(vertices: Any, one: int, other: int) -> bool:  # noqa: ANN401 - of _VERTEX
    """Return whether an edge between two nodes has no vertex that is kept."""
    for start in range(4):
        if not vertices[one].sides >> start & 1:
            continue
        way, vertex = start, _step(vertices, one, start)
        while not _is_node(vertices[vertex].sides) and not vertices[vertex].kept:
            back = (way + 2) % 4
            for turn in range(4):
                if turn != back and vertices[vertex].sides >> turn & 1:
                    way = turn
                    break
            vertex = _step(vertices, vertex, way)
        if vertex == other:
            return True
    return False
