"""Read vector files of any format: GDAL's, OpenStreetMap data and GeoParquet, in any CRS."""

from __future__ import annotations

import io
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import pyogrio
import pyogrio.raw
import pyproj
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, reproject, transformer
from geoprep.errors import LabelError
from geoprep.labels.attributes import Attributes
from geoprep.labels.osm_files import LOST, PBF_DATA, prepare_osm
from geoprep.labels.vector_names import (
    GEOJSON_SUFFIXES,
    LINE_TYPES,
    PARQUET_SUFFIXES,
    open_options,
)
from geoprep.storage import require_pyarrow

_SHAPE_HEADER: Final = 100
_TABLE_HEADER: Final = 32
_MOST_SAMPLED: Final = 100_000
"""Features of a layer whose attributes are read to see what it holds."""
_USED_TYPES: Final = (shapely.GeometryType.LINESTRING, shapely.GeometryType.POLYGON)
_UNUSED: Final = {
    -1: "missing",
    0: "Point",
    2: "LinearRing",
    4: "MultiPoint",
    7: "GeometryCollection",
}
"""Names of other types, spelled as in GeoJSON, so that all formats count under one name."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of lines or areas."""

    index: int  # contents in memory get another name at every opening
    name: str
    kind: str  # type of its geometries, as GDAL names it
    crs: str
    fields: tuple[str, ...]
    content: tuple[Any, ...] = ()  # what pyogrio reads, if it is read already

    @property
    def has_lines(self) -> bool:
        """Whether it may hold lines."""
        return _is_of(self.kind, LINE_TYPES)

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


@dataclass(frozen=True, slots=True)
class Features:
    """Lines and areas of layers in one CRS, and attributes of the features they are part of."""

    shapes: NDArray[np.object_]  # (shapes,) 2-D LineStrings and Polygons; multi-parts are split
    feature: NDArray[np.intp]  # (shapes,) the feature of each, ascending
    notes: list[str]  # (features,) why a geometry is not used; "" if it is
    attributes: list[Attributes]  # (features,) the fields that were asked for
    layers: list[str]  # (features,)
    fields: frozenset[str]  # all that the layers have
    crs: str  # x is easting or longitude
    name: str  # of the file, for messages


