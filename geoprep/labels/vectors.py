"""One road file for many scenes: GeoPackage, Shapefile, GeoJSON and what else GDAL reads, any CRS.

A file is read once a process and kept with a spatial index, so that each scene only asks for the
roads within its bounds.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyogrio
import pyogrio.errors
import pyogrio.raw
import pyproj
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, Bounds, boxes_around, transformer
from geoprep.errors import LabelError
from geoprep.labels.attributes import PROPERTY_NAMES, Properties
from geoprep.labels.geojson import parse_geojson
from geoprep.labels.rule import SPEED_FIELDS, SpeedRule, require_speed_field
from geoprep.labels.table import Roads, RoadTable, build_table

GEOJSON_SUFFIXES: Final = (".geojson", ".json")
_SIDECARS: Final = (".dbf", ".prj", ".shx")
_KEPT_FILES: Final = 4

_LINE, _MULTILINE = shapely.GeometryType.LINESTRING, shapely.GeometryType.MULTILINESTRING

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoadFile:
    """A road table with an index of its lines (safe to query from many threads)."""

    table: RoadTable
    tree: shapely.STRtree

    def roads_within(self, bounds: Bounds, bounds_crs: str, margin_m: float) -> Roads:
        """Return the roads that touch some bounds, widened by a margin.

        Parameters
        ----------
        bounds, bounds_crs
            Left, bottom, right, top, in any CRS.
        margin_m
            Metres on the ground: as much as the roads will be widened by.
        """
        boxes = boxes_around(bounds, bounds_crs, self.table.crs, margin_m)
        found = [self.tree.query(shapely.box(*box), predicate="intersects") for box in boxes]
        chosen = np.unique(np.concatenate([np.empty(0, dtype=np.intp), *found]))
        return self.table.roads_at(chosen)


def open_road_file(path: Path, rule: SpeedRule) -> RoadFile:
    """Return a road file, read at most once a process as long as it does not change.

    Features without a usable line have no place, so no scene can report them: they are logged here.

    Raises
    ------
    LabelError
        If the file cannot be read, has no layer of lines, no CRS, or lacks the speed field.
    """
    key = (path.resolve(), _fingerprint(path), rule)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
        table = read_road_table(path, rule)
        if lineless := table.lineless():
            _log.warning("%s: features left out: %s", path, lineless)
        _kept[key] = RoadFile(table, shapely.STRtree(table.lines))
        while len(_kept) > _KEPT_FILES:
            _kept.popitem(last=False)
        return _kept[key]


_Key = tuple[Path, tuple[tuple[int, int], ...], SpeedRule]
_lock = threading.Lock()
_kept: OrderedDict[_Key, RoadFile] = OrderedDict()


def _fingerprint(path: Path) -> tuple[tuple[int, int], ...]:
    """Return (mtime, size) of a file and of the files beside it that a Shapefile consists of."""
    files = [path, *(path.with_suffix(suffix) for suffix in _SIDECARS)]
    try:
        path.stat()
    except OSError as error:
        raise LabelError(f"{path}: cannot be read ({error.strerror}); check --labels") from error
    stats = [file.stat() for file in files if file.exists()]
    return tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)


def read_road_table(path: Path, rule: SpeedRule) -> RoadTable:
    """Return all roads of one file of any format.

    Raises
    ------
    LabelError
        As `open_road_file`.
    """
    if path.suffix.lower() in GEOJSON_SUFFIXES:
        return parse_geojson(path.read_bytes(), rule, str(path))
    info = _line_layer(path)
    _require_crs(info["crs"], path)
    require_speed_field(list(info["fields"]), rule, str(path))
    wanted = {*PROPERTY_NAMES, *SPEED_FIELDS, *rule.fields}
    columns = [field for field in info["fields"] if field in wanted]
    meta, _, wkb, values = _ogr(
        pyogrio.raw.read, path, layer=info["layer_name"], columns=columns, force_2d=True
    )
    lines, feature, notes = _lines(wkb)
    properties = _rows(list(meta["fields"]), values, len(notes))
    return build_table(lines, feature, notes, properties, info["crs"], rule, str(path))


def _line_layer(path: Path) -> dict[str, Any]:
    """Return what pyogrio knows of the first layer that can hold lines."""
    layers = _ogr(pyogrio.list_layers, path)
    for layer, kind in layers:
        # None: a table without geometry. "Unknown" may hold anything, lines included.
        if kind is not None and ("LineString" in kind or kind.startswith(("Unknown", "Geometry"))):
            info: dict[str, Any] = _ogr(pyogrio.read_info, path, layer=layer)
            return info
    there = ", ".join(f"{layer} ({kind or 'no geometry'})" for layer, kind in layers) or "none"
    raise LabelError(
        f"{path}: no layer of lines; layers: {there}. Give --labels a file of road centre lines"
    )


def _require_crs(crs: str | None, path: Path) -> None:
    """Refuse a file whose lines lie nowhere on Earth."""
    try:
        transformer(crs or "", LONLAT)
    except pyproj.exceptions.ProjError as error:
        found = f"a CRS that is no place on Earth ({crs[:60]})" if crs else "no CRS"
        raise LabelError(
            f"{path}: has {found}; write the right one with ogr2ogr -a_srs EPSG:CODE fixed.gpkg "
            f"{path.name} (a Shapefile wants its .prj file beside it)"
        ) from error


def _ogr(function: Any, path: Path, **options: Any) -> Any:  # noqa: ANN401 (pyogrio is untyped)
    """Call pyogrio; what GDAL cannot read becomes an error that names the file."""
    try:
        return function(path, **options)
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, ValueError) as error:
        raise LabelError(
            f"{path}: not readable as a road file ({error}); check it with ogrinfo, or convert it "
            "with ogr2ogr fixed.gpkg INPUT"
        ) from error


def _lines(
    wkb: NDArray[np.object_],
) -> tuple[NDArray[np.object_], NDArray[np.intp], list[str]]:
    """Return lines (m,), the feature of each (m,), and a note a feature ("": fine)."""
    geometry = shapely.force_2d(shapely.from_wkb(wkb, on_invalid="ignore"))
    kinds = shapely.get_type_id(geometry)
    notes = [_geometry_note(kind) for kind in kinds.tolist()]
    is_line = (kinds == _LINE) | (kinds == _MULTILINE)
    feature = np.flatnonzero(is_line)
    lines, part_of = shapely.get_parts(geometry[is_line], return_index=True)
    filled = ~shapely.is_empty(lines)
    lines, owner = lines[filled], feature[part_of[filled]]
    for index in np.setdiff1d(feature, owner).tolist():
        notes[index] = "geometry empty"
    return lines, owner, notes


def _geometry_note(kind: int) -> str:
    if kind in (_LINE, _MULTILINE):
        return ""
    # The spelling of GeoJSON, so that both ways in count under one name.
    return f"geometry {_GEOJSON_NAMES.get(kind, 'curve')}" if kind >= 0 else "geometry missing"


_GEOJSON_NAMES: Final = {
    0: "Point",
    2: "LinearRing",
    3: "Polygon",
    4: "MultiPoint",
    6: "MultiPolygon",
    7: "GeometryCollection",
}


def _rows(fields: list[str], values: list[NDArray[Any]], rows: int) -> list[Properties]:
    """Return one mapping a feature from columns, as plain Python values."""
    columns = [column.tolist() for column in values]
    if not columns:
        return [{} for _ in range(rows)]
    return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]
