"""Road networks written to and read from files, in the format that the suffix says."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import shapely

from geoprep.crs import LONLAT
from geoprep.errors import SourceError, UsageError
from geoprep.labels import GEOJSON_SUFFIXES, LINE_TYPES, OSM_SUFFIXES
from geoprep.roads.formats.graphs import read_graphml, write_graphml
from geoprep.roads.formats.osm import our_roads, read_osm, write_osm
from geoprep.roads.formats.style import style_row
from geoprep.roads.formats.table import (
    COLUMNS,
    are_network_fields,
    edge_frame,
    network_of_frame,
)
from geoprep.roads.names import NETWORK_SUFFIXES, READ_SUFFIXES, TABLE_SUFFIX, VECTOR_SUFFIXES
from geoprep.roads.network import RoadGraph, check_network
from geoprep.storage import replaced, require_folder, require_pyarrow, require_suffix

if TYPE_CHECKING:
    import geopandas as gpd
    import pandas as pd

EDGES: Final = "edges"
_DECIMALS: Final = 8
"""Decimal places of a degree: 1 mm."""
_PLANE_DECIMALS: Final = 3
_HEAD_BYTES: Final = 1 << 16  # enough for a first feature with a long line
_NULL_CRS: Final = re.compile(rb'"crs"\s*:\s*null')
_COLLECTION: Final = '"type": "FeatureCollection",'
_GEOPARQUET: Final = "1.1.0"


def write_network(network: RoadGraph, path: str | os.PathLike[str]) -> None:
    """Write a network to a file, which appears complete or not at all.

    The suffix says the format: ``.gpkg`` (layers ``edges`` and ``nodes``, with a style by speed
    that QGIS applies), ``.geojson`` (longitude and latitude), ``.graphml``, ``.parquet``
    (GeoParquet) or ``.osm`` (OpenStreetMap). Unknown values are null; speeds are rounded to 0.001
    mph.
    """
    path = Path(path)
    require_suffix(path, *NETWORK_SUFFIXES)
    check_network(network, str(path))
    if path.suffix.lower() in OSM_SUFFIXES and network.crs is None:
        raise UsageError(
            f"{path}: the road network is not georeferenced, and OpenStreetMap data has longitude "
            "and latitude. Write a .gpkg file"
        )
    with replaced(path) as partial:
        _WRITERS[path.suffix.lower()](network, partial)


def _write_geopackage(network: RoadGraph, path: Path) -> None:
    import geopandas as gpd

    points = gpd.points_from_xy(*network.nodes.T, crs=network.crs)
    nodes = gpd.GeoDataFrame({"node": np.arange(len(network.nodes))}, geometry=points)
    _write_layer(edge_frame(network, rounded=True), path, EDGES, "LineString")
    _write_layer(nodes, path, "nodes", "Point")
    _write_layer(style_row(EDGES), path, "layer_styles", None)


def _write_layer(
    frame: pd.DataFrame,
    path: Path,
    layer: str,
    geometry_type: str | None,
    *,
    driver: str = "GPKG",
    **options: str,
) -> None:
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


def _write_edges(network: RoadGraph, path: Path) -> None:
    write_geojson(edge_frame(network, rounded=True).round(4), path)


def write_geojson(frame: gpd.GeoDataFrame, path: Path) -> None:
    """Write longitude and latitude, or metres with ``"crs": null``, as the draft of 2008 has it."""
    import geopandas as gpd

    is_plane = frame.crs is None
    frame = frame if is_plane else frame.to_crs(LONLAT)
    decimals = _PLANE_DECIMALS if is_plane else _DECIMALS
    rounded = shapely.transform(frame.geometry.to_numpy(), lambda xy: np.round(xy, decimals))
    # Without a CRS: RFC 7946 has no member for it.
    frame = gpd.GeoDataFrame(frame.drop(columns="geometry"), geometry=rounded)
    _write_layer(frame, path, EDGES, "LineString", driver="GeoJSON", WRITE_NAME="NO")
    if is_plane:
        text = path.read_text(encoding="utf-8")
        text = text.replace(_COLLECTION, f'{_COLLECTION}\n"crs": null,', 1)
        path.write_text(text, encoding="utf-8")


def _write_parquet(network: RoadGraph, path: Path) -> None:
    require_pyarrow()
    frame = edge_frame(network, rounded=True)
    frame.to_parquet(path, index=False, compression="zstd", schema_version=_GEOPARQUET)


_WRITERS: Final[dict[str, Callable[[RoadGraph, Path], None]]] = {
    ".gpkg": _write_geopackage,
    ".geojson": _write_edges,
    ".graphml": write_graphml,
    ".parquet": _write_parquet,
    ".osm": write_osm,
}


def read_network(path: str | os.PathLike[str], *, layer: str | None = None) -> RoadGraph:
    """Return the road network of a file: one that geoprep wrote, or lines with ``speed_mph``.

    Networks that another program, such as QGIS, has saved again may have multi-part lines, another
    CRS or layer name, and edges added, moved or split. Where ``from_node`` and ``to_node`` are
    missing, or disagree with where the lines end, nodes are rebuilt from coordinates: line ends
    within 10 cm of each other are one node, and a line that another one ends on is split there.
    The network is in the CRS of the file if that is in true metres, else in a UTM zone.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    require_suffix(path, *READ_SUFFIXES)
    if not path.is_file():
        raise SourceError(f"{path}: no such file")
    if suffix == ".graphml":
        return read_graphml(path)
    if suffix in OSM_SUFFIXES:
        return read_osm(path, layer)
    return _read_parquet(path) if suffix == ".parquet" else _read_vector(path, layer)


