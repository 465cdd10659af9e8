"""Classes of predictions as polygons, dissolved across their borders, without gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import shapely
from affine import Affine
from numpy.typing import NDArray
from rasterio.features import rasterize, shapes
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from geoprep.classes.class_rasters import (
    NODATA,
    ClassPixels,
    class_colors,
    class_names,
    raster_files,
    read_classes,
)
from geoprep.classes.right_angles import right_angled
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
_THROUGH: Final = 2
"""Sides of pixels at a corner that an edge only passes."""


def polygonize_rasters(
    sources: Sequence[Path],
    *,
    simplify_m: float | None = None,
    min_area_m2: float | None = None,
    square: bool = False,
    background: bool = False,
    pixel_size: float | None = None,
) -> gpd.GeoDataFrame:
    """Return the classes of predictions as polygons, see `geoprep.polygonize`."""
    import geopandas as gpd

    files = [file for source in sources for file in raster_files(source)]
    names = class_names(files[0])
    if not names:
        raise UsageError(
            f"{files[0]} has no class names: give predictions of classes, or exported labels"
        )
    rasters: list[_Outlined] = []
    crs = None
    for file in files:
        if class_names(file) != names:
            raise UsageError(f"{file} and {files[0]} differ in their classes: use one model")
        raster = read_classes(file, names)
        if not raster.grid.georeferenced:
            raster = _in_plane(raster, pixel_size, alone=len(files) == 1)
        elif pixel_size is not None:
            raise UsageError(
                f"{file}: georeferenced, so its pixel size is known: omit `pixel_size`"
            )
        else:
            describe(str(file)).placed()  # refuses metres that are called degrees
        crs = crs or raster.grid.crs or None
        if (raster.grid.crs or None) != crs:
            raise UsageError(
                f"{file} is in {raster.grid.crs}, {files[0]} in {crs}: reproject them to one CRS"
            )
        outline = raster.grid.outline()
        near = shapely.intersects(np.array([one.outline for one in rasters], object), outline)
        _leave_out(raster, [area for n in np.flatnonzero(near) for area, *_ in rasters[n].areas])
        rasters.append(_Outlined(raster.grid, outline, _areas(raster)))
    found = [
        _polygons([rasters[n] for n in group], names, crs, simplify_m, min_area_m2, square=square)
        for group in _neighbours(rasters)
    ]
    frame = gpd.GeoDataFrame(pd.concat(found, ignore_index=True), crs=crs)
    if not background:
        frame = frame[frame["class"] != "background"]
    frame = frame[~frame.geometry.is_empty]
    polygons = (
        frame[frame["large"]]
        .drop(columns="large")
        .sort_values(["value", "area_m2"], ascending=[True, False])
        .reset_index(drop=True)
    )
    polygons.attrs = {"min_area_m2": min_area_m2, "left_out": int((~frame["large"]).sum())}
    polygons.attrs["colors"] = dict(zip(names, class_colors(files[0], names), strict=True))
    return polygons


@dataclass(frozen=True, slots=True)
class _Outlined:
    """A raster of classes, as areas."""

    grid: Grid
    outline: shapely.Polygon
    areas: list[_Area]

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


def _neighbours(rasters: Sequence[_Outlined]) -> list[list[int]]:
    """Return the numbers of rasters in groups that touch, within half a pixel."""
    outlines = np.array([raster.outline for raster in rasters], object)
    near = shapely.buffer(outlines, [raster.unit / 2 for raster in rasters])
    pairs = shapely.STRtree(outlines).query(near, predicate="intersects")
    links = coo_array((np.ones(pairs.shape[1]), tuple(pairs)), (len(rasters),) * 2)
    count, group = connected_components(links, directed=False)
    return [np.flatnonzero(group == number).tolist() for number in range(count)]


def _polygons(
    rasters: Sequence[_Outlined],
    names: Sequence[str],
    crs: str | None,
    simplify_m: float | None,
    min_area_m2: float | None,
    *,
    square: bool,
) -> gpd.GeoDataFrame:
    """Return the polygons of rasters that touch, and which of them are large enough.

    Tolerances are in the largest pixels of these rasters, the stretch that of the middle one.
    """
    import geopandas as gpd

    areas = [area for raster in rasters for area in raster.areas]
    faces, numbers, pixels, confidence = _dissolved(
        areas, rasters[0].grid.transform, alone=len(rasters) == 1
    )
    unit, metres = (max(getattr(one, name) for one in rasters) for name in ("unit", "metres"))
    sides = 1.0 if simplify_m is None else simplify_m / metres
    tolerance = unit * (max(sides, 1.0) if square else sides)
    exact = faces
    if tolerance and len(faces):
        faces = shapely.coverage_simplify(faces, tolerance)
    large = pixels >= _LEAST_PIXELS
    if square and len(faces):
        stretch = sorted(one.stretch for one in rasters)[len(rasters) // 2]
        half = pixels > _LEAST_PIXELS / 2
        if min_area_m2 is not None:
            half = shapely.area(exact) > min_area_m2 / 2 * (unit / metres) ** 2
        buildings = np.array([names[number] != "background" for number in numbers], bool)
        given = faces[half], exact[half], buildings[half]
        if half.any():
            faces[half] = right_angled(*given, tolerance=tolerance, stretch=stretch)
    on_ground = shapely.area(faces)
    if len(faces) and crs:
        on_ground = areas_m2(faces, crs, edge=1000 * unit / metres)
    if min_area_m2 is not None:
        large = on_ground >= min_area_m2
    columns = {
        "class": [names[i] for i in numbers],
        "value": numbers,
        "area_m2": on_ground,
        "confidence": confidence,
        "large": large,
    }
    return gpd.GeoDataFrame(columns, geometry=faces, crs=crs)


def _in_plane(raster: ClassPixels, pixel_size: float | None, *, alone: bool) -> ClassPixels:
    """Return a raster that is not georeferenced in metres from its upper left corner."""
    if pixel_size is None:
        raise UsageError(
            f"{raster.path}: not georeferenced. Set `pixel_size`, the width of a pixel in metres, "
            "or give the file a CRS and a transform."
        )
    if not alone:
        raise UsageError(
            f"{raster.path}: not georeferenced, so its position relative to the others is unknown. "
            "Make its polygons alone."
        )
    return replace(raster, grid=local_grid(*raster.grid.shape, pixel_size))


def _leave_out(raster: ClassPixels, areas: Sequence[Any]) -> None:
    """Take away the pixels that earlier rasters hold."""
    if not areas:
        return
    grid = raster.grid
    near = shapely.STRtree(areas).query(grid.outline(), predicate="intersects")
    if len(near):
        shapes_near = [areas[number] for number in near]
        taken = rasterize(shapes_near, out_shape=grid.shape, transform=grid.transform, fill=0)
        raster.label[taken > 0] = NODATA


_Area = tuple[Any, int, NDArray[np.float64]]
"""A polygon of pixels, the number of its class, and its pixels and their sum of confidence."""


def _areas(raster: ClassPixels) -> list[_Area]:
    """Return every connected area of a class."""
    known = raster.label != NODATA
    areas = [
        (shapely.geometry.shape(shape), int(value))
        for shape, value in shapes(
            raster.label, known, connectivity=4, transform=raster.grid.transform
        )
    ]
    side = raster.grid.transform.determinant
    sums = np.full((len(areas), 2), math.nan)
    sums[:, 0] = [round(abs(area.area / side)) for area, _ in areas]
    if raster.confidence is not None and areas:
        numbered = rasterize(
            [(area, number) for number, (area, _) in enumerate(areas, 1)],
            out_shape=raster.label.shape,
            transform=raster.grid.transform,
            dtype="int32",
        ).ravel()
        for i, weights in enumerate((None, raster.confidence.ravel() / 255)):
            sums[:, i] = np.bincount(numbered, weights, minlength=len(areas) + 1)[1:]
    return [(*area, total) for area, total in zip(areas, sums, strict=True)]


def _dissolved(
    areas: Sequence[_Area], pixel: Affine, *, alone: bool
) -> tuple[NDArray[np.object_], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return polygons with common vertices where they touch; classes, pixels and confidences.

    They are found in pixels (``pixel`` is the transform of a raster), as corners of a turned grid
    do not lie on common lines in the CRS. ``alone``: the areas are those of one raster, of which
    none touches another of its class.
    """
    if not areas:
        return np.array([], object), np.array([], np.int64), np.array([]), np.array([])
    shapes = _mapped(np.array([area for area, *_ in areas], object), ~pixel)
    of_class = np.array([value for _, value, _ in areas])
    sums = np.array([total for *_, total in areas])
    # Coordinates of neighbouring rasters differ in their last digits.
    xy = shapely.get_coordinates(shapes)
    aligned = np.abs(xy - np.rint(xy)).max() < _PRECISION
    shapes = shapely.transform(shapes, np.rint) if aligned else shapes
    if not alone:
        united, classes, totals = [], [], []
        for value in np.unique(of_class).tolist():
            mine = shapes[of_class == value]
            found = shapely.get_parts(shapely.union_all(mine, grid_size=_PRECISION))
            which, part = _within(mine, found)
            total = np.zeros((len(found), 2))
            np.add.at(total, part, sums[of_class == value][which])
            united.append(found)
            classes.append(np.full(len(found), value))
            totals.append(total)
        shapes, of_class, sums = (np.concatenate(all_of) for all_of in (united, classes, totals))
    if aligned:
        faces, part = _noded(shapes), np.arange(len(shapes))
    else:  # lines between all polygons, cut where three of them meet: each edge occurs once
        edges = shapely.union_all(shapely.boundary(shapes), grid_size=_PRECISION)
        faces = shapely.get_parts(shapely.polygonize(shapely.get_parts(edges)))
        face, part = _within(faces, shapes)
        faces = faces[face]
    faces = shapely.normalize(faces)
    # In one order, whatever that of the areas: right angles depend on it.
    order = np.lexsort(shapely.bounds(faces).T)
    pixels, total = sums[part[order]].T
    with np.errstate(invalid="ignore", divide="ignore"):
        return _mapped(faces[order], pixel), of_class[part[order]], pixels, total / pixels


