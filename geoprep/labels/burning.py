"""Burn road lines and areas with speeds into uint8 labels on any grid.

This reproduces the CRESI tools (``data_prep/speed_masks.py``) to the pixel: project to UTM, buffer
by 2 m with one segment per quadrant, unite the roads of each speed, project to the image's CRS, and
burn in ascending speed by the pixel-centre rule. Instead of a union, outlines get the vertices that
it would give them (`noding`) and are drawn one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray

from geoprep.crs import beside, reproject, to_lonlat, transformer, utm_crs
from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid
from geoprep.labels.noding import noded
from geoprep.labels.scanline import fill_polygons
from geoprep.labels.table import LabelRoads
from geoprep.speed import BACKGROUND

DEFAULT_BUFFER_M: Final = 2.0
_QUADRANT_SEGMENTS: Final = 1
_AREA: Final = 2
"""Dimensions of a polygon."""
_FARTHEST_M: Final = 1e8
"""No place on Earth is this far from the origin of a zone; GEOS overflows far beyond it."""
_MOST_PAIRS: Final = 50_000
"""Close pairs of segments of a line that long lines of a scene may have: two seconds of GEOS."""
_TANGLE: Final = 64
"""Close pairs that every road may have: roundabouts, hairpins, cloverleaves."""
_LONG: Final = 256
_MOST_COMPARED: Final = 512
_PIECE_SEGMENTS: Final = 16


@dataclass(frozen=True, slots=True)
class SpeedPolygons:
    """Outlines of roads in an image's CRS: a polygon per line or area, in ascending speed."""

    xy: NDArray[np.float64]  # (points, 2), concatenated closed rings
    ring: NDArray[np.int64]  # (points,), the ring that a point is part of
    first: NDArray[np.int64]  # (polygons + 1,), first point of each, and the number of points
    bounds: NDArray[np.float64]  # (polygons, 4): least x, least y, greatest x, greatest y
    value: NDArray[np.uint8]  # (polygons,), label bytes; first those of unknown speed or nodata


def speed_polygons(
    roads: LabelRoads, grid: Grid, *, buffer_m: float | NDArray[np.float64] = DEFAULT_BUFFER_M
) -> SpeedPolygons:
    """Return the outlines of roads; they are made once per scene and burned into any window.

    Lines are widened by ``buffer_m`` metres on either side, one value or one per line, in the UTM
    zone of the scene; lines outside its domain are left out. Areas are not widened.
    """
    buffers = np.broadcast_to(np.asarray(buffer_m, np.float64), roads.lines.shape)
    if not np.all(np.asarray(buffer_m) > 0):
        raise UsageError(f"`buffer` {buffer_m} m: must be larger than 0")
    utm = buffer_crs(grid)
    lines = reproject(roads.lines, roads.crs, utm)
    reached = np.flatnonzero(_is_within(lines, _FARTHEST_M))
    if len(roads.lines) and not len(reached):
        raise LabelError(f"roads at {_place(roads)} are not on Earth; check their CRS {roads.crs}")
    is_area = shapely.get_dimensions(lines[reached]) == _AREA
    areas, reached = reached[is_area], reached[~is_area]
    pieces, owner, cut = _untangled(lines[reached], buffers[reached])
    road = reached[owner]
    outlines = shapely.buffer(pieces, buffers[road], quad_segs=_QUADRANT_SEGMENTS)
    # Areas do not need the vertices that a union would add.
    apart = np.concatenate([cut, np.ones(len(areas), np.bool_)])
    outlines, mph = np.concatenate([outlines, lines[areas]]), roads.mph[np.append(road, areas)]
    xy, ring, first, mph = _outlined(outlines, mph, apart)
    x, y = transformer(utm, grid.crs).transform(*xy.T)
    left, _, right, _ = grid.bounds
    xy = np.column_stack([beside(x, grid.crs, (left + right) / 2), y])
    if not np.isfinite(xy).all():
        raise LabelError(
            f"roads at {_place(roads)} have no coordinates in the image's CRS, {grid.crs}. Check "
            "the CRS of both"
        )
    bounds = np.hstack([end.reduceat(xy, first[:-1]) for end in (np.minimum, np.maximum)])
    value = roads.label_bytes(mph)
    return SpeedPolygons(xy, ring, first, bounds, value)


