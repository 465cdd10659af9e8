"""Classes of predictions as polygons, dissolved across their borders, without gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import shapely
from numpy.typing import NDArray
from rasterio.features import rasterize, shapes

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
from geoprep.grid import local_grid
from geoprep.imagery.headers import describe

if TYPE_CHECKING:
    import geopandas as gpd

_LEAST_PIXELS: Final = 10
"""Polygons of fewer pixels are mostly noise."""


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
    areas: list[_Area] = []
    outlines: list[shapely.Polygon] = []
    of_raster: list[int] = []  # the raster of every area
    crs = metres = None
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
        if metres is None:
            # The side of a pixel in metres and in units of the CRS; units of y in one of x.
            x_m, y_m = raster.grid.gsd_m()
            metres = (x_m * y_m) ** 0.5
            a, b, _, d, e, _ = raster.grid.transform[:6]
            unit = abs(a * e - b * d) ** 0.5
            stretch = round(x_m / math.hypot(a, d) / (y_m / math.hypot(b, e)), 3)
        outlines.append(raster.grid.outline())
        near = shapely.intersects(np.array(outlines, object), outlines[-1])[of_raster]
        _leave_out(raster, [areas[number][0] for number in np.flatnonzero(near)])
        found = _areas(raster)
        areas += found
        of_raster += [len(outlines) - 1] * len(found)
    # Coordinates of neighbouring rasters differ in their last digits.
    faces, numbers, confidence = _dissolved(areas, unit / 1000 if len(files) > 1 else None)
    pixels = 1.0 if simplify_m is None else simplify_m / (metres or 1.0)
    tolerance = unit * (max(pixels, 1.0) if square else pixels)
    exact = faces
    if tolerance and len(faces):
        faces = shapely.coverage_simplify(faces, tolerance)
    least = _LEAST_PIXELS * (metres or 0.0) ** 2 if min_area_m2 is None else min_area_m2
    if square:
        buildings = np.array([names[number] != "background" for number in numbers], bool)
        large = shapely.area(exact) > least / 2 * (unit / (metres or 1.0)) ** 2
        kept = (buildings | background) & large
        if kept.any():
            given = faces[kept], exact[kept], buildings[kept]
            faces[kept] = right_angled(*given, tolerance=tolerance, stretch=stretch)
    frame = gpd.GeoDataFrame(
        {"class": [names[i] for i in numbers], "value": numbers, "confidence": confidence},
        geometry=faces,
        crs=crs,
    )
    on_ground = shapely.area(faces)
    if len(faces) and crs and metres:
        on_ground = areas_m2(faces, crs, edge=1000 * unit / metres)
    frame.insert(2, "area_m2", on_ground)
    kept = ~frame.geometry.is_empty
    if not background:
        kept &= frame["class"] != "background"
    large = frame["area_m2"] >= least
    polygons = (
        frame[kept & large]
        .sort_values(["value", "area_m2"], ascending=[True, False])
        .reset_index(drop=True)
    )
    polygons.attrs = {"min_area_m2": least, "left_out": int((kept & ~large).sum())}
    polygons.attrs["colors"] = dict(zip(names, class_colors(files[0], names), strict=True))
    return polygons


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
    sums = np.full((len(areas), 2), (0.0, math.nan))
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
    areas: Sequence[_Area], precision: float | None
) -> tuple[NDArray[np.object_], NDArray[np.int64], NDArray[np.float64]]:
    """Return polygons with common vertices where they touch, their classes and confidences.

    Coordinates are rounded to a ``precision``; None keeps them.
    """
    if not areas:
        return np.array([], object), np.array([], np.int64), np.array([])
    parts, classes, confidence = [], [], []
    for value in sorted({value for _, value, _ in areas}):
        mine = np.array([area for area, own, _ in areas if own == value], object)
        sums = np.array([total for _, own, total in areas if own == value])
        united, pixels, total = mine, *sums.T
        if precision is not None:  # areas of several rasters may touch
            united = shapely.get_parts(shapely.union_all(mine, grid_size=precision))
            tree = shapely.STRtree(united)
            which, part = tree.query(shapely.point_on_surface(mine), predicate="intersects")
            pixels, total = (
                np.bincount(part, weights=sums[which, i], minlength=len(united)) for i in (0, 1)
            )
        parts += united.tolist()
        classes += [value] * len(united)
        with np.errstate(invalid="ignore", divide="ignore"):
            confidence += (total / pixels).tolist()
    # Lines between all polygons, cut where three of them meet: each edge occurs once.
    edges = shapely.union_all(shapely.boundary(np.array(parts, object)), grid_size=precision)
    faces = shapely.get_parts(shapely.polygonize(shapely.get_parts(edges)))
    tree = shapely.STRtree(parts)
    face, part = tree.query(shapely.point_on_surface(faces), predicate="intersects")
    order = np.argsort(face)
    face, part = face[order], part[order]
    faces = faces[face]
    return faces, np.array(classes)[part], np.array(confidence)[part]
