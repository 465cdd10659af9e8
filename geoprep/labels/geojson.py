"""Read a GeoJSON document into a road table, without GDAL.

For the some dozen roads of a SpaceNet label this takes less time than GDAL needs to open a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyproj
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, transformer
from geoprep.errors import LabelError
from geoprep.labels.attributes import Properties
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.table import RoadTable, build_table

_MIN_POINTS: Final = 2
_LINES: Final = ("LineString", "MultiLineString")
_AREAS: Final = ("Polygon", "MultiPolygon")
_INVALID: Final = (TypeError, LookupError, ValueError, OverflowError)
"""What NumPy and shapely raise for coordinates that are not numbers."""
_Points = list[Any]  # of [x, y] or [x, y, z] in valid files


def parse_geojson(data: bytes, rule: SpeedRule, name: str) -> RoadTable:
    """Return the roads of a GeoJSON FeatureCollection, in longitude and latitude without a CRS.

    Null geometries, points and invalid coordinates are left out and noted.
    """
    document = _parse(data, name)
    crs = _crs(document.get("crs"), name)
    features = [each if isinstance(each, dict) else {} for each in document["features"]]
    properties = [_properties(each) for each in features]
    lines, owner, notes = _geometries(features)
    return build_table(lines, owner, notes, properties, crs, rule, name)


def _parse(data: bytes, name: str) -> dict[str, Any]:
    if not data.strip():
        raise LabelError(
            f"{name}: the file is empty, perhaps a truncated download; download it again. "
            'If there are no roads, write {"type": "FeatureCollection", "features": []}'
        )
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LabelError(
            f"{name}: not valid JSON ({error}); download the file again, or leave it out"
        ) from error
    if isinstance(document, dict) and document.get("type") == "FeatureCollection":
        if isinstance(document.get("features"), list):
            return document
        found = "a FeatureCollection without a list of features"
    else:
        found = str(document.get("type") if isinstance(document, dict) else document)[:60]
    raise LabelError(
        f"{name}: not a GeoJSON FeatureCollection (found: {found}); convert it with "
        "ogr2ogr -f GeoJSON -t_srs OGC:CRS84 fixed.geojson INPUT"
    )


def _crs(member: object, name: str) -> str:
    """Return the CRS of the ``crs`` member of GeoJSON 2008; longitude, latitude without one."""
    if member is None:
        return LONLAT
    named = member.get("properties") if isinstance(member, Mapping) else None
    text = named.get("name", named.get("code")) if isinstance(named, Mapping) else None
    crs = _known_crs(text) if isinstance(text, str | int) else None
    if crs is None:
        raise LabelError(
            f"{name}: its crs member {json.dumps(member)[:200]} is not a known CRS on Earth; "
            "convert the file with ogr2ogr -f GeoJSON -a_srs EPSG:CODE -t_srs OGC:CRS84 "
            "fixed.geojson INPUT"
        )
    return crs


@lru_cache(maxsize=64)
def _known_crs(text: str | int) -> str | None:
    try:
        crs = pyproj.CRS.from_user_input(text)
        transformer(crs.to_string(), LONLAT)  # fails for a local CRS, or one of the Moon
    except pyproj.exceptions.ProjError:
        return None
    return LONLAT if crs == pyproj.CRS.from_user_input(LONLAT) else crs.to_string()


def _properties(feature: Mapping[str, Any]) -> Properties:
    properties = feature.get("properties")
    return properties if isinstance(properties, dict) else {}


def _geometries(
    features: Sequence[Mapping[str, Any]],
) -> tuple[NDArray[np.object_], NDArray[np.intp], list[str]]:
    """Return lines and polygons (m,), the feature of each (m,), a note per feature ("": fine)."""
    lines: list[tuple[int, _Points]] = []
    areas: list[tuple[int, shapely.Polygon]] = []
    notes: list[str] = []
    for index, feature in enumerate(features):
        found, note = _parts(feature.get("geometry"))
        lines += [(index, part) for part in found if isinstance(part, list)]
        areas += [(index, part) for part in found if not isinstance(part, list)]
        notes.append(note)
    made, owner = _line_strings(lines, notes)
    if areas:
        owner = np.concatenate([owner, [index for index, _ in areas]])
        made = np.concatenate([made, np.array([area for _, area in areas], object)])
        order = np.argsort(owner, kind="stable")
        made, owner = made[order], owner[order]
    return made, owner.astype(np.intp), notes


def _parts(geometry: object) -> tuple[list[_Points | shapely.Polygon], str]:
    """Return the points of the lines of a geometry, its polygons, and a note, "" if it is fine."""
    if not isinstance(geometry, dict):
        return [], "geometry missing"
    kind = geometry.get("type")
    members = geometry.get("geometries")
    if kind == "GeometryCollection" and isinstance(members, list):
        inner = [part for member in members for part in _parts(member)[0]]
        return inner, "" if inner else f"geometry {kind}"
    if kind in ("Point", "MultiPoint"):
        return [], f"geometry {kind}"
    coordinates = geometry.get("coordinates")
    if kind not in (*_LINES, *_AREAS) or not isinstance(coordinates, list):
        return [], "geometry malformed"
    several = coordinates if kind.startswith("Multi") else [coordinates]
    found: list[_Points | shapely.Polygon] = []
    if kind in _LINES:
        found += [one for one in several if isinstance(one, list) and len(one) >= _MIN_POINTS]
    else:
        try:
            found += [_polygon(rings) for rings in several if rings and rings[0]]
        except _INVALID:
            return [], "geometry malformed"
    return found, "" if found else "geometry empty"


def _polygon(rings: Sequence[_Points]) -> shapely.Polygon:
    """Return a polygon; invalid rings raise one of the errors `_INVALID`."""
    shell, *holes = map(_array, rings)
    return shapely.Polygon(shell, holes)


def _array(points: _Points) -> NDArray[np.float64]:
    """Return float64 (points, 2) of points with or without z; null coordinates become NaN."""
    return np.array([point[:2] for point in points], np.float64)


def _line_strings(
    parts: Sequence[tuple[int, _Points]], notes: list[str]
) -> tuple[NDArray[np.object_], NDArray[np.intp]]:
    """Return lines and their features; the features of points that are no numbers get a note."""
    owner = [index for index, _ in parts]
    xy = _coordinates([point for _, part in parts for point in part])
    if xy is not None:
        line = np.repeat(np.arange(len(parts)), [len(part) for _, part in parts])
        lines: NDArray[np.object_] = shapely.linestrings(xy, indices=line)  # type: ignore[assignment]  # an array, given indices
        return lines, np.array(owner, np.intp)
    # Line by line, since some have points that are invalid, or with and without z.
    kept: list[tuple[int, shapely.LineString]] = []
    for index, part in parts:
        try:
            kept.append((index, shapely.LineString(_array(part))))
        except _INVALID:
            notes[index] = "geometry malformed"
    made = np.empty(len(kept), object)
    made[:] = [line for _, line in kept]
    return made, np.array([index for index, _ in kept], np.intp)


def _coordinates(points: _Points) -> NDArray[np.float64] | None:
    """Return all points, float64 (points, 2), or None if they are not numbers alike."""
    try:
        xy = np.array(points, dtype=np.float64)
    except _INVALID:
        return None
    if not len(xy):
        return np.empty((0, 2))
    return xy[:, :2] if xy.ndim == 2 and xy.shape[1] >= 2 else None
