"""Arrays of coordinates to arrays of shapely geometries."""

from __future__ import annotations

import numpy as np
import shapely
from numpy.typing import NDArray


def points(xy: NDArray[np.float64]) -> NDArray[np.object_]:
    """Return a point per row of float64 (point, 2)."""
    return np.asarray(shapely.points(xy), object)


def segments(ends: NDArray[np.float64]) -> NDArray[np.object_]:
    """Return straight lines from float64 (line, 2, 2)."""
    return np.asarray(shapely.linestrings(ends), object)


def line_strings(xy: NDArray[np.float64], line: NDArray[np.int64]) -> NDArray[np.object_]:
    """Return lines from their coordinates and the number of the line that each is part of."""
    if not len(xy):
        return np.empty(0, object)
    return np.asarray(shapely.linestrings(xy, indices=line), object)
