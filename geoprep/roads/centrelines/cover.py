"""The pixels that one or more raster boxes cover, and the border around them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import shapely
from numpy.typing import NDArray

Box = tuple[int, int, int, int]
"""Top, left, bottom, right in pixels, the last two exclusive."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cover:
    """The pixels of one or more boxes."""

    boxes: tuple[Box, ...]  # boxes in pixels; they may overlap

    @classmethod
    def joining(cls, boxes: Ints, gap: int) -> Cover:
        """Return the pixels of boxes, int64 (box, 4), and of gaps up to ``gap`` pixels between."""
        tree = shapely.STRtree(_polygons(boxes))
        pair = tree.query(_polygons(boxes), predicate="dwithin", distance=gap)
        a, b = boxes[pair[:, pair[0] < pair[1]]]
        low, high = np.maximum(a[:, :2], b[:, :2]), np.minimum(a[:, 2:], b[:, 2:])
        apart = low - high
        # Neighbours: apart along one axis, overlapping along the other.
        between = ((apart > 0).sum(axis=1) == 1) & ((apart < 0).sum(axis=1) == 1)
        fill = np.concatenate([np.minimum(low, high), np.maximum(low, high)], axis=1)[between]
        return cls(tuple(map(tuple, np.concatenate([boxes, fill]).tolist())))

    @property
    def area(self) -> float:
        """Number of pixels."""
        return float(shapely.area(_outline(self.boxes)))

    def border(self, size: tuple[float, float]) -> shapely.Geometry:
        """Return the outline of the covered pixels, holes included."""
        return _border(self.boxes, size)

    def to_border(self, xy: Floats, size: tuple[float, float]) -> Floats:
        """Return the distance of points of the plane to the border, float64 (point,)."""
        sides = _sides(self.boxes, size)
        _, gap = sides.query_nearest(shapely.points(xy), return_distance=True, all_matches=False)
        return np.asarray(gap, np.float64)

    def is_within(self, xy: Floats, size: tuple[float, float]) -> NDArray[np.bool_]:
        """Return which points of the plane are covered, bool (point,)."""
        return shapely.intersects_xy(_placed(self.boxes, size), xy)

    def is_outermost(self, xy: Floats, pixels: float) -> NDArray[np.bool_]:
        """Return which points are closer to the border than a number of pixels, bool (point,)."""
        border = self.border((1.0, -1.0))
        return np.asarray(shapely.dwithin(border, shapely.points(xy), pixels), np.bool_)

    def moved_inside(
        self, row: Ints, col: Ints, reach: int
    ) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """Return the nearest covered pixels, and which of them are within ``reach`` pixels.

        Distances are Chebyshev distances: the larger of rows and columns.
        """
        far = np.full(len(row), reach + 1)
        to_row, to_col = row.copy(), col.copy()
        boxes = np.array(self.boxes)
        if len(row):  # the boxes near any of the pixels
            low = row.min() - reach, col.min() - reach
            high = row.max() + reach, col.max() + reach
            boxes = boxes[(boxes[:, :2] <= high).all(axis=1) & (boxes[:, 2:] > low).all(axis=1)]
        for top, left, bottom, right in boxes.tolist():
            in_row, in_col = row.clip(top, bottom - 1), col.clip(left, right - 1)
            gap = np.maximum(np.abs(in_row - row), np.abs(in_col - col))
            nearer = gap < far
            to_row[nearer], to_col[nearer] = in_row[nearer], in_col[nearer]
            far = np.minimum(far, gap)
        return to_row, to_col, far <= reach

    def blocks(self, side: int, reach: int) -> list[tuple[int, int]]:
        """Return top and left of the blocks that contain covered pixels."""
        corners: set[tuple[int, int]] = set()
        for top, left, bottom, right in self.boxes:
            rows = range(max(top - reach, 0) // side, (bottom + reach - 1) // side + 1)
            columns = range(max(left - reach, 0) // side, (right + reach - 1) // side + 1)
            corners.update((row * side, column * side) for row in rows for column in columns)
        height, width = (max(box[i] for box in self.boxes) for i in (2, 3))
        return sorted((row, column) for row, column in corners if row < height and column < width)


def clipped_range(start: int, count: int, whole: int) -> tuple[int, int, int, int]:
    """Return a range clipped to 0..whole, at least one long, and the lengths cut off.

    Examples
    --------
    >>> clipped_range(-2, 5, 100)
    (0, 3, 2, 0)
    >>> clipped_range(98, 5, 100)
    (98, 100, 0, 3)
    """
    first, last = min(max(start, 0), whole - 1), max(min(start + count, whole), 1)
    before = min(max(first - start, 0), count - 1)
    return first, last, before, count - before - (last - first)


def _polygons(boxes: Ints) -> NDArray[np.object_]:
    top, left, bottom, right = np.asarray(boxes, np.float64).T
    return np.asarray(shapely.box(left, top, right, bottom), object)


@lru_cache(maxsize=64)
def _outline(boxes: tuple[Box, ...]) -> shapely.Geometry:
    return shapely.union_all(_polygons(np.array(boxes)))


@lru_cache(maxsize=64)
def _placed(boxes: tuple[Box, ...], size: tuple[float, float]) -> shapely.Geometry:
    wide, high = size
    placed = shapely.transform(_outline(boxes), lambda xy: xy * [wide, -high])
    shapely.prepare(placed)
    return placed


@lru_cache(maxsize=64)
def _border(boxes: tuple[Box, ...], size: tuple[float, float]) -> shapely.Geometry:
    border = shapely.boundary(_placed(boxes, size))
    shapely.prepare(border)
    return border


@lru_cache(maxsize=64)
def _sides(boxes: tuple[Box, ...], size: tuple[float, float]) -> shapely.STRtree:
    """Return a tree of the straight sides of the border."""
    corners, line = shapely.get_coordinates(
        shapely.get_parts(_border(boxes, size)), return_index=True
    )
    pairs = np.stack([corners[:-1], corners[1:]], axis=1)[line[:-1] == line[1:]]
    return shapely.STRtree(shapely.linestrings(pairs))
