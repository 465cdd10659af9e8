"""Road networks as files: written, and read from networks, labels and maps of any format."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import ParseError

import numpy as np
import pyproj
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, crs_name, middle_of, moved, unwrapped, utm_crs
from geoprep.errors import GeoprepWarning, LabelError, SourceError, UsageError
from geoprep.labels.attributes import OTHER_WAYS, names_roads
from geoprep.labels.label_options import SpeedRule
from geoprep.labels.vector_names import OSM_SUFFIXES
from geoprep.outputs import require_suffix
from geoprep.roads.formats.lines import network_of_labels
from geoprep.roads.formats.style import style_row
from geoprep.roads.formats.table import (
    READ_COLUMNS,
    SPEEDS,
    are_network_fields,
    edge_frame,
    network_of_frame,
)
from geoprep.roads.names import NETWORK_SUFFIXES, READ_SUFFIXES
from geoprep.roads.network import RoadGraph, check_network, empty_network
from geoprep.storage.local_files import require_pyarrow
from geoprep.storage.output_files import replaced
from geoprep.texts import counted

if TYPE_CHECKING:
    import pandas as pd

    from geoprep.labels.vector_files import Layer, VectorFile

EDGES: Final = "edges"
_DECIMALS: Final = 8
"""Decimal places of a degree: 1 mm."""
_HALF_TURN: Final = 180.0
_OVERTURE: Final = {"subtype", "class"}
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
    if network.crs is None and path.suffix.lower() == ".geojson":
        raise UsageError(f"{path}: the network is not georeferenced, as GeoJSON is. Write .gpkg")
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
    """Write longitude and latitude; a line across 180 degrees is cut there, as RFC 7946 asks."""
    import geopandas as gpd

    frame = edge_frame(network, rounded=True).round(4).to_crs(LONLAT)
    lines = np.array([_cut_at_180(line) for line in frame.geometry], object)
    rounded = shapely.transform(lines, lambda xy: np.round(xy, _DECIMALS))
    # Without a CRS: RFC 7946 has no member for it.
    frame = gpd.GeoDataFrame(frame.drop(columns="geometry"), geometry=rounded)
    write_layer(frame, path, EDGES, "Unknown", driver="GeoJSON", WRITE_NAME="NO")


def _cut_at_180(line: shapely.LineString) -> shapely.Geometry:
    """Return a line in degrees, as two or more where it crosses the 180th meridian.

    GDAL's own cut (3.12) leaves lines of a single point.
    """
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
    try:
        file = _opened(path)
        named = list(file.layers.values()) if layer is None else [file.layer(layer)]
        fields = {field for candidate in named for field in candidate.fields}
        described = names_roads(fields) or fields >= _OVERTURE
        if not described and path.suffix.lower() not in OSM_SUFFIXES:
            return _network_of(file, path, named[0] if layer else None), None
        given = not fields.isdisjoint(SPEEDS)
        rule = SpeedRule(layer=layer, speed_from="auto" if given else "attributes")
        network, other, notes = _read_ways(file, rule)
    except LabelError as error:
        raise SourceError(str(error)) from error
    if notes:
        warnings.warn(f"{path}: {'; '.join(notes)}", GeoprepWarning, stacklevel=4)
    return network, other


def _opened(path: Path) -> VectorFile:
    from geoprep.labels.vector_files import VectorFile  # imports pyogrio and pandas

    return _open_graphml(path) if path.suffix.lower() == ".graphml" else VectorFile.open(path)


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
    import geopandas as gpd

    crs = crs_name(layer.crs)
    features = file.read([replace(layer, crs=crs or LONLAT)], READ_COLUMNS)
    wrong = next((number for number, note in enumerate(features.notes) if note), None)
    if wrong is not None:
        raise SourceError(f"{features.name}: feature {wrong} is not a line. Remove it.")
    rows = [features.attributes[number] for number in features.feature.tolist()]
    return network_of_frame(path, gpd.GeoDataFrame(rows, geometry=features.shapes, crs=crs))


def _open_graphml(path: Path) -> VectorFile:
    """Return the edges of a GraphML file that osmnx wrote, as a layer of lines.

    An edge without a geometry is the straight line between its nodes.
    """
    import geopandas as gpd
    import networkx as nx

    from geoprep.labels.vector_files import VectorFile

    try:
        graph = nx.read_graphml(path, force_multigraph=True)
        edges = graph.edges(data=True)
        lines = [
            shapely.from_wkt(data["geometry"])
            if "geometry" in data
            else shapely.LineString([[float(graph.nodes[n][x]) for x in "xy"] for n in (u, v)])
            for u, v, data in edges
        ]
        rows = [{k: value for k, value in data.items() if k != "geometry"} for *_, data in edges]
        frame = gpd.GeoDataFrame(rows, geometry=lines, crs=graph.graph.get("crs") or None)
    except KeyError as error:
        raise SourceError(
            f"{path}: has an edge without a geometry, and a node of it without {error}, so it is "
            "not a road network. Write x and y of nodes, as osmnx does"
        ) from error
    except (nx.NetworkXError, ParseError, ValueError, TypeError) as error:
        raise SourceError(f"{path}: not readable as GraphML of a road network: {error}") from error
    except (shapely.errors.ShapelyError, pyproj.exceptions.CRSError) as error:
        raise SourceError(f"{path}: a geometry or the CRS is invalid: {error}") from error
    return VectorFile.of_frame(frame, path)


def read_labels(
    path: str | os.PathLike[str], rule: SpeedRule | None = None
) -> tuple[RoadGraph, tuple[str, ...]]:
    """Return the roads of a label file as a network in metres, and notes about the file.

    Lines that are not drivable are left out, and so are areas. Points are one node where their
    coordinates in the file are exactly equal, whatever their heights. Connected components without
    a path of 5 m are left out. Notes such as ``3 roads: lanes missing`` count what was assumed.
    """
    roads, _, notes = _read_ways(Path(path), rule)
    return roads, notes


def _read_ways(
    source: Path | VectorFile, rule: SpeedRule | None
) -> tuple[RoadGraph, RoadGraph, tuple[str, ...]]:
    """Return the roads of a label file, the other ways that imagery may show, and notes.

    Other ways are paths, cycleways, runways and so on (`OTHER_WAYS`), without speeds.
    """
    from geoprep.labels.vector_labels import NOT_LOCATED, read_label_table  # imports pandas

    table = read_label_table(source, replace(rule or SpeedRule(), lines_only=True))
    lost = sum(NOT_LOCATED.intersection(notes) != set() for notes in table.notes)
    if lost:
        raise LabelError(
            f"{table.name}: {counted(lost, 'road')} with coordinates that are missing, not "
            "finite or out of range. Correct or remove them: otherwise, other roads are scored."
        )
    is_line, mph = shapely.get_dimensions(table.lines) == 1, table.mph[table.feature]
    tags = {name: values[table.feature] for name, values in table.tags.items()}
    drivable = is_line & np.isfinite(mph)
    tunnel = np.isin(tags.get("tunnel", np.full(len(mph), None)), ["yes", "T"])
    other = is_line & ~drivable & ~tunnel & np.isin(tags["highway"], [*OTHER_WAYS])
    counts_of_notes = sorted(Counter(note for notes in table.notes for note in notes).items())
    notes = (*table.file_notes, *(f"{counted(n, 'road')}: {note}" for note, n in counts_of_notes))
    if table.ignored_speed_fields:
        fields = ", ".join(table.ignored_speed_fields)
        notes = (*notes, f"speeds of labels inferred, field {fields} ignored (see `speed_from`)")

    def network(chosen: NDArray[np.bool_]) -> RoadGraph:
        lines, speed = table.lines[chosen], mph[chosen]
        if not len(lines):
            return network_of_labels(lines, speed, None)
        target = utm_crs(*middle_of(lines, table.crs))
        to_metres = partial(moved, source=table.crs, target=target)
        own = {name: values[chosen] for name, values in tags.items()}
        return network_of_labels(lines, speed, target, to_metres=to_metres, attributes=own)

    return network(drivable), network(other), notes