def _read_parquet(path: Path) -> RoadGraph:
    require_pyarrow()
    import geopandas as gpd

    try:
        frame = gpd.read_parquet(path)
    except Exception as error:  # pyarrow has many
        raise SourceError(f"{path}: not readable as GeoParquet: {error}") from error
    return network_of_frame(path, frame)


def _read_vector(path: Path, layer: str | None) -> RoadGraph:
    """Return the network of a layer of lines."""
    import pyogrio
    from pyogrio.errors import DataLayerError, DataSourceError

    is_plane = _is_plane(path)
    try:
        layer = layer or _network_layer(path)
        with np.errstate(invalid="ignore"):  # coordinates that are NaN are reported below
            frame = pyogrio.read_dataframe(path, layer=layer, columns=list(COLUMNS), force_2d=True)
    except (DataSourceError, DataLayerError) as error:
        raise SourceError(f"{path}: not readable as a road network: {error}") from error
    if is_plane:
        frame = frame.set_crs(None, allow_override=True)
    return network_of_frame(path, frame)


def _network_layer(path: Path) -> str:
    """Return the layer of lines to read: ``edges``, the only one with speeds, or the only one."""
    layers = _layers(path)
    if EDGES in layers:
        return EDGES
    lines = [name for name, kind in layers.items() if kind and any(k in kind for k in LINE_TYPES)]
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


def _is_plane(path: Path) -> bool:
    """Return whether a GeoJSON file says that it has no CRS; GDAL takes it for degrees."""
    if path.suffix.lower() not in GEOJSON_SUFFIXES:
        return False
    with path.open("rb") as file:
        return _NULL_CRS.search(file.read(_HEAD_BYTES).partition(b'"features"')[0]) is not None


def is_network_file(path: Path, *, layer: str | None = None) -> bool:
    """Return whether a file holds a road network rather than labels.

    A network has lines with ``speed_mph``, and either node numbers or no road attributes such as
    ``highway``. GraphML is always a network.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return are_network_fields(_parquet_columns(path))
    if suffix in OSM_SUFFIXES:
        return our_roads(path, layer) is not None
    if suffix not in VECTOR_SUFFIXES:
        return suffix == ".graphml"
    if suffix in GEOJSON_SUFFIXES:
        # Labels of SpaceNet are thousands of small files: opening each with GDAL takes longer than
        # the score.
        with path.open("rb") as file:
            if b'"speed_mph"' not in file.read(_HEAD_BYTES):
                return False
    from pyogrio.errors import DataLayerError, DataSourceError

    try:
        names = [layer] if layer else _layers(path)
        return any(are_network_fields(_fields(path, name)) for name in names)
    except (DataSourceError, DataLayerError):
        return False  # the reader of labels reports what is wrong with the file


def _parquet_columns(path: Path) -> list[str]:
    require_pyarrow()
    import pyarrow.parquet

    try:
        names: list[str] = pyarrow.parquet.read_schema(path).names
    except (pyarrow.ArrowException, OSError) as error:
        raise SourceError(f"{path}: not readable as GeoParquet: {error}") from error
    return names


def _layers(path: Path) -> dict[str, str | None]:
    """Return the geometry type of every layer."""
    import pyogrio

    return dict(pyogrio.list_layers(path).tolist())


def has_layer(path: Path, layer: str | None) -> bool:
    """Return whether a vector file has a layer of some name; False for None and other files."""
    from pyogrio.errors import DataSourceError

    if layer is None or path.suffix.lower() not in VECTOR_SUFFIXES:
        return False
    try:
        return layer in _layers(path)
    except DataSourceError:
        return False


def check_target(path: Path) -> None:
    """Raise UsageError, before the work, if a network or table cannot be written to a path."""
    require_suffix(path, *NETWORK_SUFFIXES, TABLE_SUFFIX)
    require_folder(path)
