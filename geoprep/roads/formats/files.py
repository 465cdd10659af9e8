"""Road networks written to and read from files, in the format that the suffix says."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import shapely

from geoprep.crs import LONLAT, crs_name, unwrapped
from geoprep.errors import GeoprepWarning, LabelError, SourceError, UsageError
from geoprep.labels.attributes import names_roads
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.vector_names import GEOJSON_SUFFIXES, OSM_SUFFIXES
from geoprep.outputs import require_suffix
from geoprep.roads.formats.graphs import open_graphml
from geoprep.roads.formats.style import style_row
from geoprep.roads.formats.table import (
    READ_COLUMNS,
    SPEEDS,
    are_network_fields,
    edge_frame,
    edges_of_features,
    network_of_frame,
)
from geoprep.roads.names import NETWORK_SUFFIXES, READ_SUFFIXES
from geoprep.roads.network import RoadGraph, check_network, empty_network
from geoprep.storage.local_files import require_pyarrow
from geoprep.storage.output_files import replaced

if TYPE_CHECKING:
    import pandas as pd

    from geoprep.labels.vector_files import Layer, VectorFile

EDGES: Final = "edges"
_DECIMALS: Final = 8
"""Decimal places of a degree: 1 mm."""
_PLANE_DECIMALS: Final = 3
_HALF_TURN: Final = 180.0
_NULL_CRS: Final = re.compile(rb'"crs"\s*:\s*null')
_OVERTURE: Final = {"subtype", "class"}
_COLLECTION: Final = '"type": "FeatureCollection",'
_GEOPARQUET: Final = "1.1.0"


def write_network(network: RoadGraph, path: str | os.PathLike[str]) -> None:
    """Write a network to a file, which appears complete or not at all.

    The suffix says the format: ``.gpkg`` (layers ``edges`` and ``nodes``, with a style by speed
    that QGIS applies), ``.geojson`` (longitude and latitude) or ``.parquet`` (GeoParquet). Unknown
    values are null; speeds are rounded to 0.001 mph.
    """
    path = Path(path)
    require_suffix(path, *NETWORK_SUFFIXES)
    check_network(network, str(path))
    with replaced(path) as partial:
        _WRITERS[path.suffix.lower()](network, partial)


def _write_geopackage(network: RoadGraph, path: Path) -> None:
    import geopandas as gpd

    points = gpd.points_from_xy(*network.nodes.T, crs=network.crs)
    nodes = gpd.GeoDataFrame({"node": np.arange(len(network.nodes))}, geometry=points)
    write_layer(edge_frame(network, rounded=True), path, EDGES, "LineString")
    write_layer(nodes, path, "nodes", "Point")
    write_layer(style_row(EDGES), path, "layer_styles", None)


def write_layer(
    frame: pd.DataFrame,
    path: Path,
    layer: str,
    geometry_type: str | None,
    *,
    driver: str = "GPKG",
    **options: str,
) -> None:
    """Write a frame as a layer of a file, beside the layers that the file has."""
    import pyogrio

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'crs' was not provided")
        pyogrio.write_dataframe(
            frame,
            path,
            layer=layer,
            driver=driver,
            geometry_type=geometry_type,
            append=path.exists(),
            **options,
        )


def _write_geojson(network: RoadGraph, path: Path) -> None:
    """Write longitude and latitude, or metres with ``"crs": null``, as the draft of 2008 has it.

    A line across 180 degrees is cut there, as RFC 7946 asks.
    """
    import geopandas as gpd

    frame = edge_frame(network, rounded=True).round(4)
    is_plane = frame.crs is None
    frame = frame if is_plane else frame.to_crs(LONLAT)
    decimals = _PLANE_DECIMALS if is_plane else _DECIMALS
    lines = frame.geometry.to_numpy()
    lines = lines if is_plane else np.array([_cut_at_180(line) for line in lines], object)
    rounded = shapely.transform(lines, lambda xy: np.round(xy, decimals))
    # Without a CRS: RFC 7946 has no member for it.
    frame = gpd.GeoDataFrame(frame.drop(columns="geometry"), geometry=rounded)
    write_layer(frame, path, EDGES, "Unknown", driver="GeoJSON", WRITE_NAME="NO")
    if is_plane:
        text = path.read_text(encoding="utf-8")
        text = text.replace(_COLLECTION, f'{_COLLECTION}\n"crs": null,', 1)
        path.write_text(text, encoding="utf-8")


def _cut_at_180(line: shapely.LineString) -> shapely.Geometry:
    """Return a line in degrees, as two or more where it crosses the 180th meridian."""
    xy = shapely.get_coordinates(line)
    crosses = np.flatnonzero(np.abs(np.diff(xy[:, 0])) > _HALF_TURN)
    if not len(crosses):
        return line
    x = unwrapped(xy)[:, 0]
    border = _HALF_TURN * np.sign(xy[crosses, 0])
    turned = border - (xy - np.column_stack([x, xy[:, 1]]))[crosses, 0]
    share = (turned - x[crosses]) / (x[crosses + 1] - x[crosses])
    at = xy[crosses, 1] + share * (xy[crosses + 1, 1] - xy[crosses, 1])
    ends = np.column_stack([border, at, -border, at]).reshape(-1, 2)
    both = np.insert(xy, np.repeat(crosses + 1, 2), ends, axis=0)
    return shapely.MultiLineString(np.split(both, crosses + 2 + 2 * np.arange(len(crosses))))


def _write_parquet(network: RoadGraph, path: Path) -> None:
    require_pyarrow()
    frame = edge_frame(network, rounded=True)
    frame.to_parquet(path, index=False, compression="zstd", schema_version=_GEOPARQUET)


_WRITERS: Final[dict[str, Callable[[RoadGraph, Path], None]]] = {
    ".gpkg": _write_geopackage,
    ".geojson": _write_geojson,
    ".parquet": _write_parquet,
}


def read_network(path: str | os.PathLike[str], *, layer: str | None = None) -> RoadGraph:
    """Return the road network of a file: one that geoprep wrote, or lines with ``speed_mph``.

    Networks that another program, such as QGIS, has saved again may have multi-part lines, another
    CRS or layer name, and edges added, moved or split. Where ``from_node`` and ``to_node`` are
    missing, or disagree with where the lines end, nodes are rebuilt from coordinates: line ends
    within 10 cm of each other are one node. All networks have one form (`lines.normal_form`).
    The network is in the CRS of the file if that is in true metres, else in a UTM zone.
    """
    return _read(Path(path), layer)[0]


def read_map(path: str | os.PathLike[str]) -> tuple[RoadGraph, RoadGraph]:
    """Return the roads of a map as `read_network` does, and ways of it that are not for cars."""
    roads, other = _read(Path(path), None)
    other = empty_network(roads.crs) if other is None else other
    return roads if len(roads.lines) else empty_network(other.crs), other


def _read(path: Path, layer: str | None) -> tuple[RoadGraph, RoadGraph | None]:
    require_suffix(path, *READ_SUFFIXES)
    if not path.is_file():
        raise SourceError(f"{path}: no such file; check the path")
    network = read_if_network(path, layer)
    if network is not None:
        return network, None
    from geoprep.roads.formats.label_files import read_ways  # imports pandas

    try:
        file = _opened(path)
        named = list(file.layers.values()) if layer is None else [file.layer(layer)]
        fields = {field for candidate in named for field in candidate.fields}
        described = names_roads(fields) or fields >= _OVERTURE
        if not described and path.suffix.lower() not in OSM_SUFFIXES:
            return _network_of(file, path, named[0] if layer else None), None
        given = not fields.isdisjoint(SPEEDS)
        rule = SpeedRule(layer=layer, speed_from="auto" if given else "attributes")
        network, other, notes = read_ways(file, rule)
    except LabelError as error:
        raise SourceError(str(error)) from error
    if notes:
        warnings.warn(f"{path}: {'; '.join(notes)}", GeoprepWarning, stacklevel=4)
    return network, other


def _opened(path: Path) -> VectorFile:
    from geoprep.labels.vector_files import VectorFile  # imports pyogrio

    return open_graphml(path) if path.suffix.lower() == ".graphml" else VectorFile.open(path)


def read_if_network(path: Path, layer: str | None = None) -> RoadGraph | None:
    """Return the road network of a file; None if it holds something else, such as labels.

    A network has lines with ``speed_mph`` or ``speed_kph``, and either node numbers or no road
    attributes such as ``highway``. The layer counts if the file has one of this name.
    """
    suffix = path.suffix.lower()
    if suffix in OSM_SUFFIXES or suffix not in READ_SUFFIXES:
        return None
    try:
        file = _opened(path)
    except LabelError:
        return None  # the reader of labels reports what is wrong with the file
    named = file.layers.get(layer or "")
    layers = file.layers.values() if named is None else [named]
    if not any(are_network_fields(candidate.fields) for candidate in layers):
        return None
    return _network_of(file, path, named)


def _network_of(file: VectorFile, path: Path, layer: Layer | None) -> RoadGraph:
    """Return the network of a layer; by default ``edges``, the only one with speeds, or of lines.

    A plane of metres has no CRS; its coordinates are read as if they were degrees.
    """
    lines = {name: listed for name, listed in file.layers.items() if listed.has_lines}
    layer = layer or lines.get(EDGES)
    if layer is None:
        networks = [name for name, listed in lines.items() if are_network_fields(listed.fields)]
        if len(networks) > 1:
            raise UsageError(
                f"{path}: several layers are road networks: {', '.join(networks)}. Choose one with "
                "`layer`."
            )
        if not lines:
            raise SourceError(f"{path}: has no layer of lines, so it is not a road network")
        layer = lines[(networks or list(lines))[0]]
    crs = None if _is_plane(path) else crs_name(layer.crs)
    features = file.read([replace(layer, crs=crs or LONLAT)], READ_COLUMNS)
    return network_of_frame(path, edges_of_features(features, crs))


def _is_plane(path: Path) -> bool:
    """Return whether a GeoJSON file says that it has no CRS; GDAL takes it for degrees."""
    if path.suffix.lower() not in GEOJSON_SUFFIXES:
        return False
    data = path.read_bytes()
    return _NULL_CRS.search(data) is not None and json.loads(data).get("crs", "") is None
