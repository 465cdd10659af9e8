"""Burn road lines and areas into uint8 labels on any grid.

This reproduces the CRESI tools (``data_prep/speed_masks.py``) to the pixel:

1. Lines are projected to a UTM zone and widened on either side, with one segment per quadrant.
2. The outlines of lines with the same label byte are united.
3. The unions are projected to the image's CRS and burned in ascending speed: a pixel is road if its
   centre is.

A union has a vertex wherever outlines cross, and the straight edges between vertices are curves in
another CRS. So the union of a window takes in the lines that cross those of the window: its label
is the slice of that of the whole scene.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import shapely
from numpy.typing import NDArray
from rasterio.features import rasterize

from geoprep.crs import beside, reproject, to_lonlat, utm_crs
from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid
from geoprep.labels.label_options import DEFAULT_BUFFER_M
from geoprep.labels.vector_labels import LabelShapes
from geoprep.quiet import no_georeference_warning
from geoprep.speed import BACKGROUND, UNKNOWN_SPEED

_QUADRANT_SEGMENTS: Final = 1
_FARTHEST_M: Final = 1e8
"""No place on Earth is this far from the origin of a zone; GEOS overflows far beyond it."""
_MOST_CROSSINGS: Final = 50_000
"""Pairs of close lines of a window that are united, and of close segments of the long lines of a
scene: up to five seconds of GEOS."""
_TANGLE: Final = 64
"""Close pairs of segments that every line may have: roundabouts, hairpins, cloverleaves."""
_LONG: Final = 256
_MOST_COMPARED: Final = 512
_PIECE_SEGMENTS: Final = 16

Shapes = list[tuple[dict[str, Any], int]]
"""Geometries as GeoJSON in an image's CRS, each with its label byte, in the order of drawing."""


