"""Places of rasters and networks: centres, UTM zones, outlines, names of CRSs."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyproj
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, is_geographic, moved, reproject, transformer, utm_crs
from geoprep.grid import Grid

_MOST_SCALE_ERROR: Final = 0.01
_SIDE_POINTS: Final = 11


def utm_crs_of(*grids: Grid) -> str:
    """Return the UTM zone of the mean centre of grids, the shorter way around the Earth."""
    centres = [
        transformer(grid.crs, LONLAT).transform(*grid.transform * (grid.width / 2, grid.height / 2))
        for grid in grids
    ]
    lon, lat = np.array(centres).T
    east = np.exp(1j * np.radians(lon)).mean()
    return utm_crs(float(np.degrees(np.angle(east))), float(lat.mean()))


def middle_of(lines: NDArray[np.object_], crs: str) -> tuple[float, float]:
    """Return longitude and latitude of the middle of the bounding box of lines in degrees."""
    if is_geographic(crs):
        xy = shapely.get_coordinates(lines)
        if np.ptp(xy[:, 0]) > 180:  # on both sides of the antimeridian
            lines = shapely.points(xy + np.array([360, 0]) * (xy[:, :1] < 0))
    west, south, east, north = shapely.total_bounds(lines).tolist()
    lon, lat = transformer(crs, LONLAT).transform((west + east) / 2, (south + north) / 2)
    return float(lon), float(lat)


def metric_crs(lines: NDArray[np.object_], crs: str | None) -> str | None:
    """Return the CRS in which lengths of some lines can be measured in metres.

    That is their own CRS if it is projected, in metres, and true to scale within 1 % at the middle
    of the lines; else the UTM zone of the middle. Web Mercator, for example, makes roads in Moscow
    1.8 times as long.
    """
    if crs is None or not len(lines):
        return crs
    lon, lat = middle_of(lines, crs)
    parsed = pyproj.CRS.from_user_input(crs)
    if parsed.is_projected and all(axis.unit_conversion_factor == 1 for axis in parsed.axis_info):
        scale = pyproj.Proj(parsed).get_factors(lon, lat)
        error = max(abs(scale.meridional_scale - 1), abs(scale.parallel_scale - 1))
        if not error > _MOST_SCALE_ERROR:
            return crs
    return utm_crs(lon, lat)


def crs_name(crs: object) -> str | None:
    """Return a CRS as ``EPSG:32611`` where it has a code, else as WKT; None if there is none."""
    if crs is None or crs == "":
        return None
    parsed = pyproj.CRS.from_user_input(crs)
    if parsed.is_engineering:
        return None  # GDAL's "undefined Cartesian": not georeferenced
    code = parsed.to_epsg()
    return f"EPSG:{code}" if code else str(parsed.to_wkt())


def pixels_moved(pixels: NDArray[np.float64], grid: Grid, crs: str) -> NDArray[np.float64]:
    """Return columns and rows of a grid in pixels, (point, 2), as x and y in a CRS."""
    col, row = pixels.T
    a, b, c, d, e, f = grid.transform[:6]
    at = np.column_stack([a * col + b * row + c, d * col + e * row + f])
    return moved(at, grid.crs, crs)


def outline(grid: Grid, crs: str) -> shapely.Polygon:
    """Return the footprint of a raster as a polygon in another CRS."""
    x, y = grid.width, grid.height
    corners = [grid.transform * at for at in ((0, 0), (x, 0), (x, y), (0, y))]
    return reprojected(shapely.Polygon(corners), grid.crs, crs)


def reprojected(area: shapely.Polygon, source: str, target: str) -> shapely.Polygon:
    """Return a polygon in another CRS, where its straight sides are curved."""
    dense = shapely.segmentize(area, area.length / (4 * _SIDE_POINTS))
    polygon: shapely.Polygon = reproject(np.array([dense], object), source, target)[0]
    return polygon
