"""Road networks as graphs of networkx, and as GraphML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyproj
import shapely

from geoprep.crs import LONLAT, is_geographic, reproject, transformer, utm_crs
from geoprep.errors import SourceError
from geoprep.roads.formats.edge_table import (
    COLUMNS,
    CONFIDENCE,
    crs_name,
    edge_columns,
    network_of_table,
)
from geoprep.roads.network import RoadGraph
from geoprep.speed import KMH_PER_MPH

if TYPE_CHECKING:
    import networkx


def to_networkx(network: RoadGraph) -> networkx.MultiGraph[int]:
    """Return a network as an undirected multigraph of networkx.

    The graph has ``crs`` (text, or None). Nodes are numbered from 0 and have ``x`` and ``y`` in
    metres. Edges have ``edge`` (their number), ``from_node`` and ``to_node`` (first and last node
    of the line), ``length_m``, ``speed_mph``, ``travel_time_s`` and ``geometry`` (shapely). Speed
    and travel time are NaN where the speed is unknown; use ``length_m`` as the weight then.
    """
    import networkx as nx

    graph = nx.MultiGraph(crs=network.crs)
    graph.add_nodes_from(
        (number, {"x": x, "y": y}) for number, (x, y) in enumerate(network.nodes.tolist())
    )
    columns = {"edge": np.arange(len(network.ends)), **edge_columns(network)}
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    for line, row in zip(network.lines, rows, strict=True):
        attributes = dict(zip(columns, row, strict=True))
        graph.add_edge(row[1], row[2], **attributes, geometry=line)
    return graph


def from_networkx(graph: networkx.MultiGraph[Any], *, name: str = "graph") -> RoadGraph:
    """Return the network of an undirected graph, from `to_networkx` or from OSMnx.

    Parameters
    ----------
    graph
        Graph with the attribute ``crs`` (None: a plane of metres) and nodes with ``x`` and ``y``.
        Edges may have ``geometry`` (straight without it), and ``speed_mph`` or ``speed_kph``. A
        graph in degrees is projected to the UTM zone of its middle.
    name
        Name of the graph in error messages.

    Raises
    ------
    SourceError
        The graph is directed, or a node has no coordinates.
    """
    if graph.is_directed():
        raise SourceError(
            f"{name}: is directed, so two-way roads would count twice. Convert it with "
            "osmnx.convert.to_undirected."
        )
    try:
        crs = crs_name(graph.graph.get("crs"))
        nodes = np.array([(data["x"], data["y"]) for _, data in graph.nodes(data=True)], float)
    except (KeyError, TypeError, ValueError, pyproj.exceptions.CRSError) as error:
        raise SourceError(
            f"{name}: a node has no x and y, or the CRS is invalid: {error}"
        ) from error
    nodes = nodes.reshape(-1, 2)
    if not np.isfinite(nodes).all():
        raise SourceError(f"{name}: a node has coordinates that are not finite")
    number = {node: i for i, node in enumerate(graph.nodes)}
    edges = [(number[a], number[b], data) for a, b, data in graph.edges(data=True)]
    ends = np.array([_ends(a, b, data, nodes) for a, b, data in edges], np.int64).reshape(-1, 2)
    lines = np.empty(len(edges), object)
    lines[:] = [
        data.get("geometry") or shapely.LineString(nodes[pair])
        for (_, _, data), pair in zip(edges, ends, strict=True)
    ]
    speed = np.array([_speed(data) for _, _, data in edges], float)
    if crs is not None and is_geographic(crs) and len(nodes):
        lon, lat = transformer(crs, LONLAT).transform(*((nodes.min(0) + nodes.max(0)) / 2))
        utm = utm_crs(lon, lat)
        lines = reproject(lines, crs, utm)
        nodes, crs = np.column_stack(transformer(crs, utm).transform(*nodes.T)), utm
    return RoadGraph(nodes, ends, lines, speed, crs)


def _ends(a: int, b: int, data: dict[str, Any], nodes: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the nodes of an edge in the order of its line; graphs do not keep that order."""
    line = data.get("geometry")
    if line is None:
        return a, b
    start = np.array(line.coords[0][:2])
    near_a, near_b = np.abs(nodes[a] - start).sum(), np.abs(nodes[b] - start).sum()
    return (a, b) if near_a <= near_b else (b, a)


def _speed(data: dict[str, Any]) -> float:
    if data.get("speed_mph") is not None:
        return float(data["speed_mph"])
    if data.get("speed_kph") is not None:
        return float(data["speed_kph"]) / KMH_PER_MPH
    return float("nan")


def write_graphml(network: RoadGraph, path: Path) -> None:
    """Write GraphML, with geometry as WKT and without attributes that are unknown."""
    import networkx as nx

    graph = to_networkx(network)
    graph.graph["crs"] = network.crs or ""
    for _, _, data in graph.edges(data=True):
        data["geometry"] = data["geometry"].wkt
        for name in [name for name, value in data.items() if value != value]:
            del data[name]
    nx.write_graphml(graph, path)


def read_graphml(path: Path) -> RoadGraph:
    """Return the network of a file that `write_graphml` wrote.

    Raises
    ------
    SourceError
        The file is not GraphML, or not a road network.
    """
    from xml.etree.ElementTree import ParseError

    import networkx as nx

    try:
        graph = nx.read_graphml(path, node_type=int, force_multigraph=True)
        coordinates = sorted((node, data["x"], data["y"]) for node, data in graph.nodes(data=True))
        rows = sorted((data for *_, data in graph.edges(data=True)), key=lambda data: data["edge"])
        lines = np.array([shapely.from_wkt(data["geometry"]) for data in rows], object)
        crs = crs_name(graph.graph.get("crs"))
    except (nx.NetworkXError, ParseError, KeyError, ValueError, TypeError) as error:
        raise SourceError(f"{path}: not readable as GraphML of a road network: {error}") from error
    except (shapely.errors.ShapelyError, pyproj.exceptions.CRSError) as error:
        raise SourceError(f"{path}: a geometry or the CRS is invalid: {error}") from error
    names = (*COLUMNS, *CONFIDENCE)
    columns = {name: np.array([data.get(name, np.nan) for data in rows]) for name in names}
    nodes = np.array(coordinates, float).reshape(-1, 3)[:, 1:]
    return network_of_table(path, columns, lines, crs, nodes)
