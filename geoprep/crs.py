"""Coordinate reference systems: georeferencing, UTM zones and bulk transforms, x before y."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyproj
from affine import Affine
from numpy.typing import NDArray

if TYPE_CHECKING:
    import shapely

Bounds = tuple[float, float, float, float]
Area = TypeVar("Area", bound="shapely.Geometry")

LONLAT: Final = "OGC:CRS84"
"""Longitude and latitude on WGS 84 in degrees: the CRS of GeoJSON."""

METRES_PER_DEGREE: Final = 111_200.0
"""Length of a degree of latitude on a sphere of 6371 km; of longitude, cos(latitude) of that."""

_EDGE_POINTS: Final = 21
_NEAR_POLE_DEG: Final = 89.9
_ZONE_DEG: Final = 6
_ZONES: Final = 60
_SIDE_POINTS: Final = 64
_MOST_SCALE_ERROR: Final = 0.01


def is_georeferenced(crs: Any, transform: Affine) -> bool:  # noqa: ANN401 - as rasterio or pyproj have it
    """Return whether a raster's CRS and transform locate its pixels on the ground.

    The one test of georeference. The CRS may be as rasterio or pyproj give it, a text, or None.
    """
    if not crs or transform.is_identity or transform.is_degenerate:
        return False
    return _has_horizontal_axes(crs if isinstance(crs, str) else crs.to_wkt())


@lru_cache(maxsize=256)
def _has_horizontal_axes(crs: str) -> bool:
    try:
        parsed = pyproj.CRS.from_user_input(crs)
    except pyproj.exceptions.CRSError:
        return False
    derived = parsed.type_name == "Derived Projected CRS"
    return bool(parsed.is_geographic or parsed.is_projected or derived)


@lru_cache(maxsize=256)
def stated_crs(wkt: str) -> tuple[str, str]:
    """Return a CRS of WKT 2 as WKT, of version 1 if that says the same, and its code or this text.

    A CRS with a datum shift of its own is not that of the authority, whose code GDAL finds.
    """
    from rasterio.crs import CRS
    from rasterio.errors import CRSError

    crs, own = CRS.from_wkt(wkt), pyproj.CRS.from_wkt(wkt)
    with suppress(pyproj.exceptions.CRSError, CRSError):
        if pyproj.CRS.from_wkt(crs.to_wkt()) == own:
            wkt = crs.to_wkt()
    code = None if _is_shifted(own) else crs.to_epsg()
    return wkt, f"EPSG:{code}" if code else wkt


def _is_shifted(crs: pyproj.CRS) -> bool:
    """Return whether a CRS has a datum shift of its own, such as TOWGS84, that is not zero."""
    shift = crs.coordinate_operation
    return bool(crs.is_bound and shift and (not shift.towgs84 or any(shift.towgs84)))


def utm_crs(lon: float, lat: float) -> str:
    """Return the CRS of a place's UTM zone on WGS 84; south of the equator the southern one."""
    # Southern zones count northings from 10,000 km south of the equator: none is negative.
    zone = math.floor((lon + 180) / _ZONE_DEG) % _ZONES + 1
    return f"EPSG:{(32600 if lat >= 0 else 32700) + zone}"


@lru_cache(maxsize=256)
def transformer(source: str, target: str) -> pyproj.Transformer:
    """Return a transformer with x before y. All threads share it: pyproj keeps a copy in each."""
    return pyproj.Transformer.from_crs(source, target, always_xy=True)


def to_lonlat(crs: str) -> pyproj.Transformer:
    """Return the transformer from a CRS to longitude and latitude in degrees."""
    return transformer(crs, "EPSG:4326")


@lru_cache(maxsize=256)
def is_geographic(crs: str) -> bool:
    """Return whether the coordinates of a CRS are degrees."""
    return bool(pyproj.CRS.from_user_input(crs).is_geographic)