@dataclass(frozen=True, slots=True)
class VectorFile:
    """An opened vector file, or the contents of one that needs no other files.

    Examples
    --------
    >>> road = b'{"type": "LineString", "coordinates": [[37.6, 55.7], [37.61, 55.7]]}'
    >>> feature = b'{"type": "Feature", "properties": {"highway": "primary"}, "geometry": %s}'
    >>> file = VectorFile.open(feature % road, "roads.geojson")
    >>> features = file.read([file.layer("roads")], ["highway"])
    >>> features.attributes, len(features.shapes), features.crs
    ([{'highway': 'primary'}], 1, 'EPSG:4326')
    """

    source: Path | bytes
    name: str  # for messages
    layers: dict[str, Layer]  # those of lines and areas
    present: str  # all layers, for messages
    where: str | None = None  # SQL condition that selects features
    frame: Any = None  # GeoDataFrame, of a format that GDAL does not read
    # By id, of OpenStreetMap objects that lack nodes.
    problems: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, source: Path | bytes, name: str = "", *, where: str | None = None) -> VectorFile:
        """Open a file; ``name`` tells the format of contents, the path if omitted.

        Raises LabelError if it cannot be read.
        """
        name = name or str(source)
        suffix, stem = PurePosixPath(name).suffix.lower(), PurePosixPath(name).stem
        if suffix in PARQUET_SUFFIXES:
            frame = _read_parquet(_bytes_of(source), name)
            if where is None:
                crs = "" if frame.crs is None else frame.crs.to_string()
                fields = frame.columns.drop(frame.geometry.name)
                layer = Layer(0, stem, "Unknown", crs, tuple(map(str, fields)))
                return cls(source, name, {stem: layer}, str(layer), frame=frame)
            packed = io.BytesIO()  # SQL is GDAL's
            frame.to_file(packed, driver="GPKG", layer=stem)
            source = packed.getvalue()
        if suffix == ".shp" and isinstance(source, Path):
            _require_whole_shapefile(source)
        if suffix in GEOJSON_SUFFIXES:  # each opening reads all of the document
            content = _ogr(pyogrio.raw.read, source, name, force_2d=True)
            meta = content[0]
            kind, crs = meta["geometry_type"] or "", meta["crs"] or ""
            layer = Layer(0, stem, kind, crs, tuple(meta["fields"]), content)
            return cls(source, name, {stem: layer}, str(layer), where)
        source, problems = prepare_osm(source, name) if suffix == ".osm" else (source, {})
        listed = [(str(layer), kind) for layer, kind in _ogr(pyogrio.list_layers, source, name)]
        present = ", ".join(f"{layer} ({kind or 'no geometry'})" for layer, kind in listed)
        layers = {}
        for index, (layer_name, kind) in enumerate(listed):
            if _is_of(kind, (*LINE_TYPES, "Polygon")):
                info = _ogr(pyogrio.read_info, source, name, layer=index, **open_options(name))
                kind, crs = info["geometry_type"] or "", info["crs"] or ""
                layers[layer_name] = Layer(index, layer_name, kind, crs, tuple(info["fields"]))
        return cls(source, name, layers, present or "none", where, None, problems)

    def layer(self, name: str) -> Layer:
        """Return a layer of lines or areas by its name."""
        if name not in self.layers:
            raise LabelError(
                f"{self.name}: no layer {name!r} of lines or areas; layers: {self.present}. Name "
                "one of them as `layer`"
            )
        return self.layers[name]

    def sample(self, layer: Layer, fields: Sequence[str]) -> set[tuple[object, ...]]:
        """Return the different values of some fields among the first 100,000 features."""
        meta, _, _, values = _ogr(
            pyogrio.raw.read,
            self.source,
            self.name,
            layer=layer.index,
            columns=list(fields),
            read_geometry=False,
            max_features=_MOST_SAMPLED,
        )
        columns = dict(zip(meta["fields"], values, strict=True))
        return set(zip(*(columns[field].tolist() for field in fields), strict=True))

    def read(self, layers: Sequence[Layer], fields: Collection[str]) -> Features:
        """Return the features of layers in the CRS of the first, with those of some fields."""
        shapes, feature = [np.empty(0, object)], [np.empty(0, np.intp)]
        notes: list[str] = []
        attributes: list[Attributes] = []
        names: list[str] = []
        for layer in layers:
            _require_crs(layer.crs, self.name)
            wanted = {*fields, *(["osm_id"] if self.problems else [])}
            geometry, rows = self._content(layer, [name for name in layer.fields if name in wanted])
            parts, feature_of_part, problems = _parts(geometry)
            shapes.append(reproject(parts, layer.crs, layers[0].crs))
            feature.append(feature_of_part + len(notes))
            notes += [
                note or self.problems.get(str(row.get("osm_id")), "")
                for note, row in zip(problems, rows, strict=True)
            ]
            attributes += rows
            names += [layer.name] * len(problems)
        lost = sum(problem == LOST for problem in self.problems.values())
        lost = lost or (not notes and self._is_pbf_without_nodes())
        notes += [LOST] * lost
        attributes += [{}] * lost
        names += [layers[0].name] * lost
        known = frozenset(field for layer in layers for field in layer.fields)
        joined = np.concatenate(shapes), np.concatenate(feature)
        return Features(*joined, notes, attributes, names, known, layers[0].crs, self.name)

    def _is_pbf_without_nodes(self) -> bool:
        """Return whether no layer of OpenStreetMap data has a feature, although it has objects."""
        if not self.name.lower().endswith(".pbf"):
            return False
        for layer, _ in _ogr(pyogrio.list_layers, self.source, self.name):
            options = {"layer": layer, **open_options(self.name)}
            if len(_ogr(pyogrio.raw.read, self.source, self.name, **options)[2]):
                return False
        return PBF_DATA in _bytes_of(self.source)

    def _content(
        self, layer: Layer, fields: list[str]
    ) -> tuple[NDArray[np.object_], list[Attributes]]:
        """Return the geometries of a layer, and some fields of its features."""
        if self.frame is not None:
            geometry = shapely.force_2d(np.asarray(self.frame.geometry.array, object))
            columns = self.frame[fields].astype(object)
            columns = columns.where(columns.notna(), None)
            return geometry, _rows(fields, [columns[field] for field in fields], len(geometry))
        try:
            meta, _, wkb, values = (self.where is None and layer.content) or _ogr(
                pyogrio.raw.read,
                self.source,
                self.name,
                layer=layer.index,
                # Drivers evaluate a condition on the fields that are read, others being null.
                columns=fields if self.where is None else None,
                force_2d=True,
                where=self.where,
                **open_options(self.name),
            )
        except LabelError as error:
            if self.where is None:
                raise
            raise LabelError(
                f"{self.name}: cannot select features by `where` {self.where!r} "
                f"({error.__cause__}). Write an SQL condition on the fields of layer "
                f"{layer.name}: {', '.join(layer.fields) or 'none'}"
            ) from error
        geometry = shapely.force_2d(shapely.from_wkb(wkb, on_invalid="fix"))
        read = dict(zip(meta["fields"], values, strict=True))
        return geometry, _rows(fields, [read[field] for field in fields], len(geometry))