def _untangled(
    lines: NDArray[np.object_], buffer_m: NDArray[np.float64]
) -> tuple[NDArray[np.object_], NDArray[np.intp], NDArray[np.bool_]]:
    """Return lines that can be buffered quickly: tangles, which take GEOS hours, are cut to pieces.

    Also the index of the line that each is part of, and whether that was cut.
    """
    long = np.flatnonzero(shapely.get_num_coordinates(lines) > _LONG)
    pairs = np.array([_near_pairs(lines[i], buffer_m[i]) for i in long])
    tangles = long[(pairs > _TANGLE) & (np.cumsum(pairs) > _MOST_PAIRS)]
    whole = np.setdiff1d(np.arange(len(lines)), tangles)
    pieces, owner = [lines[whole]], [whole]
    for index in tangles.tolist():
        points = shapely.get_coordinates(lines[index])
        starts = range(0, len(points) - 1, _PIECE_SEGMENTS)
        pieces.append(
            np.array([shapely.LineString(points[s : s + _PIECE_SEGMENTS + 1]) for s in starts])
        )
        owner.append(np.full(len(starts), index))
    owners = np.concatenate(owner)
    return np.concatenate(pieces), owners, np.isin(owners, tangles)


def _near_pairs(line: shapely.LineString, buffer_m: float) -> float:
    """Return the number of pairs of segments that are close but not consecutive, from a sample.

    Close: bounding boxes at most twice the buffer apart; consecutive: less than twice that along
    the line.
    """
    xy = shapely.get_coordinates(line)
    segments = np.asarray(shapely.linestrings(np.stack([xy[:-1], xy[1:]], axis=1)), object)
    sample = np.arange(0, len(segments), 1 + len(segments) // _MOST_COMPARED)
    low, high = np.hsplit(shapely.bounds(segments[sample]), 2)
    around = shapely.box(*(low - 2 * buffer_m).T, *(high + 2 * buffer_m).T)
    one, other = shapely.STRtree(segments).query(around)
    one = sample[one]
    walked = np.append(0, np.cumsum(np.hypot(*np.diff(xy, axis=0).T)))
    apart = walked[np.maximum(one, other)] - walked[np.minimum(one, other) + 1] >= 4 * buffer_m
    return float(np.count_nonzero(apart) / 2 * len(segments) / len(sample))


def _outlined(
    outlines: NDArray[np.object_], mph: NDArray[np.float64], cut: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return polygons in the form of `SpeedPolygons`, in metres, and the speed of each.

    ``cut`` marks areas and pieces of tangles. They get no vertices from others, as there may be
    millions.
    """
    ascending = np.argsort(mph, kind="stable")
    ascending = ascending[~shapely.is_empty(outlines[ascending])]  # a buffer of 1e-9 m, say
    outlines, mph, cut = outlines[ascending], mph[ascending], cut[ascending]
    rings, polygon = shapely.get_rings(outlines, return_index=True)
    xy, ring = shapely.get_coordinates(rings, return_index=True)
    _, speed = np.unique(mph, return_inverse=True)
    xy, ring = noded(xy, ring, polygon, np.where(cut, -1, speed))
    first = np.searchsorted(polygon[ring], np.arange(len(outlines) + 1))
    return xy, ring, first, mph


def burn(
    polygons: SpeedPolygons,
    transform: Affine,
    shape: tuple[int, int],
    *,
    around: int = BACKGROUND,
) -> NDArray[np.uint8]:
    """Return the label of roads on a grid, uint8 (y, x); ``around`` is the byte around them.

    A pixel is road if its centre is; the highest of several speeds is kept. The grid may be
    rotated, sheared or south-up. The label of a window is the slice of the whole one.
    """
    mask = np.full(shape, around, dtype=np.uint8)
    grid = Grid(*shape, transform, "")
    low, high = np.split(np.array(grid.bounds), 2)
    near = (polygons.bounds[:, :2] <= high) & (polygons.bounds[:, 2:] >= low)
    chosen = np.flatnonzero(near.all(axis=1))
    counts = np.diff(polygons.first)[chosen]
    first = np.concatenate([[0], np.cumsum(counts)])
    points = np.repeat(polygons.first[chosen] - first[:-1], counts) + np.arange(first[-1])
    x, y = grid.to_pixels(polygons.xy[points]).T
    fill_polygons(x, y, polygons.ring[points], first, polygons.value[chosen], mask)
    return mask


def buffer_crs(grid: Grid) -> str:
    """Return the projected CRS that a scene's roads are widened in: the UTM zone of its centre.

    As in the reference, the northern zone serves both hemispheres. The reference takes the centroid
    of the roads, which one long line in a label file moves.
    """
    return utm_crs(float(to_lonlat(grid.crs).transform(*grid.centre)[0]), lat=0.0)


def _is_within(geometry: NDArray[np.object_], limit: float) -> NDArray[np.bool_]:
    """Return where all coordinates are finite and closer to zero than the limit."""
    return np.asarray((np.abs(shapely.bounds(geometry)) < limit).all(axis=1), dtype=np.bool_)


def _place(roads: LabelRoads) -> str:
    return str(tuple(round(value, 3) for value in shapely.total_bounds(roads.lines).tolist()))
