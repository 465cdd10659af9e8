"""Read a vector file of any format into a road table: GDAL's formats and GeoParquet, in any CRS."""

from __future__ import annotations

import io
import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import pyogrio
import pyogrio.errors
import pyogrio.raw
import pyproj
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, reproject, transformer
from geoprep.errors import LabelError
from geoprep.labels.attributes import PROPERTY_NAMES, Properties, names_roads, tags_road
from geoprep.labels.class_rule import ClassRule
from geoprep.labels.features import LAYER_KEY
from geoprep.labels.label_options import SPEED_FIELDS, SpeedRule
from geoprep.labels.table import RoadTable, build_table
from geoprep.labels.vector_names import (
    GEOJSON_SUFFIXES,
    LINE_TYPES,
    OSM_LINES,
    OSM_SUFFIXES,
    PARQUET_SUFFIXES,
    open_options,
)
from geoprep.storage import require_pyarrow

_SHAPE_HEADER: Final = 100
_TABLE_HEADER: Final = 32
_MOST_TAGS: Final = 100_000
"""Features of a layer whose tags are read to see whether it holds roads."""

_AREA: Final = ("Polygon",)

_USED_TYPES: Final = (shapely.GeometryType.LINESTRING, shapely.GeometryType.POLYGON)
_UNUSED: Final = {
    -1: "missing",
    0: "Point",
    2: "LinearRing",
    4: "MultiPoint",
    7: "GeometryCollection",
}
"""Names of other types, spelled as in GeoJSON, so that all formats count under one name."""


def read_road_table(source: Path | bytes, rule: SpeedRule, name: str = "") -> RoadTable:
    """Return all roads of one vector file, or of its contents if it needs no other files.

    ``name`` is for messages, and tells the format of contents; the path if omitted.
    """
    name = name or str(source)
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in PARQUET_SUFFIXES:
        return _read_parquet(_bytes_of(source), rule, name)
    if suffix == ".shp" and isinstance(source, Path):
        _require_whole_shapefile(source)
    return _read_layers(source, rule, name)


_Features = tuple[NDArray[np.object_], NDArray[np.intp], list[str], list[Properties]]
"""Lines and areas, the feature of each, a note and the properties per feature."""


def _read_layers(source: Path | bytes, rule: SpeedRule, name: str) -> RoadTable:
    """Return the features of the layer of roads, or of all layers of classes."""
    unread: tuple[str, ...] = ()
    if rule.classes is None:
        layer, unread = _road_layer(source, rule, name)
        layers = [layer]
    else:
        layers = _class_layers(source, rule, rule.classes, name)
    parts: list[_Features] = []
    for layer in layers:
        _require_crs(layer.crs, name)
        lines, feature, notes, properties = _features(source, layer, rule, name)
        if layer.crs != layers[0].crs:
            lines = reproject(lines, layer.crs, layers[0].crs)
        if rule.classes is not None:
            properties = [{**one, LAYER_KEY: layer.name} for one in properties]
        parts.append((lines, feature + sum(len(part[2]) for part in parts), notes, properties))
    lines, feature = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    notes = [one for part in parts for one in part[2]]
    properties = [one for part in parts for one in part[3]]
    fields = {field for layer in layers for field in layer.fields}
    table = build_table(lines, feature, notes, properties, fields, layers[0].crs, rule, name)
    return replace(table, file_notes=unread)


def _wanted(rule: SpeedRule, fields: Iterable[str]) -> list[str]:
    """Return the fields of a file that a rule reads."""
    wanted = {rule.width_field}
    if rule.classes is None:
        wanted |= {*PROPERTY_NAMES, *SPEED_FIELDS, *rule.fields}
    else:
        wanted.add(rule.classes.field)
    return [field for field in fields if field in wanted]


def _class_layers(
    source: Path | bytes, rule: SpeedRule, classes: ClassRule, name: str
) -> list[_Layer]:
    """Return the layers that hold classes: those named, else those with the field, else all."""
    usable, present = _layers(source, name)
    wanted = [one.strip() for one in (rule.layer or "").split(",") if one.strip()]
    layers = [_named(usable, present, layer, name) for layer in wanted] or list(usable.values())
    if not wanted and classes.field is not None:
        layers = [layer for layer in layers if classes.field in layer.fields] or layers
    if not layers:
        raise LabelError(f"{name}: no layer of lines or areas; layers: {present}")
    return layers


