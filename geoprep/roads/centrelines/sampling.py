"""Values of a raster at points of its plane, and along lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geoprep.roads.centrelines.rasters import RoadRaster

Floats = NDArray[np.float64]

_CELL: Final = 2048
"""Side in pixels of the cells that are read one at a time."""
_STEP_M: Final = 1.0

Read = Callable[[int, int, int, int], NDArray[Any]]


def values_at(raster: RoadRaster, xy: Floats, read: Read) -> NDArray[Any]:
    """Return the values under points of a raster's plane, (point, ...)."""
    height, width = raster.shape
    at = np.clip(raster.plane.to_pixels(xy), 0, (width - 1, height - 1)).astype(np.int64)
    col, row = at.T
    cell = row // _CELL * (width // _CELL + 1) + col // _CELL
    order = np.argsort(cell, kind="stable")
    parts, back = [], np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    for mine in np.split(order, np.flatnonzero(np.diff(cell[order])) + 1):
        if not len(mine):
            continue
        top, left = int(row[mine].min()), int(col[mine].min())
        size = int(row[mine].max()) - top + 1, int(col[mine].max()) - left + 1
        parts.append(read(top, left, *size)[row[mine] - top, col[mine] - left])
    if not parts:
        return read(0, 0, 1, 1)[:0, 0]
    values: NDArray[Any] = np.concatenate(parts)[back]
    return values


def probability_along(
    raster: RoadRaster, start: Floats, stop: Floats, *, step_m: float = _STEP_M
) -> NDArray[np.uint8]:
    """Return the probability of a road, 0 to 255, along straight lines in a raster's plane."""
    count = max(2, int(np.ceil(np.linalg.norm(stop - start, axis=1).max(initial=0) / step_m)))
    share = (np.arange(count) + 0.5) / count
    xy = start[:, None] + share[None, :, None] * (stop - start)[:, None]
    values: NDArray[np.uint8] = values_at(raster, xy.reshape(-1, 2), raster.probability)
    return values.reshape(len(start), count)