@lru_cache(maxsize=256)
def turn_of(crs: str) -> float:
    """Return by how much x grows in a turn around the Earth; 0 where meridians are not parallel.

    Examples
    --------
    >>> turn_of("EPSG:4326"), round(turn_of("EPSG:3857")), turn_of("EPSG:32637")
    (360.0, 40075017, 0.0)
    """
    if is_geographic(crs):
        return 360.0
    own = pyproj.CRS.from_user_input(crs)
    if own.is_bound and own.source_crs:  # a datum shift would turn meridians
        own = own.source_crs
    if own.geodetic_crs is None:
        return 0.0
    lon, lat = np.meshgrid((-135.0, -45.0, 45.0, 135.0), (0.0, 60.0))
    degrees = pyproj.Transformer.from_crs(own.geodetic_crs, own, always_xy=True)
    x, y = degrees.transform(lon, lat)
    quarter = np.median(np.diff(x[0]))  # of the three, at most one is across the edge of the CRS
    parallel = np.isfinite(x).all() and np.allclose(x[0], x[1]) and np.allclose(y.T, y[:, 0])
    regular = np.isclose(np.diff(x[0]), quarter) | np.isclose(np.diff(x[0]), -3 * quarter)
    return float(4 * quarter) if parallel and regular.all() else 0.0


def moved(xy: NDArray[np.float64], source: str, target: str) -> NDArray[np.float64]:
    """Return points (point, 2) in another CRS; those outside its domain become infinite."""
    return np.column_stack(transformer(source, target).transform(*xy.T))


def reproject(geometry: NDArray[np.object_], source: str, target: str) -> NDArray[np.object_]:
    """Return 2-D geometries in another CRS; coordinates outside its domain become infinite."""
    if source == target:
        return geometry
    import shapely  # a store is read without it

    xy = moved(shapely.get_coordinates(geometry), source, target)
    result: NDArray[np.object_] = shapely.set_coordinates(geometry.copy(), xy)
    return result


def valid_polygons(
    areas: NDArray[np.object_],
) -> tuple[NDArray[np.object_], NDArray[np.intp]]:
    """Return the valid polygons that areas consist of, and the number of the area of each.

    Points that are not finite are left out; so are lines and points of collections.
    """
    import shapely

    polygons, owner = shapely.get_parts(areas, return_index=True)
    for number in np.flatnonzero(~np.isfinite(shapely.bounds(polygons)).all(axis=1)):
        rings = [shapely.get_coordinates(ring) for ring in shapely.get_rings(polygons[number])]
        rings = [ring[np.isfinite(ring).all(axis=1)] for ring in rings]
        outer, *holes = [
            ring if len(ring) > 2 else np.empty((0, 2)) for ring in rings or [np.empty((0, 2))]
        ]
        polygons[number] = shapely.Polygon(outer, [hole for hole in holes if len(hole)])
    for _ in range(2):  # a repaired polygon can be a collection of several
        polygons, part = shapely.get_parts(shapely.make_valid(polygons), return_index=True)
        owner = owner[part]
    kept = shapely.area(polygons) > 0
    return polygons[kept], owner[kept]


def reproject_area(area: Area, source: str, target: str) -> Area:
    """Return a polygon or multipolygon in another CRS, where its straight sides are curved."""
    import shapely

    dense = shapely.segmentize(area, shapely.length(area) / (4 * _SIDE_POINTS))
    found: Area = reproject(np.array([dense], object), source, target)[0]
    return found


def areas_m2(
    areas: NDArray[np.object_], crs: str, edge: float, bounds: Bounds
) -> NDArray[np.float64]:
    """Return the areas of polygons on the ellipsoid in square metres, float64 (polygon,).

    Sides longer than an ``edge`` in units of the CRS are curved like the lines of the CRS. Degrees
    may go all around the Earth; other CRS end before the antipode of the middle of ``bounds``,
    those around the polygons.
    """
    import shapely

    left, bottom, right, top = bounds
    lon, lat = to_lonlat(crs).transform((left + right) / 2, (bottom + top) / 2)
    equal_area = f"+proj=laea +lat_0={lat} +lon_0={lon} +datum=WGS84"
    if is_geographic(crs):
        equal_area = f"+proj=cea +lon_0={lon} +datum=WGS84 +over"
    found: NDArray[np.float64] = shapely.area(
        reproject(shapely.segmentize(areas, edge), crs, equal_area)
    )
    return found


