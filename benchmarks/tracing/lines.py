"""How straight and how exact the lines of traced road networks are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from benchmarks.common import Result
from geoprep.roads import RoadGraph, in_crs

_STEP_M: Final = 1.0
_NEAR_M: Final = 4.0
"""Samples farther from a true line are on no road of it, and are left out."""
_ENDS_M: Final = 8.0
"""Samples closer to the ends of their line are left out: junctions have places of their own."""
_SHORT_M: Final = 0.25
"""Headings are those of chords of twice this length."""


def measure_lines(
    result: Result, prefix: str, pairs: Iterable[tuple[RoadGraph, RoadGraph]]
) -> None:
    """Record excess length, heading error and distance of lines, and their vertices per km.

    Excess length is that beyond the true line between the same points.

    Parameters
    ----------
    pairs
        Ground truth and traced network of every scene.
    """
    samples, vertices, length_m = [np.empty((0, 4))], 0, 0.0
    for truth, traced in pairs:
        vertices += int(shapely.get_num_coordinates(traced.lines).sum())
        length_m += float(traced.length_m.sum())
        true_lines = in_crs(truth, traced.crs or "").lines
        if len(true_lines):
            tree = shapely.STRtree(true_lines)
            samples += [_compared(line, tree) for line in traced.lines]
    moved, true_m, heading, distance = np.concatenate(samples).T
    if not len(moved):
        return
    add = result.add
    both = np.isfinite(true_m)
    add(f"{prefix}.excess_length", "%", [100 * (moved[both].sum() / true_m[both].sum() - 1)])
    add(f"{prefix}.heading_error", "degrees", [float(heading.mean())])
    add(f"{prefix}.distance", "m", [float(distance.mean())])
    add(f"{prefix}.vertices", "per km", [vertices / length_m * 1000])


def _compared(line: shapely.LineString, tree: shapely.STRtree) -> NDArray[np.float64]:
    """Return float64 (sample, 4): samples along a line against the nearest of the lines of a tree.

    Columns: metres to the next sample, the same along the true line (NaN where the next sample is
    near another one), heading error in degrees, and distance to the true line in metres.
    """
    count = max(2, int(line.length / _STEP_M))
    along = (np.arange(count) + 0.5) * line.length / count
    points = shapely.line_interpolate_point(line, along)
    (_, near), distance = tree.query_nearest(points, return_distance=True, all_matches=False)
    nearest = tree.geometries[near]
    place = shapely.line_locate_point(nearest, points)
    turn = _heading(np.full(count, line), along) - _heading(nearest, place)
    heading = np.degrees(np.abs((turn + np.pi / 2) % np.pi - np.pi / 2))
    inner = np.minimum(place, shapely.length(nearest) - place) > 2 * _SHORT_M
    used = inner & (distance < _NEAR_M) & (np.minimum(along, line.length - along) > _ENDS_M)
    same = used[1:] & used[:-1] & (near[1:] == near[:-1])
    true_m = np.append(np.where(same, np.abs(np.diff(place)), np.nan), np.nan)
    moved = np.full(count, line.length / count)
    columns: NDArray[np.float64] = np.column_stack([moved, true_m, heading, distance])[used]
    return columns


def _heading(lines: NDArray[np.object_], along: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the angle of lines to the x axis at places in metres along them, in radians."""
    start, stop = (
        shapely.get_coordinates(shapely.line_interpolate_point(lines, np.maximum(at, 0)))
        for at in (along - _SHORT_M, along + _SHORT_M)
    )
    angle: NDArray[np.float64] = np.arctan2(*(stop - start).T[::-1])
    return angle