def _layers(source: Path | bytes, name: str) -> tuple[dict[str, _Layer], str]:
    """Return the layers of lines and areas by name, and all layers as text."""
    if name.lower().endswith(GEOJSON_SUFFIXES):  # one layer: each opening reads all of the document
        content = _ogr(pyogrio.raw.read, source, name, force_2d=True)
        meta, stem = content[0], PurePosixPath(name).stem
        kind, crs = meta["geometry_type"] or "", meta["crs"] or ""
        only = _Layer(0, stem, kind, crs, tuple(meta["fields"]), content)
        return {stem: only}, str(only)
    listed = [(str(layer), kind) for layer, kind in _ogr(pyogrio.list_layers, source, name)]
    present = ", ".join(f"{layer} ({kind or 'no geometry'})" for layer, kind in listed) or "none"
    found = {}
    for index, (layer, kind) in enumerate(listed):
        if _is_of(kind, (*LINE_TYPES, *_AREA)):
            info = _ogr(pyogrio.read_info, source, name, layer=index, **open_options(name))
            kind, fields = info["geometry_type"] or "", tuple(info["fields"])
            found[layer] = _Layer(index, layer, kind, info["crs"] or "", fields)
    return found, present


def _named(usable: dict[str, _Layer], present: str, layer: str, name: str) -> _Layer:
    if layer not in usable:
        raise LabelError(
            f"{name}: no layer {layer!r} of lines or areas; layers: {present}. Name one of them as "
            "`layer`"
        )
    return usable[layer]


def _features(source: Path | bytes, layer: _Layer, rule: SpeedRule, name: str) -> _Features:
    """Read the lines, areas and some fields of a layer."""
    columns = _wanted(rule, layer.fields)
    try:
        meta, _, wkb, values = (rule.where is None and layer.content) or _ogr(
            pyogrio.raw.read,
            source,
            name,
            layer=layer.index,
            # Drivers evaluate a condition on the fields that are read, others being null.
            columns=columns if rule.where is None else None,
            force_2d=True,
            where=rule.where,
            **open_options(name),
        )
    except LabelError as error:
        if rule.where is None:
            raise
        raise LabelError(
            f"{name}: cannot select features by `where` {rule.where!r} ({error.__cause__}). Write "
            "an SQL condition on the fields of layer "
            f"{layer.name}: {', '.join(layer.fields) or 'none'}"
        ) from error
    geometry = shapely.force_2d(shapely.from_wkb(wkb, on_invalid="fix"))
    lines, feature, notes = _lines(geometry)
    read = dict(zip(meta["fields"], values, strict=True))
    properties = _rows(columns, [read[field] for field in columns], len(notes))
    return lines, feature, notes, properties


def _bytes_of(path: Path | bytes, most: int = -1) -> bytes:
    if isinstance(path, bytes):
        return path
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise LabelError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _require_whole_shapefile(path: Path) -> None:
    """Refuse a Shapefile without its attributes, or shorter than its headers say.

    GDAL reads both without an error: as roads without type, and as roads without geometry.
    """
    table = next((p for p in map(path.with_suffix, (".dbf", ".DBF")) if p.is_file()), None)
    if table is None:
        raise LabelError(
            f"{path}: its attribute file {path.stem}.dbf is missing; put it in the same folder"
        )
    header = _bytes_of(path, _SHAPE_HEADER)
    if len(header) == _SHAPE_HEADER:  # GDAL refuses anything shorter
        # ESRI Shapefile Technical Description (1998), page 3: the length, in words of 16 bits.
        _require_size(path, struct.unpack(">i", header[24:28])[0] * 2)
    _require_size(table, _TABLE_HEADER)
    header = _bytes_of(table, _TABLE_HEADER)
    # dBASE III: number of rows, bytes of the header, bytes per row.
    rows, start, row = struct.unpack("<IHH", header[4:12])
    _require_size(table, start + rows * row)