def areas_in_lonlat(areas: NDArray[np.object_], crs: str) -> NDArray[np.object_]:
    """Return polygons in longitude and latitude, cut at 180 degrees as RFC 7946 asks."""
    import shapely

    found = reproject(areas, crs, LONLAT)
    west, _, east, _ = shapely.bounds(found).T
    # Degrees of a raster go on beyond 180; those of another CRS jump to -180.
    across = (west < -180) | (east > 180) | ((east - west > 180) & (not is_geographic(crs)))
    halves = shapely.box(0, -90, 180, 90), shapely.box(180, -90, 360, 90)
    for number in np.flatnonzero(across):
        whole = shapely.transform(
            found[number], lambda xy: np.column_stack([xy[:, 0] % 360, xy[:, 1]])
        )
        parts = [shapely.get_parts(shapely.intersection(whole, half)) for half in halves]
        parts[1] = shapely.transform(parts[1], lambda xy: xy - (360, 0))
        polygons = [part for part in np.concatenate(parts) if part.geom_type == "Polygon"]
        found[number] = shapely.multipolygons(polygons) if len(polygons) > 1 else polygons[0]
    return found


def beside(x: NDArray[np.float64], crs: str, middle: float) -> NDArray[np.float64]:
    """Return x moved by whole turns around the Earth to within half a turn of a middle."""
    if not (turn := turn_of(crs)):
        return x
    with np.errstate(invalid="ignore"):  # infinite coordinates
        near: NDArray[np.float64] = x - turn * np.round((x - middle) / turn)
    return near


def unwrapped(lonlat: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points (point, 2) in degrees that do not jump at the 180th meridian, but go on."""
    return np.column_stack([np.unwrap(lonlat[:, 0], period=360), lonlat[:, 1]])


def boxes_around(bounds: Bounds, source: str, target: str, margin_m: float) -> list[Bounds]:
    """Return boxes in another CRS that contain some bounds and a margin around them in metres.

    Usually one; two across the 180th meridian; none outside the domain of the target CRS. Edges
    become curves there, so 21 points of each are transformed.
    """
    west, south, east, north = transformer(source, LONLAT).transform_bounds(
        *bounds, densify_pts=_EDGE_POINTS
    )
    up = margin_m / METRES_PER_DEGREE * 1.01
    farthest = min(max(abs(south), abs(north)) + up, _NEAR_POLE_DEG)
    aside = up / np.cos(np.radians(farthest))
    west, east = west - aside, east + aside
    south, north = max(south - up, -90.0), min(north + up, 90.0)
    halves = [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]
    boxes = [
        transformer(LONLAT, target).transform_bounds(
            left, south, right, north, densify_pts=_EDGE_POINTS
        )
        for left, right in halves
    ]
    return [box for box in boxes if np.isfinite(box).all()]


def middle_of(lines: NDArray[np.object_], crs: str) -> tuple[float, float]:
    """Return longitude and latitude of the middle of the bounding box of lines in degrees."""
    import shapely

    xy = shapely.get_coordinates(lines)
    if is_geographic(crs):
        xy = unwrapped(xy)
    x, y = (np.nanmin(xy, axis=0) + np.nanmax(xy, axis=0)) / 2
    lon, lat = transformer(crs, LONLAT).transform(x, y)
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
    code = None if _is_shifted(parsed) else parsed.to_epsg()
    return f"EPSG:{code}" if code else str(parsed.to_wkt())
