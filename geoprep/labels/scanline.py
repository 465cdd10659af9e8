"""Fill polygons on a grid by the pixel-centre rule, in a fifth of the time of GDAL.

For every row, the edges that cross the line through its pixel centres are sorted, and every second
interval between them is filled. `rasterio.features.rasterize` gives the same bytes, but converts
geometries to Python lists, copies the raster twice and holds the interpreter lock. The only
difference are centres exactly on a horizontal edge: here they are inside if the polygon is below.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled


@compiled
def _crossed_rows(y0: float, y1: float, height: int) -> tuple[int, int]:
    """Return the first row whose centre line an edge crosses, and the last + 1."""
    low, high = min(y0, y1) - 0.5, max(y0, y1) - 0.5
    # Clamped before the conversion, so that a distant polygon does not overflow an integer.
    first = math.ceil(min(max(low, 0.0), height))
    return first, math.ceil(min(max(high, 0.0), height))


@compiled
def _rows_of(y: NDArray[np.float64], height: int) -> tuple[int, int]:
    """Return the first row that some rings may cross, and the last + 1."""
    low, high = y[0], y[0]
    for value in y:
        low, high = min(low, value), max(high, value)
    return _crossed_rows(low, high, height)


@compiled
def _sorted_crossings(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    ring: NDArray[np.int64],
    top: int,
    starts: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the x where edges cross each row's centre line, ascending; write the rows' starts.

    Row ``top + r`` has the crossings ``starts[r]:starts[r + 1]``.
    """
    height = starts.shape[0] - 1
    starts[:] = 0
    for i in range(x.shape[0] - 1):
        if ring[i] == ring[i + 1]:
            first, end = _crossed_rows(y[i], y[i + 1], top + height)
            for row in range(max(first - top, 0), end - top):
                starts[row + 1] += 1
    for row in range(height):
        starts[row + 1] += starts[row]
    crossings = np.empty(starts[height], np.float64)
    ends = starts[:height].copy()
    for i in range(x.shape[0] - 1):
        if ring[i] == ring[i + 1]:
            x0, y0, x1, y1 = x[i], y[i], x[i + 1], y[i + 1]
            if (
                y0 > y1
            ):  # same direction, so that two polygons with this edge cross a row at the same x
                x0, y0, x1, y1 = x1, y1, x0, y0
            first, end = _crossed_rows(y0, y1, top + height)
            for row in range(max(first - top, 0), end - top):
                crossing = (top + row + 0.5 - y0) * (x1 - x0) / (y1 - y0) + x0
                k = ends[row]
                while k > starts[row] and crossings[k - 1] > crossing:
                    crossings[k] = crossings[k - 1]
                    k -= 1
                crossings[k] = crossing
                ends[row] += 1
    return crossings


@compiled
def _fill(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    ring: NDArray[np.int64],
    value: int,
    raster: NDArray[np.uint8],
) -> None:
    """Set the pixels inside the rings of one polygon; holes are rings inside rings."""
    height, width = raster.shape
    top, bottom = _rows_of(y, height)
    if top >= bottom:
        return
    starts = np.empty(bottom - top + 1, np.int64)
    crossings = _sorted_crossings(x, y, ring, top, starts)
    for row in range(bottom - top):
        for k in range(starts[row], starts[row + 1] - 1, 2):
            left = math.floor(min(max(crossings[k] + 0.5, 0.0), width))
            right = math.floor(min(max(crossings[k + 1] + 0.5, 0.0), width))
            for col in range(left, right):
                raster[top + row, col] = value


@compiled
def fill_polygons(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    ring: NDArray[np.int64],
    first: NDArray[np.int64],
    value: NDArray[np.uint8],
    raster: NDArray[np.uint8],
) -> None:
    """Set the pixels inside polygons, one after another, in a raster (y, x).

    ``x``, ``y`` (points,) are concatenated closed rings in pixels from the raster's corner;
    ``ring`` and ``first`` are those of `SpeedPolygons`.
    """
    for i in range(value.shape[0]):
        a, b = first[i], first[i + 1]
        if a < b:
            _fill(x[a:b], y[a:b], ring[a:b], value[i], raster)
