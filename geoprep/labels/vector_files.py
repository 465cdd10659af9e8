"""Read vector files of any format: GDAL's, OpenStreetMap data and GeoParquet, in any CRS."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pyogrio
import pyogrio.raw
import shapely
from numpy.typing import NDArray

from geoprep.crs import reproject
from geoprep.errors import LabelError
from geoprep.labels.attributes import Attributes
from geoprep.labels.vector_checks import (
    bytes_of,
    require_crs,
    require_whole_shapefile,
)
from geoprep.labels.vector_names import (
    GEOJSON_SUFFIXES,
    LINE_TYPES,
    OSM_SUFFIXES,
    PARQUET_SUFFIXES,
    open_options,
)
from geoprep.storage.local_files import require_pyarrow

_LATIN_1: Final = "ISO-8859-1"
_UNKNOWN_ENCODING: Final = (
    f"text read as {_LATIN_1}, since the Shapefile states no encoding: write it to a file of the "
    "same name with the suffix .cpg, such as: echo CP1251 > roads.cpg"
)
LOST: Final = "OpenStreetMap objects without coordinates"
_PBF_DATA: Final = b"OSMData"
"""Type of the blocks with objects, in a ``.pbf`` file."""
UNSELECTED: Final = "no feature is selected by `where`"
_MOST_SAMPLED: Final = 100_000
"""Features of a layer whose attributes are read to see what it holds."""
_USED_TYPES: Final = (shapely.GeometryType.LINESTRING, shapely.GeometryType.POLYGON)
POINT: Final = "geometry Point"
"""Note of a feature of points that are not read."""
_UNUSED: Final = {
    -1: "missing",
    0: "Point",
    2: "LinearRing",
    4: "Point",
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
    def is_points(self) -> bool:
        """Whether it holds points only."""
        return _is_of(self.kind, ("Point",))

    @property
    def has_lines(self) -> bool:
        """Whether it may hold lines."""
        return _is_of(self.kind, LINE_TYPES)

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


@dataclass(frozen=True, slots=True)
class Features:
    """Lines and areas of layers in one CRS, and attributes of the features they are part of."""

    # (shapes,) 2-D LineStrings, Polygons and, if read, Points; multi-parts are split
    shapes: NDArray[np.object_]
    feature: NDArray[np.intp]  # (shapes,) the feature of each, ascending
    notes: list[str]  # (features,) why a geometry is not used; "" if it is
    attributes: list[Attributes]  # (features,) the fields that were asked for
    layers: list[str]  # (features,)
    fields: frozenset[str]  # all that the layers have
    crs: str  # x is easting or longitude
    name: str  # of the file, for messages
    file_notes: tuple[str, ...] = ()


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
    encoding: str | None = None  # of text; None: what the file states
    points: bool = False  # whether these are read, and layers of them listed

    @classmethod
    def open(
        cls,
        source: Path | bytes,
        name: str = "",
        *,
        where: str | None = None,
        points: bool = False,
    ) -> VectorFile:
        """Open a file; ``name`` tells the format of contents, the path if omitted.

        Points are read if ``points`` says so.
        Raises LabelError if it cannot be read.
        """
        name = name or str(source)
        suffix, stem = PurePosixPath(name).suffix.lower(), PurePosixPath(name).stem
        encoding = None
        if suffix in PARQUET_SUFFIXES:
            frame = _read_parquet(bytes_of(source), name)
            if where is None:
                return replace(cls.of_frame(frame, source, name), points=points)
            packed = io.BytesIO()  # SQL is GDAL's
            frame.to_file(packed, driver="GPKG", layer=stem)
            source = packed.getvalue()
        if suffix == ".shp" and isinstance(source, Path):
            encoding = None if require_whole_shapefile(source) else _LATIN_1
            if encoding == _LATIN_1 and where and not where.isascii():
                raise LabelError(
                    f"{name}: {_UNKNOWN_ENCODING}; `where` {where!r} has letters that depend on it"
                )
        if suffix in GEOJSON_SUFFIXES:  # each opening reads all of the document
            content = _ogr(pyogrio.raw.read, source, name, force_2d=True)
            meta = content[0]
            kind, crs = meta["geometry_type"] or "", meta["crs"] or ""
            layer = Layer(0, stem, kind, crs, tuple(meta["fields"]), content)
            return cls(source, name, {stem: layer}, str(layer), where, points=points)
        listed = [(str(layer), kind) for layer, kind in _ogr(pyogrio.list_layers, source, name)]
        present = ", ".join(f"{layer} ({kind or 'no geometry'})" for layer, kind in listed)
        layers, kinds = {}, (*LINE_TYPES, "Polygon", *(["Point"] if points else []))
        for index, (layer_name, kind) in enumerate(listed):
            if _is_of(kind, kinds):
                info = _ogr(pyogrio.read_info, source, name, layer=index, **open_options(name))
                kind, crs = info["geometry_type"] or "", info["crs"] or ""
                layers[layer_name] = Layer(index, layer_name, kind, crs, tuple(info["fields"]))
        shown = present or "none"
        return cls(source, name, layers, shown, where, None, encoding, points)

    @classmethod
    def of_frame(cls, frame: Any, source: Path | bytes, name: str = "") -> VectorFile:  # noqa: ANN401 - a GeoDataFrame
        """Return a file of one layer that was read as a frame."""
        name = name or str(source)
        stem, crs = PurePosixPath(name).stem, "" if frame.crs is None else frame.crs.to_string()
        fields = frame.columns.drop(frame.geometry.name)
        layer = Layer(0, stem, "Unknown", crs, tuple(map(str, fields)))
        return cls(source, name, {stem: layer}, str(layer), frame=frame)

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
        if self.frame is not None:
            return set(self.frame[list(fields)].astype(object).itertuples(index=False, name=None))
        meta, _, _, values = _ogr(
            pyogrio.raw.read,
            self.source,
            self.name,
            layer=layer.index,
            columns=list(fields),
            read_geometry=False,
            max_features=_MOST_SAMPLED,
            **self._options(),
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
            require_crs(layer.crs, self.name)
            geometry, rows = self._content(layer, [name for name in layer.fields if name in fields])
            parts, feature_of_part, problems = _parts(geometry, self.points)
            shapes.append(reproject(parts, layer.crs, layers[0].crs))
            feature.append(feature_of_part + len(notes))
            notes += problems
            attributes += rows
            names += [layer.name] * len(problems)
        file_notes = []
        values = (value for row in attributes for value in row.values())
        if self.encoding == _LATIN_1 and any(
            isinstance(v, str) and not v.isascii() for v in values
        ):
            file_notes.append(_UNKNOWN_ENCODING)
        if self.where is not None and not notes and self._count(layers):
            file_notes.append(UNSELECTED)
        if not notes and self._is_osm_without_nodes():
            notes, attributes, names = [LOST], [{}], [layers[0].name]
        known = frozenset(field for layer in layers for field in layer.fields)
        joined = np.concatenate(shapes), np.concatenate(feature)
        return Features(
            *joined, notes, attributes, names, known, layers[0].crs, self.name, tuple(file_notes)
        )

    def _options(self) -> dict[str, str]:
        return open_options(self.name) | ({"encoding": self.encoding} if self.encoding else {})

    def _count(self, layers: Sequence[Layer]) -> int:
        """Return the number of features of layers, whatever the condition."""
        return sum(
            _ogr(
                pyogrio.read_info, self.source, self.name,
                layer=layer.index, force_feature_count=True, **open_options(self.name),
            )["features"]
            for layer in layers
        )  # fmt: skip

    def _selected(self, layer: Layer) -> Any:  # noqa: ANN401 (pyogrio is untyped)
        """Read the features that the condition selects, as SQLite does whatever the format."""
        if self.name.lower().endswith((".gpkg", *PARQUET_SUFFIXES)):
            options = {"layer": layer.index, "where": self.where}
            return _ogr(pyogrio.raw.read, self.source, self.name, force_2d=True, **options)
        with TemporaryDirectory() as folder:
            path = self.source
            if isinstance(path, bytes):  # in memory, layers get another name at every opening
                path = Path(folder, PurePosixPath(self.name).name)
                path.write_bytes(bytes_of(self.source))
            name = str(pyogrio.list_layers(path)[layer.index][0]).replace('"', '""')
            # GDAL gives conditions to the driver, in its own dialect, unless there is a LIMIT.
            rows = f'SELECT * FROM (SELECT * FROM "{name}" LIMIT -1) WHERE {self.where}'
            options = {"sql": rows, "sql_dialect": "SQLITE"}
            return _ogr(
                pyogrio.raw.read, path, self.name, force_2d=True, **options, **self._options()
            )

    def _is_osm_without_nodes(self) -> bool:
        """Return whether no layer of OpenStreetMap data has a feature, although it has objects."""
        if not self.name.lower().endswith(OSM_SUFFIXES):
            return False
        for layer, _ in _ogr(pyogrio.list_layers, self.source, self.name):
            options = {"layer": layer, **open_options(self.name)}
            if len(_ogr(pyogrio.raw.read, self.source, self.name, **options)[2]):
                return False
        data = bytes_of(self.source)
        return _PBF_DATA in data or (b"<way" in data and b"<node" not in data)

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
            if self.where is not None:
                meta, _, wkb, values = self._selected(layer)
            else:
                meta, _, wkb, values = layer.content or _ogr(
                    pyogrio.raw.read,
                    self.source,
                    self.name,
                    layer=layer.index,
                    columns=fields,
                    force_2d=True,
                    **self._options(),
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
    geometry: NDArray[np.object_], points: bool
) -> tuple[NDArray[np.object_], NDArray[np.intp], list[str]]:
    """Return lines and polygons (m,), the feature of each (m,), a note per feature ("": fine).

    Of a feature without either, ``points`` are returned if they are read.
    """
    kinds = shapely.get_type_id(geometry)
    feature = np.flatnonzero(kinds != shapely.GeometryType.MISSING)
    parts = geometry[feature]
    while (shapely.get_type_id(parts) >= shapely.GeometryType.MULTIPOINT).any():
        parts, part_of = shapely.get_parts(parts, return_index=True)
        feature = feature[part_of]
    types, filled = shapely.get_type_id(parts), ~shapely.is_empty(parts)
    used = np.isin(types, _USED_TYPES) & filled
    if points:
        alone = ~np.isin(feature, feature[used])
        used |= alone & filled & (types == shapely.GeometryType.POINT)
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
