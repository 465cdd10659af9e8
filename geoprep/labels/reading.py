"""The roads of a scene: from its own label file, or from one road file for all scenes."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from geoprep.crs import Bounds
from geoprep.errors import LabelError, SourceError, UsageError
from geoprep.labels.geojson import parse_geojson
from geoprep.labels.roadfile import RoadFile, open_road_file
from geoprep.labels.rule import SpeedRule
from geoprep.labels.table import Roads, RoadTable
from geoprep.labels.vectors import GEOJSON_SUFFIXES, read_road_table
from geoprep.storage import is_local, read_bytes

__all__ = ["Roads", "read_roads"]


def read_roads(
    label: str | os.PathLike[str] | bytes,
    *,
    rule: SpeedRule | None = None,
    name: str | None = None,
    bounds: Bounds | None = None,
    bounds_crs: str | None = None,
    margin_m: float = 2.0,
    scene: Bounds | None = None,
) -> Roads:
    """Return the roads of one scene, with a speed each.

    Parameters
    ----------
    label
        An address (see :mod:`geoprep.storage.addresses`) of a file of any format, or the bytes of a
        GeoJSON document.
    rule
        How speeds are found; omitted: from the attributes, however they are spelled.
    name
        What messages call the label; the address when omitted.
    bounds, bounds_crs
        Left, bottom, right, top of the ground whose roads are wanted. Given for a file that is
        asked more than once: it is then read once per process. Omitted: all roads are returned.
    margin_m
        Metres that the bounds are widened by: as much as the roads will be.
    scene
        Bounds of the whole scene in ``bounds_crs``, given for a scene's own label: one that has
        features, but none in the scene, is refused.

    Raises
    ------
    LabelError
        If the file cannot be used or says nothing about the scene; the message says how to mend it.
    UsageError
        If bounds come without their CRS.
    """
    rule = rule or SpeedRule()
    if bounds_crs is None:
        if bounds is not None or scene is not None:
            raise UsageError("bounds need the CRS they are in: give bounds_crs")
        return _read_table(label, rule, name).roads()
    if bounds is not None and not isinstance(label, bytes) and is_local(os.fspath(label)):
        file = open_road_file(Path(label), rule)
    else:
        file = RoadFile.of(_read_table(label, rule, name), _name(label, name))
    if scene is not None:
        file.require_touch(scene, bounds_crs)
    if bounds is None:
        return file.table.roads()
    return file.roads_within(bounds, bounds_crs, margin_m)


def _name(label: str | os.PathLike[str] | bytes, name: str | None) -> str:
    return name or ("GeoJSON label" if isinstance(label, bytes) else os.fspath(label))


def _read_table(
    label: str | os.PathLike[str] | bytes, rule: SpeedRule, name: str | None
) -> RoadTable:
    name = _name(label, name)
    if isinstance(label, bytes):
        return parse_geojson(label, rule, name)
    address = os.fspath(label)
    is_geojson = PurePosixPath(address).suffix.lower() in GEOJSON_SUFFIXES
    if is_local(address) and not is_geojson:
        return read_road_table(Path(address), rule)
    try:
        data = read_bytes(address)
    except SourceError as error:
        raise LabelError(
            f"{error} Check the path, or remove the label to build the scene as unlabelled."
        ) from error
    return parse_geojson(data, rule, name) if is_geojson else read_road_table(data, rule, name)
