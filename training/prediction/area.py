"""The area that is predicted of large images: polygons of a file, or a box in degrees."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray
from rasterio.features import rasterize

from geoprep.crs import LONLAT
from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid

Polygons = tuple[shapely.Geometry, ...]


@lru_cache(maxsize=4)
def read_area(text: str, where: str | None) -> tuple[Polygons, str, str]:
    """Return the polygons of a file or of W,S,E,N, their CRS, and a digest of them.

    Raises
    ------
    UsageError
        The file cannot be read, or has no polygons or no CRS.
    """
    from geoprep.labels.vector_files import VectorFile  # imports pyogrio

    try:
        west, south, east, north = map(float, text.split(","))
    except ValueError:
        if not Path(text).exists():
            raise UsageError("area", f"{text}: no such file, and not W,S,E,N in degrees") from None
        try:
            file = VectorFile.open(Path(text), where=where)
            layers = [*file.layers.values()]
            features = file.read(layers, ()) if layers else None
        except LabelError as error:
            raise UsageError("area", f"{error}") from error
        shapes, crs = (features.shapes, features.crs) if features else (np.empty(0, object), "")
    else:
        if not (np.isfinite([west, east]).all() and -90 <= south < north <= 90):
            raise UsageError("area", f"{text}: write west, south, east and north in degrees")
        east += 360 if east < west else 0  # a box across 180 degrees, as RFC 7946 has it
        shapes, crs = np.array([shapely.box(west, south, east, north)], object), LONLAT
    polygons = shapely.make_valid(shapes)
    polygons = polygons[shapely.area(polygons) > 0]
    if not len(polygons):
        selects = " that `where` selects" if where else ""
        raise UsageError("area", f"{text} has no polygons{selects}")
    digest = hashlib.sha256(crs.encode() + b"".join(shapely.to_wkb(polygons))).hexdigest()[:32]
    return tuple(polygons), crs, digest


def area_in_pixels(polygons: Polygons, crs: str, grid: Grid) -> Polygons:
    """Return the parts of polygons that touch an image, in pixels of it (column, row)."""
    near = grid.areas_near(np.array(polygons, object), crs)
    placed = shapely.transform(near, grid.to_pixels)
    return tuple(placed[shapely.intersects(placed, shapely.box(0, 0, grid.width, grid.height))])


def mask_of(
    area: Polygons, scales: tuple[float, float], window: tuple[int, ...], beside_it: int = 0
) -> NDArray[np.uint8]:
    """Return which pixels of a window (top, left, height, width) have their centre in an area.

    ``scales`` are pixels of the image per pixel, y and x. With pixels ``beside_it``, all that the
    area touches count, and so many around them.
    """
    top, left, height, width = window
    top, left, more = top - beside_it, left - beside_it, 2 * beside_it
    place = Affine.scale(scales[1], scales[0]) @ Affine.translation(left, top)
    shape = height + more, width + more
    mask: NDArray[np.uint8] = rasterize(
        area, out_shape=shape, transform=place, all_touched=beside_it > 0, dtype="uint8"
    )
    if beside_it:
        from scipy.ndimage import binary_dilation  # slow to import

        inner = slice(beside_it, -beside_it)
        wide = binary_dilation(mask, np.ones((3, 3)), iterations=beside_it)
        mask = wide[inner, inner].astype(np.uint8)
    return mask
