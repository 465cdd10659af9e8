"""Reference masks of roads by a union of all polygons: slow."""

from __future__ import annotations

import numpy as np
import shapely
from affine import Affine
from rasterio.features import rasterize

from geoprep.crs import reproject
from geoprep.grid import Grid
from geoprep.labels.burning import buffer_crs
from geoprep.labels.vector_labels import LabelShapes


def united(
    roads: LabelShapes, grid: Grid, buffer_m: float = 2.0
) -> list[tuple[shapely.Geometry, int]]:
    """Return (geometry in the grid's CRS, speed byte), ascending: one union per speed."""
    utm = buffer_crs(grid)
    outlines = shapely.buffer(reproject(roads.lines, roads.crs, utm), buffer_m, quad_segs=1)
    values = np.unique(roads.value)
    ground = np.array([shapely.union_all(outlines[roads.value == one]) for one in values], object)
    return list(zip(reproject(ground, utm, grid.crs), values.tolist(), strict=True))


def burned_by_gdal(
    shapes: list[tuple[shapely.Geometry, int]], transform: Affine, shape: tuple[int, int]
) -> np.ndarray:
    """Return the mask that GDAL burns."""
    if not shapes:
        return np.zeros(shape, np.uint8)
    return rasterize(shapes, out_shape=shape, transform=transform, dtype="uint8")