def _within(
    shapes: NDArray[np.object_], others: NDArray[np.object_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the numbers of shapes that lie in others, and of these."""
    places = shapely.point_on_surface(shapes)
    shape, other = shapely.STRtree(others).query(places, predicate="intersects")
    order = np.argsort(shape)
    return shape[order], other[order]


def _noded(polygons: NDArray[np.object_]) -> NDArray[np.object_]:
    """Return polygons along the sides of pixels, with vertices at corners and where edges meet.

    Sides of single pixels are compared, which takes a tenth of the time of a union of lines.
    """
    rings, polygon = shapely.get_rings(polygons, return_index=True)
    xy, ring = shapely.get_coordinates(rings, return_index=True)
    low_corner = xy.min(axis=0)
    xy = (xy - low_corner).astype(np.int64)
    width = xy[:, 0].max() + 2
    within = ring[1:] == ring[:-1]
    ring = ring[:-1][within]
    start, way = (values[within] @ (1, width) for values in (xy[:-1], np.diff(xy, axis=0)))
    length = np.abs(np.diff(xy, axis=0)[within]).sum(axis=1)
    way //= length  # to the next pixel
    last = np.flatnonzero(np.diff(ring, append=-1))
    before = np.roll(way, 1)
    before[np.append(0, last[:-1] + 1)] = way[last]
    line = np.repeat(np.arange(len(length)), length)
    step = np.arange(len(line)) - (np.cumsum(length) - length)[line]
    at = start[line] + step * way[line]
    side = np.unique(2 * np.minimum(at, at + way[line]) + (np.abs(way[line]) == 1))
    low = side // 2
    corners, sides = np.unique(
        np.concatenate([low, low + np.where(side % 2, 1, width)]), return_counts=True
    )
    kept = ((step == 0) & (before != way)[line]) | np.isin(at, corners[sides > _THROUGH])
    at, line = at[kept], line[kept]
    points = np.column_stack([at % width, at // width]) + low_corner
    rings = shapely.linearrings(points, indices=ring[line])
    return np.asarray(shapely.polygons(rings, indices=polygon), object)


def _mapped(polygons: NDArray[np.object_], transform: Affine) -> NDArray[np.object_]:
    a, b, c, d, e, f = transform[:6]
    turn, shift = np.array([[a, d], [b, e]]), (c, f)
    return np.asarray(shapely.transform(polygons, lambda xy: xy @ turn + shift), object)
