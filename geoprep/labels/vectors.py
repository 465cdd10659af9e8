"""A file of roads -> road table: GeoPackage, Shapefile and what else GDAL reads, in any CRS."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import pyogrio
import pyogrio.errors
import pyogrio.raw
import pyproj
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, transformer
from geoprep.errors import LabelError
from geoprep.labels.attributes import PROPERTY_NAMES, Properties
from geoprep.labels.geojson import parse_geojson
from geoprep.labels.rule import SPEED_FIELDS, SpeedRule, require_speed_field
from geoprep.labels.table import RoadTable, build_table

GEOJSON_SUFFIXES: Final = (".geojson", ".json")
SHAPEFILE_PARTS: Final = (".dbf", ".prj", ".shx")

_SHAPE_HEADER: Final = 100
_TABLE_HEADER: Final = 32

# Kinds of layers; None is a table without geometry, "Unknown" may hold anything, lines included.
_LINE: Final = ("LineString", "Unknown", "Geometry")
_AREA: Final = ("Polygon",)

_TAKEN: Final = (
    shapely.GeometryType.LINESTRING,
    shapely.GeometryType.MULTILINESTRING,
    shapely.GeometryType.POLYGON,
    shapely.GeometryType.MULTIPOLYGON,
)


def read_road_table(source: Path | bytes, rule: SpeedRule, name: str = "") -> RoadTable:
    """Return all roads of one file of any format.

    Parameters
    ----------
    source
        A file, or the bytes of one that is no GeoJSON and consists of one file only.
    name
        What messages call the file; its path when omitted.

    Raises
    ------
    LabelError
        If the file cannot be read or a part of it is lost, has no layer of lines or areas, no CRS,
        or lacks the speed or width field.
    """
    if isinstance(source, Path):
        name = name or str(source)
        if source.suffix.lower() in GEOJSON_SUFFIXES:
            return parse_geojson(_bytes_of(source), rule, name)
        if source.suffix.lower() == ".shp":
            _require_whole_shapefile(source)
    info, unread = _line_layer(source, name)
    _require_crs(info["crs"], name)
    require_speed_field(list(info["fields"]), rule, name)
    wanted = {*PROPERTY_NAMES, *SPEED_FIELDS, *rule.fields, rule.width_field}
    columns = [field for field in info["fields"] if field in wanted]
    meta, _, wkb, values = _ogr(
        pyogrio.raw.read,
        source,
        name,
        layer=info["layer_name"],
        columns=columns,
        force_2d=True,
    )
    lines, feature, notes = _lines(wkb)
    properties = _rows(list(meta["fields"]), values, len(notes))
    table = build_table(lines, feature, notes, properties, info["crs"], rule, name)
    return replace(table, file_notes=unread)


def _bytes_of(path: Path, most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise LabelError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _require_whole_shapefile(path: Path) -> None:
    """Refuse a Shapefile without its attributes, or shorter than its headers say.

    GDAL reads both: as roads without type, and as roads without geometry.
    """
    table = next((p for p in map(path.with_suffix, (".dbf", ".DBF")) if p.is_file()), None)
    if table is None:
        raise LabelError(f"{path}: its attributes, {path.stem}.dbf, are not beside it; add them")
    header = _bytes_of(path, _SHAPE_HEADER)
    if len(header) == _SHAPE_HEADER:  # what is shorter is no Shapefile, which GDAL says
        # ESRI Shapefile Technical Description (1998), page 3: the length, in words of 16 bits.
        _require_size(path, struct.unpack(">i", header[24:28])[0] * 2)
    _require_size(table, _TABLE_HEADER)
    header = _bytes_of(table, _TABLE_HEADER)
    # dBASE III: rows, bytes of the header, bytes per row.
    rows, start, row = struct.unpack("<IHH", header[4:12])
    _require_size(table, start + rows * row)


def _require_size(path: Path, expected: int) -> None:
    there = path.stat().st_size
    if there < expected:
        raise LabelError(
            f"{path}: cut short, {there} of {expected} bytes are there; fetch it again"
        )


def _line_layer(source: Path | bytes, name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what pyogrio knows of the first layer that can hold lines, else of areas.

    Also a note where other layers might hold roads as well, which are not read.
    """
    layers = _ogr(pyogrio.list_layers, source, name).tolist()
    several = [[each for each in layers if _is_of(each[1], kinds)] for kinds in (_LINE, _AREA)]
    if roads := several[0] + several[1]:
        info: dict[str, Any] = _ogr(pyogrio.read_info, source, name, layer=roads[0][0])
        others = ", ".join(f"{layer} ({kind})" for layer, kind in roads[1:])
        note = f"layer {roads[0][0]} ({roads[0][1]}) taken as roads, others not read: {others}"
        return info, (note,) if others else ()
    there = ", ".join(f"{layer} ({kind or 'no geometry'})" for layer, kind in layers) or "none"
    raise LabelError(
        f"{name}: no layer of lines or areas; layers: {there}. Give a file of road centre "
        "lines, or of the areas of roads"
    )


