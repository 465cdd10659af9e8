"""Road networks in files that GDAL reads; GeoJSON (RFC 7946) is also written here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import numpy as np
import shapely

from geoprep.crs import LONLAT, reproject
from geoprep.errors import SourceError, UsageError
from geoprep.roads.formats.edge_table import (
    are_network_fields,
    crs_name,
    edge_columns,
    network_of_table,
)
from geoprep.roads.network import RoadGraph

EDGES: Final = "edges"
NODES: Final = "nodes"
_DECIMALS: Final = 8
"""Decimal places of a degree: 1 mm."""
_PLANE_DECIMALS: Final = 3
_HEAD_BYTES: Final = 1 << 16  # enough for a first feature with a long line
_NULL_CRS: Final = re.compile(rb'"crs"\s*:\s*null')
_LINES: Final = ("LineString", "Unknown", "Geometry")


def write_geojson(network: RoadGraph, path: Path) -> None:
    """Write one feature per edge, in longitude and latitude.

    A network that is not georeferenced keeps its metres. RFC 7946 has no way to say so; the file
    has ``"crs": null``, as in the specification of 2008.
    """
    lines, decimals = network.lines, _PLANE_DECIMALS
    if network.crs is not None:
        lines, decimals = reproject(network.lines, network.crs, LONLAT), _DECIMALS
    columns = edge_columns(network)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    # One feature per line of text: large files stay readable, and a diff shows which edge moved.
    features = [
        json.dumps(
            {
                "type": "Feature",
                "geometry": {
                    "type": "LineString",
                    "coordinates": np.round(shapely.get_coordinates(line), decimals).tolist(),
                },
                "properties": dict(zip(columns, map(_number, row), strict=True)),
            }
        )
        for line, row in zip(lines, rows, strict=True)
    ]
    head = '{"type": "FeatureCollection", ' + ('"crs": null, ' if network.crs is None else "")
    path.write_text(head + '"features": [\n' + ",\n".join(features) + "\n]}\n", encoding="utf-8")


def _number(value: float) -> float | None:
    return None if value != value else round(value, 4)  # JSON has no NaN


def read_vector(path: Path, layer: str | None) -> RoadGraph:
    """Return the road network of a layer of lines, and of the layer ``nodes`` where there is one.

    Raises
    ------
    UsageError
        Several layers are road networks.
    SourceError
        The file cannot be read, or is not a road network.
    """
    import pyogrio
    from pyogrio.errors import DataLayerError, DataSourceError

    try:
        layers = dict(pyogrio.list_layers(path).tolist())
        layer = layer or _network_layer(path, layers)
        meta, _, wkb, values = pyogrio.raw.read(path, layer=layer, force_2d=True)
        nodes = _nodes(path) if layer == EDGES and NODES in layers else None
    except (DataSourceError, DataLayerError) as error:
        raise SourceError(f"{path}: not readable as a road network: {error}") from error
    columns = dict(zip(meta["fields"].tolist(), values, strict=True))
    if not len(wkb):
        columns.setdefault("speed_mph", np.empty(0))
    crs = None if _is_plane(path) else crs_name(meta["crs"])
    with np.errstate(invalid="ignore"):  # coordinates that are NaN are reported below
        lines = np.asarray(shapely.from_wkb(wkb), object)
    _require_degrees(path, lines, meta["crs"] if crs else None)
    return network_of_table(path, columns, lines, crs, nodes)


def _network_layer(path: Path, layers: dict[str, str | None]) -> str:
    """Return the layer of lines to read: ``edges``, the only one with speeds, or the only one."""
    if EDGES in layers:
        return EDGES
    lines = [name for name, kind in layers.items() if kind and any(k in kind for k in _LINES)]
    named = [name for name in lines if are_network_fields(_fields(path, name))]
    if len(named) > 1:
        raise UsageError(
            f"{path}: several layers are road networks: {', '.join(named)}. Choose one with "
            "`layer`."
        )
    if not lines:
        raise SourceError(f"{path}: has no layer of lines, so it is not a road network")
    return (named or lines)[0]


def _fields(path: Path, layer: str) -> list[str]:
    import pyogrio

    fields: list[str] = pyogrio.read_info(path, layer=layer)["fields"].tolist()
    return fields


def _nodes(path: Path) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return the coordinates of the layer of nodes by number; None if numbers are missing."""
    import pyogrio

    meta, _, wkb, values = pyogrio.raw.read(path, layer=NODES, force_2d=True)
    nodes: np.ndarray[Any, np.dtype[np.float64]]
    nodes = shapely.get_coordinates(shapely.from_wkb(wkb))
    fields = meta["fields"].tolist()
    if "node" not in fields or len(nodes) != len(wkb):
        return None
    number = values[fields.index("node")]
    order = np.argsort(number, kind="stable")
    return nodes[order] if np.array_equal(number[order], np.arange(len(nodes))) else None


def _is_plane(path: Path) -> bool:
    """Return whether a GeoJSON file says that it has no CRS; GDAL takes it for degrees."""
    if path.suffix.lower() not in (".geojson", ".json"):
        return False
    with path.open("rb") as file:
        return _NULL_CRS.search(file.read(_HEAD_BYTES).partition(b'"features"')[0]) is not None


def _require_degrees(path: Path, lines: np.ndarray[Any, Any], crs: str | None) -> None:
    """Refuse coordinates beyond 180 degrees in a geographic CRS: they are metres."""
    if crs not in ("EPSG:4326", "OGC:CRS84") or not len(lines):
        return
    west, south, east, north = shapely.total_bounds(lines).tolist()
    if west < -180 or south < -90 or east > 180 or north > 90:
        raise SourceError(
            f"{path}: its coordinates are not longitude and latitude, as its CRS {crs} says. "
            "Assign the right CRS with ogr2ogr -a_srs EPSG:CODE."
        )


def layers(path: Path) -> list[str]:
    """Return the names of the layers of a file; none if it cannot be read."""
    import pyogrio
    from pyogrio.errors import DataSourceError

    try:
        return [str(name) for name, _ in pyogrio.list_layers(path)]
    except DataSourceError:
        return []


def has_network_fields(path: Path, layer: str | None) -> bool:
    """Return whether a layer of a file has the fields of a road network."""
    import pyogrio
    from pyogrio.errors import DataLayerError, DataSourceError

    if path.suffix.lower() in (".geojson", ".json"):
        # Labels of SpaceNet are thousands of small files: opening each with GDAL takes longer than
        # the score.
        with path.open("rb") as file:
            if b'"speed_mph"' not in file.read(_HEAD_BYTES):
                return False
    try:
        layers = [layer] if layer else [name for name, _ in pyogrio.list_layers(path).tolist()]
        return any(are_network_fields(_fields(path, name)) for name in layers)
    except (DataSourceError, DataLayerError):
        return False  # the reader of labels reports what is wrong with the file