@dataclass(frozen=True, slots=True)
class LabelOutlines:
    """Roads of a label in the UTM zone of a scene: made once, and united for any window of it.

    Areas are drawn one by one as they are; so are the outlines of pieces of lines that take GEOS
    hours to widen.
    """

    shapes: NDArray[np.object_]  # (roads,) lines to widen, and polygons
    is_line: NDArray[np.bool_]  # (roads,)
    half_width: float  # of lines, in metres
    value: NDArray[np.uint8]  # (roads,) label bytes
    tree: shapely.STRtree  # of the shapes
    utm: str
    name: str  # of the file, for messages

    @classmethod
    def of(
        cls, roads: LabelShapes, grid: Grid, buffer_m: float = DEFAULT_BUFFER_M
    ) -> LabelOutlines:
        """Return the roads of a scene on a grid.

        Lines and points are widened by ``buffer_m`` metres on either side in the UTM zone of the
        scene; those outside its domain are left out.
        """
        if not buffer_m > 0:
            raise UsageError("buffer", f"{buffer_m} m: must be larger than 0")
        utm = buffer_crs(grid)
        is_area = shapely.get_dimensions(roads.lines) == 2
        shapes = roads.lines.copy()
        shapes[is_area] = grid.areas_near(roads.lines[is_area], roads.crs, utm)
        shapes[~is_area] = reproject(roads.lines[~is_area], roads.crs, utm)
        reached = (np.abs(shapely.bounds(shapes)) < _FARTHEST_M).all(axis=1)
        if len(shapes) and not (reached | shapely.is_empty(shapes)).any():
            place = [round(value, 3) for value in shapely.total_bounds(roads.lines).tolist()]
            raise LabelError(
                f"{roads.name}: features at {place} are not on Earth; check their CRS {roads.crs}"
            )
        shapes, value = shapes[reached], roads.value[reached]
        points = shapely.get_dimensions(shapes) == 0
        shapes[points] = shapely.buffer(shapes[points], buffer_m)
        tangles = _tangles(shapes, buffer_m)
        pieces = [
            shapely.buffer(_pieces(shapes[i]), buffer_m, quad_segs=_QUADRANT_SEGMENTS)
            for i in tangles
        ]
        whole = np.setdiff1d(np.arange(len(shapes)), tangles)
        road = np.concatenate([whole, np.repeat(tangles, [len(each) for each in pieces])])
        shapes = np.concatenate([shapes[whole], *pieces])
        is_line, tree = shapely.get_dimensions(shapes) == 1, shapely.STRtree(shapes)
        return cls(shapes, is_line, buffer_m, value[road], tree, utm, roads.name)

    def within(self, window: Grid) -> Shapes:
        """Return what is to be drawn on the grid of a window of the scene."""
        roads, united = self._near(window)
        values = np.unique(self.value[roads])
        # Known speeds are drawn over areas of unknown speed, and classes over nodata.
        values = np.roll(values, np.count_nonzero(values >= UNKNOWN_SPEED))
        by_value = [roads[self.value[roads] == value] for value in values]
        try:
            outlines = [self._outlines(chosen, united) for chosen in by_value]
        except shapely.errors.GEOSException as error:
            raise LabelError(
                f"{self.name}: its lines cannot be widened ({error}). Check them with ogrinfo, or "
                "remove the label to build the scene as unlabelled"
            ) from error
        drawn = np.concatenate([np.empty(0, object), *outlines])
        value = np.repeat(values, [len(each) for each in outlines])
        xy = shapely.get_coordinates(reproject(drawn, self.utm, window.crs))
        if not np.isfinite(xy).all():
            raise LabelError(
                f"{self.name}: its features have no coordinates in the image's CRS, {window.crs}. "
                "Check the CRS of both"
            )
        xy[:, 0] = beside(xy[:, 0], window.crs, window.centre[0])
        placed = shapely.set_coordinates(drawn.copy(), xy).tolist()
        return [
            (shape.__geo_interface__, byte)
            for shape, byte in zip(placed, value.tolist(), strict=True)
        ]

    def _near(self, window: Grid) -> tuple[NDArray[np.intp], bool]:
        """Return the roads of a window, with the lines that cross these if they can be united."""
        outline = window.outline_in(self.utm)
        if not np.isfinite(outline.bounds).all():  # it extends beyond the domain of the zone
            return np.arange(len(self.shapes)), len(self.shapes) ** 2 <= _MOST_CROSSINGS
        # Its sides are curves, here of short segments.
        near = self.tree.query(outline, "dwithin", distance=self.half_width + outline.length / 1000)
        roads = np.union1d(near, self._crossing(near))
        if len(self._crossing(roads)) > 2 * _MOST_CROSSINGS:
            return np.sort(near), False
        return roads, True

    def _crossing(self, roads: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the lines of the same value that cross each of some lines, itself included."""
        lines = roads[self.is_line[roads]]
        line, other = self.tree.query(self.shapes[lines], "dwithin", distance=2 * self.half_width)
        alike = (self.value[lines[line]] == self.value[other]) & self.is_line[other]
        crossing: NDArray[np.intp] = other[alike]
        return crossing

    def _outlines(self, roads: NDArray[np.intp], united: bool) -> NDArray[np.object_]:
        """Return the outlines of roads of one value, those of all lines as one if ``united``."""
        is_line = self.is_line[roads]
        polygons, lines = self.shapes[roads[~is_line]], self.shapes[roads[is_line]]
        if united:
            lines = np.array([shapely.multilinestrings(lines)], object)
        outlines = shapely.buffer(lines, self.half_width, quad_segs=_QUADRANT_SEGMENTS)
        outlines = np.concatenate([polygons, outlines])
        return outlines[~shapely.is_empty(outlines)]  # a buffer of 1e-9 m, say


def _tangles(shapes: NDArray[np.object_], half_width: float) -> NDArray[np.intp]:
    """Return the lines that take GEOS hours to widen, since they lie over themselves."""
    is_line = shapely.get_dimensions(shapes) == 1
    long = np.flatnonzero(is_line & (shapely.get_num_coordinates(shapes) > _LONG))
    pairs = np.array([_near_pairs(shapes[i], half_width) for i in long])
    return long[(pairs > _TANGLE) & (np.cumsum(pairs) > _MOST_CROSSINGS)]


def _pieces(line: shapely.LineString) -> NDArray[np.object_]:
    points = shapely.get_coordinates(line)
    starts = range(0, len(points) - 1, _PIECE_SEGMENTS)
    return np.array([shapely.LineString(points[s : s + _PIECE_SEGMENTS + 1]) for s in starts])


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
    sampled, other = shapely.STRtree(segments).query(around)
    segment = sample[sampled]
    walked = np.append(0, np.cumsum(np.hypot(*np.diff(xy, axis=0).T)))
    between = walked[np.maximum(segment, other)] - walked[np.minimum(segment, other) + 1]
    apart = between >= 4 * buffer_m
    return float(np.count_nonzero(apart) / 2 * len(segments) / len(sample))


def burn(shapes: Shapes, grid: Grid, *, around: int = BACKGROUND) -> NDArray[np.uint8]:
    """Return shapes drawn on a grid, uint8 (y, x); ``around`` is the byte around them.

    A pixel has the value of the last shape that its centre is in. The grid may be rotated, sheared
    or south-up.

    Examples
    --------
    >>> from affine import Affine
    >>> square = shapely.box(0, 0, 2, 2).__geo_interface__
    >>> burn([(square, 25)], Grid(2, 3, Affine(1, 0, 0, 0, -1, 2), "EPSG:32637")).tolist()
    [[25, 25, 0], [25, 25, 0]]
    """
    mask = np.full(grid.shape, around, dtype=np.uint8)
    if shapes:
        with no_georeference_warning():  # of a raster in memory, before it has its transform
            rasterize(shapes, out=mask, transform=grid.transform)
    return mask


def buffer_crs(grid: Grid) -> str:
    """Return the projected CRS that a scene's roads are widened in: the UTM zone of its centre.

    As in the reference, the northern zone serves both hemispheres. The reference takes the centroid
    of the roads, which one long line in a label file moves.
    """
    return utm_crs(float(to_lonlat(grid.crs).transform(*grid.centre)[0]), lat=0.0)