def _require_size(path: Path, expected: int) -> None:
    size = path.stat().st_size
    if size < expected:
        raise LabelError(
            f"{path}: truncated, {size} of {expected} bytes are there; download it again"
        )


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer of a vector file: its position, name, geometry type, CRS and fields."""

    index: int  # contents in memory get another name at every opening
    name: str
    kind: str
    crs: str
    fields: tuple[str, ...]
    content: tuple[Any, ...] = ()  # what pyogrio reads, if it is read already

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


def _road_layer(source: Path | bytes, rule: SpeedRule, name: str) -> tuple[_Layer, tuple[str, ...]]:
    """Return the layer that holds the roads, and a note if layers of lines or areas are not read.

    That is the named layer, of OpenStreetMap data `OSM_LINES`; else the only layer of lines, or the
    only one of them with road attributes; in a file without lines likewise the layer of areas.
    """
    usable, present = _layers(source, name)
    named = rule.layer or (OSM_LINES if name.lower().endswith(OSM_SUFFIXES) else None)
    if named is not None:
        return _named(usable, present, named, name), ()
    if not usable:
        raise LabelError(
            f"{name}: no layer of lines or areas; layers: {present}. Give a file of road centre "
            "lines, or of the areas of roads"
        )
    layers = list(usable.values())
    lines = [layer for layer in layers if _is_of(layer.kind, LINE_TYPES)]
    candidates = lines or layers
    if len(candidates) > 1:
        candidates = [layer for layer in candidates if _holds_roads(source, layer, rule, name)]
    if len(candidates) != 1:
        found = "more than one layer has" if candidates else "no layer has"
        raise LabelError(
            f"{name}: {found} road attributes (road_type, highway, fclass, ...); layers: "
            f"{present}. Name the layer of roads as `layer`"
        )
    others = [layer for layer in layers if layer is not candidates[0]]
    others.sort(key=lambda layer: layer not in lines)
    note = f"layer {candidates[0]} read as roads, layers not read: {', '.join(map(str, others))}"
    return candidates[0], (note,) if others else ()


def _is_of(kind: str | None, words: Collection[str]) -> bool:
    return kind is not None and any(word in kind for word in words)


def _holds_roads(source: Path | bytes, layer: _Layer, rule: SpeedRule, name: str) -> bool:
    """Return whether a layer has road attributes.

    Geofabrik's railways and rivers have the same fields as its roads, so the values of tags are
    read.
    """
    if rule.fields and any(field in layer.fields for field in rule.fields):
        return True
    tags = [field for field in ("highway", "fclass", "class", "type") if field in layer.fields]
    if not tags:
        return names_roads(layer.fields)
    meta, _, _, values = _ogr(
        pyogrio.raw.read,
        source,
        name,
        layer=layer.index,
        columns=tags,
        read_geometry=False,
        max_features=_MOST_TAGS,
    )
    rows = set(zip(*(column.tolist() for column in values), strict=True))
    return any(tags_road(dict(zip(meta["fields"], row, strict=True))) for row in rows)


def _require_crs(crs: str, name: str) -> None:
    """Refuse a file whose coordinates cannot be located on Earth."""
    try:
        transformer(crs, LONLAT)
    except pyproj.exceptions.ProjError as error:  # also for a local CRS, or one of the Moon
        found = f"a CRS that is not on Earth ({crs[:60]})" if crs else "no CRS"
        raise LabelError(
            f"{name}: has {found}; write the right one with ogr2ogr -a_srs EPSG:CODE fixed.gpkg "
            f"{PurePosixPath(name).name} (a Shapefile needs its .prj file in the same folder)"
        ) from error


def _ogr(function: Any, source: Path | bytes, name: str, **options: Any) -> Any:  # noqa: ANN401 (pyogrio is untyped)
    """Call a function of pyogrio; its errors become one that names the file."""
    try:
        return function(source, **options)
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, ValueError) as error:
        raise LabelError(
            f"{name}: not readable as a vector file ({error}); check it with ogrinfo, or convert "
            "it with ogr2ogr fixed.gpkg INPUT"
        ) from error


def _read_parquet(data: bytes, rule: SpeedRule, name: str) -> RoadTable:
    """Read GeoParquet, which the GDAL of pyogrio's wheels cannot."""
    require_pyarrow()
    import geopandas
    from pyarrow.lib import ArrowException

    try:
        frame = geopandas.read_parquet(io.BytesIO(data))
    except (ArrowException, ValueError, OSError, KeyError) as error:
        raise LabelError(
            f"{name}: not readable as GeoParquet ({error}); check the file, or convert it to "
            "GeoPackage"
        ) from error
    crs = "" if frame.crs is None else frame.crs.to_string()
    _require_crs(crs, name)
    if rule.layer is not None or rule.where is not None:  # SQL is GDAL's
        packed = io.BytesIO()
        frame.to_file(packed, driver="GPKG", layer=PurePosixPath(name).stem)
        return _read_layers(packed.getvalue(), rule, name)
    columns = _wanted(rule, frame.columns)
    lines, feature, notes = _lines(shapely.force_2d(np.asarray(frame.geometry.array, object)))
    read = frame[columns].astype(object)
    read = read.where(read.notna(), None)
    values = [read[field].to_numpy(object) for field in columns]
    properties = _rows(columns, values, len(notes))
    return build_table(lines, feature, notes, properties, list(frame.columns), crs, rule, name)


def _lines(
    geometry: NDArray[np.object_],
) -> tuple[NDArray[np.object_], NDArray[np.intp], list[str]]:
    """Return lines and polygons (m,), the feature of each (m,), a note per feature ("": fine)."""
    kinds = shapely.get_type_id(geometry)
    feature = np.flatnonzero(kinds != shapely.GeometryType.MISSING)
    parts = geometry[feature]
    while (shapely.get_type_id(parts) >= shapely.GeometryType.MULTIPOINT).any():
        parts, part_of = shapely.get_parts(parts, return_index=True)
        feature = feature[part_of]
    used = np.isin(shapely.get_type_id(parts), _USED_TYPES) & ~shapely.is_empty(parts)
    notes = [""] * len(geometry)
    for index in np.setdiff1d(np.arange(len(geometry)), feature[used]).tolist():
        notes[index] = f"geometry {_UNUSED.get(int(kinds[index]), 'empty')}"
    return parts[used], feature[used], notes


def _rows(fields: Sequence[str], values: Sequence[NDArray[Any]], rows: int) -> list[Properties]:
    """Return one mapping per feature from columns, as plain Python values."""
    columns = [column.tolist() for column in values]
    if not columns:
        return [{} for _ in range(rows)]
    return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]
