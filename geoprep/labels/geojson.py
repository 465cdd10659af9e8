"""Read a GeoJSON document into a road table, without GDAL.

All SpaceNet labels are GeoJSON. The standard library parses and shapely makes all lines in one
call: for files of some dozen roads that takes less time than GDAL needs to open one.
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
_OTHER_GEOMETRIES: Final = ("Point", "MultiPoint", "GeometryCollection")
_Points = list[Any]  # of [x, y] or [x, y, z] in valid files


def parse_geojson(data: bytes, rule: SpeedRule, name: str) -> RoadTable:
    """Return the roads of a GeoJSON FeatureCollection.

    Lines and polygons are used, single or multiple, without z. Other and null geometries and
    invalid coordinates are left out and noted. Without features there are no roads.

    Parameters
    ----------
    data
        The document, in longitude and latitude unless it has a ``crs`` member (GeoJSON 2008).
    rule
        Which features are roads, and how speeds and widths are found.
    name
        Name of the file, for messages.

    Raises
    ------
    LabelError
        If the document is not a FeatureCollection, its CRS is unknown, no feature has the speed or
        width field, or areas are not identified as roads.
    """
    document = _parse(data, name)
    crs = _crs(document.get("crs"), name)
    features = [each if isinstance(each, dict) else {} for each in document["features"]]
    properties = [_properties(each) for each in features]
    lines, owner, notes = _lines(features)
    lines, owner = _with_areas(features, lines, owner, notes)
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


def _lines(
    features: Sequence[Mapping[str, Any]],
) -> tuple[NDArray[np.object_], NDArray[np.intp], list[str]]:
    """Return lines (m,), the feature of each (m,), and one note per feature ("": fine)."""
    parts: list[_Points] = []
    owner: list[int] = []
    notes: list[str] = []
    for index, feature in enumerate(features):
        found, note = _parts(feature.get("geometry"))
        parts += found
        owner += [index] * len(found)
        notes.append(note)
    xy = _coordinates(parts)
    if xy is None:
        parts, xy, owner = _numeric_parts(parts, owner, notes)
    line = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    lines: NDArray[np.object_] = shapely.linestrings(xy, indices=line)  # type: ignore[assignment]  # an array, given indices
    return lines, np.array(owner, dtype=np.intp), notes


def _numeric_parts(
    parts: Sequence[_Points], owner: Sequence[int], notes: list[str]
) -> tuple[list[_Points], NDArray[np.float64], list[int]]:
    """Return the parts made of numbers, all their points, and the feature of each part.

    The features of other parts get a note. Used for files that mix 2-D and 3-D points or hold
    invalid coordinates; it is slower.
    """
    read = [
        (part, _coordinates([part], ragged=True), index)
        for part, index in zip(parts, owner, strict=True)
    ]
    kept = [(part, xy, index) for part, xy, index in read if xy is not None]
    for _, xy, index in read:
        if xy is None:
            notes[index] = "geometry malformed"
    points = np.concatenate([np.empty((0, 2)), *(xy for _, xy, _ in kept)])
    return [part for part, _, _ in kept], points, [index for _, _, index in kept]


def _parts(geometry: object) -> tuple[list[_Points], str]:
    """Return the point lists of a line geometry and a note, "" if it is usable."""
    if not isinstance(geometry, dict):
        return [], "geometry missing"
    kind, coordinates = geometry.get("type"), geometry.get("coordinates")
    if kind in _AREAS:
        return [], ""  # added by `_with_areas`
    if kind not in _LINES:
        return [], f"geometry {kind}" if kind in _OTHER_GEOMETRIES else "geometry malformed"
    if not isinstance(coordinates, list):
        return [], "geometry malformed"
    parts = [coordinates] if kind == "LineString" else coordinates
    found = [part for part in parts if isinstance(part, list) and len(part) >= _MIN_POINTS]
    return found, "" if found else "geometry empty"


def _with_areas(
    features: Sequence[Mapping[str, Any]],
    lines: NDArray[np.object_],
    owner: NDArray[np.intp],
    notes: list[str],
) -> tuple[NDArray[np.object_], NDArray[np.intp]]:
    """Return lines and polygons in the order of their features; invalid polygons are noted."""
    areas: list[shapely.Polygon] = []
    areas_of: list[int] = []
    for index, feature in enumerate(features):
        geometry = feature.get("geometry")
        if not isinstance(geometry, dict) or geometry.get("type") not in _AREAS:
            continue
        try:
            found = _polygons(geometry["type"], geometry.get("coordinates"))
        except (TypeError, LookupError, ValueError, OverflowError):
            notes[index] = "geometry malformed"
            continue
        notes[index] = "" if found else "geometry empty"
        areas += found
        areas_of += [index] * len(found)
    if not areas:
        return lines, owner
    owner = np.concatenate([owner, np.array(areas_of, dtype=np.intp)])
    order = np.argsort(owner, kind="stable")
    return np.concatenate([lines, np.array(areas, dtype=object)])[order], owner[order]


def _polygons(kind: str, coordinates: object) -> list[shapely.Polygon]:
    """Return the polygons of a geometry; an invalid one raises an error of NumPy or shapely."""
    polygons = []
    if not isinstance(coordinates, list):
        raise TypeError(coordinates)
    for rings in [coordinates] if kind == "Polygon" else coordinates:
        shell, *holes = [
            np.array([point[:2] for point in ring], dtype=np.float64) for ring in rings or [[]]
        ]
        if len(shell):
            polygons.append(shapely.Polygon(shell, holes))
    return polygons


def _coordinates(parts: Sequence[_Points], *, ragged: bool = False) -> NDArray[np.float64] | None:
    """Return all points of some lines, float64 (points, 2), or None if they are not numbers.

    With ``ragged``, points of a line may differ in having z, which is slower.
    """
    try:
        points = [point for part in parts for point in part]
        xy = np.array([point[:2] for point in points] if ragged else points, dtype=np.float64)
    except (TypeError, LookupError, ValueError, OverflowError):
        return None
    if not len(xy):
        return np.empty((0, 2))
    return xy[:, :2] if xy.ndim == 2 and xy.shape[1] >= 2 else None