def _rows(fields: Sequence[str], columns: Sequence[Any], count: int) -> list[Attributes]:
    """Return a mapping per feature from columns, as plain Python values."""
    if not fields:
        return [{} for _ in range(count)]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [dict(zip(fields, row, strict=True)) for row in rows]


def _is_of(kind: str | None, words: Collection[str]) -> bool:
    return kind is not None and any(word in kind for word in words)


def _parts(
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


def _ogr(function: Any, source: Path | bytes, name: str, **options: Any) -> Any:  # noqa: ANN401 (pyogrio is untyped)
    """Call a function of pyogrio; its errors become one that names the file."""
    try:
        return function(source, **options)
    except (RuntimeError, ValueError) as error:  # the first: all errors of pyogrio
        if "USE_CUSTOM_INDEXING=NO" in str(error):  # an editor's .pbf: nodes numbered below 0
            return _ogr(function, source, name, **options, USE_CUSTOM_INDEXING="NO")
        raise LabelError(
            f"{name}: not readable as a vector file ({error}); check it with ogrinfo, or convert "
            "it with ogr2ogr fixed.gpkg INPUT"
        ) from error


def _require_crs(crs: str, name: str) -> None:
    """Refuse a file whose coordinates cannot be located on Earth."""
    try:
        transformer(crs, LONLAT)
    except pyproj.exceptions.ProjError as error:  # also for a local CRS, or one of the Moon
        stated = f"a CRS that is not on Earth ({crs[:60]})" if crs else "no CRS"
        raise LabelError(
            f"{name}: has {stated}; write the right one with ogr2ogr -a_srs EPSG:CODE fixed.gpkg "
            f"{PurePosixPath(name).name} (a Shapefile needs its .prj file in the same folder)"
        ) from error


def _read_parquet(data: bytes, name: str) -> Any:  # noqa: ANN401 - a GeoDataFrame
    """Return GeoParquet, which the GDAL of pyogrio's wheels cannot read, as a GeoDataFrame."""
    require_pyarrow()
    import geopandas
    from pyarrow.lib import ArrowException

    try:
        return geopandas.read_parquet(io.BytesIO(data))
    except (ArrowException, ValueError, OSError, KeyError) as error:
        raise LabelError(
            f"{name}: not readable as GeoParquet ({error}); check the file, or convert it to "
            "GeoPackage"
        ) from error


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
