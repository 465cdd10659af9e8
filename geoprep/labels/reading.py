"""The roads of a scene: from its own label file, or from one road file for all scenes."""

from __future__ import annotations

import os
from pathlib import Path

import shapely

from geoprep.crs import Bounds
from geoprep.errors import LabelError, UsageError
from geoprep.labels.geojson import parse_geojson
from geoprep.labels.rule import Schema, SpeedFrom, SpeedRule, SpeedUnit
from geoprep.labels.table import Roads, RoadTable
from geoprep.labels.vectors import GEOJSON_SUFFIXES, RoadFile, open_road_file, read_road_table

__all__ = ["Roads", "read_roads"]


def read_roads(
    label: str | os.PathLike[str] | bytes,
    *,
    name: str | None = None,
    schema: Schema = "auto",
    speed_from: SpeedFrom = "attributes",
    speed_field: str | None = None,
    speed_unit: SpeedUnit = "mph",
    bounds: Bounds | None = None,
    bounds_crs: str | None = None,
    margin_m: float = 2.0,
) -> Roads:
    """Return the roads of one scene, with a speed each.

    Parameters
    ----------
    label
        A local file, or the bytes of a GeoJSON document that came from somewhere else.
    name
        What messages call the label; the path when omitted.
    schema, speed_from, speed_field, speed_unit
        How speeds are found: see `SpeedRule`. Naming a field means that speeds come from it.
    bounds, bounds_crs
        Left, bottom, right, top of the scene in its CRS. Given for a road file that serves many
        scenes: it is read once a process and only the roads within the bounds are returned.
        Omitted for a scene's own label file: all its roads are returned.
    margin_m
        Metres that the bounds are widened by: as much as the roads will be.

    Raises
    ------
    LabelError
        If the file cannot be used; the message says how to mend it.
    UsageError
        If an option is not known, or bounds come without their CRS.
    """
    rule = SpeedRule(schema, speed_from, speed_field, speed_unit)
    if bounds is None:
        return _read_table(label, rule, name).roads()
    if bounds_crs is None:
        raise UsageError("bounds need the CRS they are in: give bounds_crs")
    if isinstance(label, bytes):
        table = _read_table(label, rule, name)
        file = RoadFile(table, shapely.STRtree(table.lines))
    else:
        file = open_road_file(Path(label), rule)
    return file.roads_within(bounds, bounds_crs, margin_m)


def _read_table(
    label: str | os.PathLike[str] | bytes, rule: SpeedRule, name: str | None
) -> RoadTable:
    if isinstance(label, bytes):
        return parse_geojson(label, rule, name or "GeoJSON label")
    path = Path(label)
    if path.suffix.lower() not in GEOJSON_SUFFIXES:
        return read_road_table(path, rule)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LabelError(
            f"{path}: cannot be read ({error.strerror}); check the path, or remove the label to "
            "build the scene as unlabelled"
        ) from error
    return parse_geojson(data, rule, name or str(path))
