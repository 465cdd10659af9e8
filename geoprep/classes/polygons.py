"""Classes of predictions as polygons, dissolved across their borders, without gaps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
import shapely
from affine import Affine
from numpy.typing import NDArray
from rasterio.features import rasterize
from rasterio.windows import Window

from geoprep.classes.class_rasters import (
    NODATA,
    class_colors,
    class_names,
    raster_files,
    read_prediction,
)
from geoprep.classes.outlines import AREA, Coverage, Outlines, Strip, coverage_of, outlines_of
from geoprep.classes.right_angles import right_angled
from geoprep.components import connected
from geoprep.crs import areas_m2
from geoprep.errors import UsageError
from geoprep.grid import Grid, local_grid
from geoprep.imagery.headers import describe

if TYPE_CHECKING:
    import geopandas as gpd

_LEAST_PIXELS: Final = 10
"""Polygons of fewer pixels are mostly noise."""
_PRECISION: Final = 1e-3
"""Pixels that coordinates of several rasters are rounded to."""
_STRIP_ROWS: Final = 512
"""Rows of pixels that are read at once."""
_MOST_POLYGONS: Final = 1 << 16
"""Polygons that are made at once."""


def polygonize_rasters(
    sources: Sequence[Path],
    *,
    simplify_m: float | None = None,
    min_area_m2: float | None = None,
    square: bool = False,
    background: bool = False,
    pixel_size: float | None = None,
    advance: Callable[[int, int], None] = lambda _done, _total: None,
) -> gpd.GeoDataFrame:
    """Return the classes of predictions as polygons, see `geoprep.polygonize`.

    ``advance`` is called with the pixels that are done, and all of them.
    """
    import geopandas as gpd

    files = [file for source in sources for file in raster_files(source)]
    names = class_names(files[0])
    if not names:
        raise UsageError(
            f"{files[0]} has no class names: give predictions of classes, or exported labels"
        )
    rasters: list[_Raster] = []
    for file in files:
        if class_names(file) != names:
            raise UsageError(f"{file} and {files[0]} differ in their classes: use one model")
        grid = _grid_of(file, pixel_size, alone=len(files) == 1)
        if rasters and grid.crs != rasters[0].grid.crs:
            raise UsageError(
                f"{file} is in {grid.crs}, {files[0]} in {rasters[0].grid.crs}: reproject them to "
                "one CRS"
            )
        rasters.append(_Raster(file, grid))
    total = 2 * sum(raster.pixels for raster in rasters)  # each is read, then in a polygon
    frames: list[gpd.GeoDataFrame] = []
    done = left_out = 0

    def step(pixels: int) -> None:
        nonlocal done
        done = min(done + pixels, total)  # parts of overlaps count for both
        advance(done, total)

    for group in _neighbours(rasters):
        found, small = _polygons(
            [rasters[number] for number in group],
            names,
            simplify_m,
            min_area_m2,
            square=square,
            background=background,
            step=step,
        )
        frames += found
        left_out += small
    step(total)  # pixels of the background, and without data, are in no polygon
    polygons = (
        gpd.GeoDataFrame(pd.concat(frames, ignore_index=True), crs=rasters[0].grid.crs or None)
        .sort_values(["value", "area_m2"], ascending=[True, False])
        .reset_index(drop=True)
    )
    polygons.attrs = {"min_area_m2": min_area_m2, "left_out": left_out}
    polygons.attrs["colors"] = dict(zip(names, class_colors(files[0], names), strict=True))
    return polygons


@dataclass(frozen=True, slots=True)
class _Raster:
    """A raster of classes."""

    path: Path
    grid: Grid

    @property
    def pixels(self) -> int:
        """The number of pixels."""
        return math.prod(self.grid.shape)

    @property
    def unit(self) -> float:
        """The side of a pixel in units of the CRS."""
        return math.sqrt(abs(self.grid.transform.determinant))

    @property
    def metres(self) -> float:
        """The side of a pixel in metres."""
        x_m, y_m = self.grid.gsd_m()
        return math.sqrt(x_m * y_m)

    @property
    def stretch(self) -> float:
        """Units of y in one of x, on the ground."""
        (x_m, y_m), (a, b, _, d, e, *_) = self.grid.gsd_m(), self.grid.transform
        return float(round(x_m / math.hypot(a, d) / (y_m / math.hypot(b, e)), 3))


def _grid_of(path: Path, pixel_size: float | None, *, alone: bool) -> Grid:
    """Return the grid of a raster; in metres from the upper left if it is not georeferenced."""
    described = describe(str(path))
    if described.grid.georeferenced:
        if pixel_size is not None:
            raise UsageError(
                f"{path}: georeferenced, so its pixel size is known: omit `pixel_size`"
            )
        return described.placed()  # refuses metres that are called degrees
    if pixel_size is None:
        raise UsageError(
            f"{path}: not georeferenced. Set `pixel_size`, the width of a pixel in metres, "
            "or give the file a CRS and a transform."
        )
    if not alone:
        raise UsageError(
            f"{path}: not georeferenced, so its position relative to the others is unknown. "
            "Make its polygons alone."
        )
    return local_grid(*described.grid.shape, pixel_size)


def _neighbours(rasters: Sequence[_Raster]) -> list[list[int]]:
    """Return the numbers of rasters in groups that touch, within half a pixel."""
    outlines = np.array([raster.grid.outline() for raster in rasters], object)
    near = shapely.buffer(outlines, [raster.unit / 2 for raster in rasters])
    pairs = shapely.STRtree(outlines).query(near, predicate="intersects")
    count, group = connected(pairs.T, len(rasters))
    return [np.flatnonzero(group == number).tolist() for number in range(count)]


def _polygons(
    rasters: Sequence[_Raster],
    names: Sequence[str],
    simplify_m: float | None,
    min_area_m2: float | None,
    *,
    square: bool,
    background: bool,
    step: Callable[[int], None],
) -> tuple[list[gpd.GeoDataFrame], int]:
    """Return the polygons of rasters that touch, in parts, and how many smaller ones there are.

    Tolerances are in the largest pixels of these rasters, the stretch that of the middle one.
    """
    import geopandas as gpd

    grid, crs = rasters[0].grid, rasters[0].grid.crs or None
    unit, metres = (max(getattr(one, name) for one in rasters) for name in ("unit", "metres"))
    sides = 1.0 if simplify_m is None else simplify_m / metres
    sides = max(sides, 1.0) if square else sides
    outlines = _outlines(rasters, names, step)
    if sides:
        outlines.simplify(sides * unit / rasters[0].unit)
    areas = outlines.areas
    pixels, is_background = areas["pixels"], np.array(names)[areas["value"]] == "background"
    wanted = background | ~is_background
    made = pixels >= _LEAST_PIXELS if min_area_m2 is None else np.ones(len(areas), bool)
    if square:  # those around take part: they have walls in common
        made = 2 * pixels > (_LEAST_PIXELS if min_area_m2 is None else min_area_m2 / metres**2)
    numbers = np.flatnonzero(made if square else made & wanted)
    if square:  # a larger building leads its neighbours
        numbers = numbers[np.argsort(-pixels[numbers], kind="stable")]
        stretch = sorted(one.stretch for one in rasters)[len(rasters) // 2]
        coverage = outlines.coverage(numbers)
        del outlines  # of which only the rings are needed
        xy = coverage.points.view(np.float64).reshape(-1, 2)
        coverage.points = (_placed(xy, grid.transform) * (stretch, 1)).view(np.complex128)[:, 0]
        tolerance = sides * unit * stretch**0.5
        points = right_angled(coverage, ~is_background[numbers], tolerance=tolerance)
    west, south, east, north = np.transpose([raster.grid.bounds for raster in rasters])
    bounds = west.min(), south.min(), east.max(), north.max()
    frames = []
    for start in range(0, max(len(numbers), 1), _MOST_POLYGONS):
        part = numbers[start : start + _MOST_POLYGONS]
        if square:
            rings = coverage.rings_of(np.arange(start, start + len(part)))
            faces = shapely.remove_repeated_points(coverage.polygons(rings, points))
            faces = shapely.transform(faces, lambda xy: xy / (stretch, 1))
        else:
            faces = _mapped(outlines.polygons(part), grid.transform)
        on_ground = shapely.area(faces)
        if crs:
            on_ground = areas_m2(faces, crs, edge=1000 * unit / metres, bounds=bounds)
        large = pixels[part] >= _LEAST_PIXELS if min_area_m2 is None else on_ground >= min_area_m2
        columns = {
            "class": [names[value] for value in areas["value"][part]],
            "value": areas["value"][part].astype(np.int64),
            "area_m2": on_ground,
            "confidence": areas["confidence"][part] / NODATA / pixels[part],
        }
        frame = gpd.GeoDataFrame(columns, geometry=faces, crs=crs)
        frames.append(frame[large & wanted[part]])
        step(int(pixels[part].sum()))
    return frames, int(wanted.sum()) - sum(map(len, frames))


def _outlines(
    rasters: Sequence[_Raster], names: Sequence[str], step: Callable[[int], None]
) -> Outlines | _Union:
    """Return the outlines of the areas of rasters in the pixels of the first one."""
    corners = np.stack([rasters[0].grid.to_pixels(raster.grid.corners) for raster in rasters])
    origins = np.rint(corners[:, 0]).astype(int)  # column and row
    sizes = np.array([raster.grid.shape[::-1] for raster in rasters])
    squares = origins[:, None] + sizes[:, None] * ((0, 0), (1, 0), (1, 1), (0, 1))
    if np.abs(corners - squares).max() < _PRECISION:
        left, top = origins.min(axis=0).tolist()
        width = int((origins + sizes)[:, 0].max()) - left
        return outlines_of(_strips(rasters, origins, names, step), width, (left, top))
    return _union(rasters, names, step)


def _strips(
    rasters: Sequence[_Raster],
    origins: NDArray[np.intp],
    names: Sequence[str],
    step: Callable[[int], None],
    taken: NDArray[np.bool_] | None = None,
) -> Iterator[Strip]:
    """Yield the rows of rasters by their columns and rows; where they overlap the first counts.

    ``taken`` (y, x) are pixels of a single raster that do not count.
    """
    sizes = np.array([raster.grid.shape[::-1] for raster in rasters])
    (first_column, top), ends = origins.min(axis=0).tolist(), origins + sizes
    bottom = int(ends[:, 1].max())
    for first in range(top, bottom, _STRIP_ROWS):
        count = min(_STRIP_ROWS, bottom - first)
        under = (origins[:, 1] < first + count) & (ends[:, 1] > first)
        left, right = int(origins[under, 0].min()), int(ends[under, 0].max())
        label = np.full((count, right - left), NODATA, np.uint8)
        confidence = np.full(label.shape, np.nan, np.float32)
        for raster, (x, y), (columns, lines) in zip(rasters, origins, sizes, strict=True):
            begin, end = max(first, y), min(first + count, y + lines)
            if begin >= end:
                continue
            window = Window(0, begin - y, columns, end - begin)
            found = read_prediction(raster.path, names, window)
            if taken is not None:
                found.label[taken[begin - y : end - y]] = NODATA
            place = slice(begin - first, end - first), slice(x - left, x - left + columns)
            free = label[place] == NODATA
            np.copyto(label[place], found.label, where=free)
            if found.confidence is not None:
                np.copyto(confidence[place], found.confidence, where=free)
            step(found.label.size)
        yield label, confidence, left - first_column


@dataclass(slots=True)
class _Union:
    """The areas of rasters whose pixels do not fit together, as `Outlines` has them."""

    areas: NDArray[np.void]
    exact: NDArray[np.object_]
    simplified: NDArray[np.object_]

    def simplify(self, tolerance: float) -> None:
        """Simplify the polygons by a tolerance in pixels."""
        if len(self.exact):
            self.simplified = shapely.coverage_simplify(self.exact, tolerance)

    def polygons(self, chosen: NDArray[np.intp], *, exact: bool = False) -> NDArray[np.object_]:
        """Return some polygons."""
        return (self.exact if exact else self.simplified)[chosen]

    def coverage(self, chosen: NDArray[np.intp]) -> Coverage:
        """Return polygons with the numbers of their points."""
        return coverage_of(self.exact[chosen], self.simplified[chosen])


def _union(rasters: Sequence[_Raster], names: Sequence[str], step: Callable[[int], None]) -> _Union:
    """Return the areas of rasters, united where they touch, with common vertices."""
    grid = rasters[0].grid
    shapes, areas = np.empty(0, object), np.empty(0, AREA)
    for raster in rasters:
        own, taken = raster.grid, None
        to_grid = ~grid.transform * own.transform
        if len(shapes):
            near = _mapped(shapes, ~to_grid)
            near = near[shapely.intersects(near, shapely.box(0, 0, own.width, own.height))]
            if len(near):
                taken = rasterize(near, out_shape=own.shape, dtype="uint8") > 0
        strips = _strips([raster], np.zeros((1, 2), int), names, step, taken)
        found = outlines_of(strips, own.width, (0, 0))
        mine = _mapped(found.polygons(np.arange(len(found.areas))), to_grid)
        shapes, areas = np.append(shapes, mine), np.append(areas, found.areas)
    united, totals = [], []
    for value in np.unique(areas["value"]):
        is_one = areas["value"] == value
        parts = shapely.get_parts(shapely.union_all(shapes[is_one], grid_size=_PRECISION))
        which, part = _within(shapes[is_one], parts)
        total = np.zeros(len(parts), AREA)
        total["value"] = value
        for name in ("pixels", "confidence"):
            np.add.at(total[name], part, areas[is_one][name][which])
        united.append(parts)
        totals.append(total)
    if not len(shapes):
        return _Union(areas, shapes, shapes)
    shapes, areas = np.concatenate(united), np.concatenate(totals)
    # Lines between all polygons, cut where three of them meet: each edge occurs once.
    edges = shapely.union_all(shapely.boundary(shapes), grid_size=_PRECISION)
    faces = shapely.get_parts(shapely.polygonize(shapely.get_parts(edges)))
    face, part = _within(faces, shapes)
    faces, areas = shapely.normalize(faces[face]), areas[part]
    # In one order, whatever that of the areas: right angles depend on it.
    order = np.lexsort(shapely.bounds(faces).T)
    return _Union(areas[order], faces[order], faces[order])


def _within(
    shapes: NDArray[np.object_], others: NDArray[np.object_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the numbers of shapes that lie in others, and of the first one of these."""
    places = shapely.point_on_surface(shapes)
    shape, other = shapely.STRtree(others).query(places, predicate="intersects")
    order = np.lexsort((other, shape))
    shape, first = np.unique(shape[order], return_index=True)
    return shape, other[order][first]


def _mapped(polygons: NDArray[np.object_], transform: Affine) -> NDArray[np.object_]:
    return np.asarray(shapely.transform(polygons, lambda xy: _placed(xy, transform)), object)


def _placed(xy: NDArray[np.float64], transform: Affine) -> NDArray[np.float64]:
    a, b, c, d, e, f = transform[:6]
    placed: NDArray[np.float64] = xy @ np.array([[a, d], [b, e]]) + (c, f)
    return placed