def _is_of(kind: str | None, words: tuple[str, ...]) -> bool:
    return kind is not None and any(word in kind for word in words)


def _require_crs(crs: str | None, name: str) -> None:
    """Refuse a file whose lines lie nowhere on Earth."""
    try:
        transformer(crs or "", LONLAT)
    except pyproj.exceptions.ProjError as error:  # also of a CRS that is local, or on the Moon
        found = f"a CRS that is no place on Earth ({crs[:60]})" if crs else "no CRS"
        raise LabelError(
            f"{name}: has {found}; write the right one with ogr2ogr -a_srs EPSG:CODE fixed.gpkg "
            f"{PurePosixPath(name).name} (a Shapefile wants its .prj file beside it)"
        ) from error


def _ogr(function: Any, source: Path | bytes, name: str, **options: Any) -> Any:  # noqa: ANN401 (pyogrio is untyped)
    """Call pyogrio; what GDAL cannot read becomes an error that names the file."""
    try:
        return function(source, **options)
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, ValueError) as error:
        raise LabelError(
            f"{name}: not readable as a road file ({error}); check it with ogrinfo, or convert it "
            "with ogr2ogr fixed.gpkg INPUT"
        ) from error


def _lines(
    wkb: NDArray[np.object_],
) -> tuple[NDArray[np.object_], NDArray[np.intp], list[str]]:
    """Return lines and polygons (m,), the feature of each (m,), a note per feature ("": fine)."""
    geometry = shapely.force_2d(shapely.from_wkb(wkb, on_invalid="ignore"))
    kinds = shapely.get_type_id(geometry)
    notes = [_geometry_note(kind) for kind in kinds.tolist()]
    taken = np.isin(kinds, _TAKEN)
    feature = np.flatnonzero(taken)
    lines, part_of = shapely.get_parts(geometry[taken], return_index=True)
    filled = ~shapely.is_empty(lines)
    lines, owner = lines[filled], feature[part_of[filled]]
    for index in np.setdiff1d(feature, owner).tolist():
        notes[index] = "geometry empty"
    return lines, owner, notes


def _geometry_note(kind: int) -> str:
    if kind in _TAKEN:
        return ""
    # The spelling of GeoJSON, so that both ways in count under one name.
    return f"geometry {_GEOJSON_NAMES.get(kind, 'curve')}" if kind >= 0 else "geometry missing"


_GEOJSON_NAMES: Final = {
    0: "Point",
    2: "LinearRing",
    4: "MultiPoint",
    7: "GeometryCollection",
}


def _rows(fields: list[str], values: list[NDArray[Any]], rows: int) -> list[Properties]:
    """Return one mapping per feature from columns, as plain Python values."""
    columns = [column.tolist() for column in values]
    if not columns:
        return [{} for _ in range(rows)]
    return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]
