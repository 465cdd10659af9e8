"""Road networks as graphs of networkx, and as GraphML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyproj
import shapely

from geoprep.errors import SourceError
from geoprep.roads.formats.table import READ_COLUMNS, edge_frame, network_of_frame
from geoprep.roads.network import RoadGraph

if TYPE_CHECKING:
    import networkx
    import pandas as pd
    from numpy.typing import NDArray


def multigraph(
    nodes: NDArray[np.float64], ends: NDArray[np.int64], edges: pd.DataFrame, crs: str | None
) -> networkx.MultiGraph[int]:
    """Return an undirected graph: nodes with ``x`` and ``y``, edges with the columns of a frame."""
    import networkx as nx

    graph = nx.MultiGraph(crs=crs)
    graph.add_nodes_from((number, {"x": x, "y": y}) for number, (x, y) in enumerate(nodes.tolist()))
    pairs = zip(ends.tolist(), edges.to_dict("records"), strict=True)
    graph.add_edges_from((u, v, attributes) for (u, v), attributes in pairs)
    return graph


def write_graphml(network: RoadGraph, path: Path) -> None:
    """Write GraphML, with geometry as WKT and without attributes that are unknown."""
    import networkx as nx

    lines = shapely.to_wkt(network.lines, rounding_precision=-1)
    edges = edge_frame(network, rounded=True).drop(columns="geometry").assign(geometry=lines)
    edges.insert(0, "edge", np.arange(len(edges)))
    graph = multigraph(network.nodes, network.ends, edges, network.crs or "")
    for _, _, data in graph.edges(data=True):
        for name in [name for name, value in data.items() if value is None or value != value]:
            del data[name]
    nx.write_graphml(graph, path)


def read_graphml(path: Path) -> RoadGraph:
    """Return the network of a file that `write_graphml` wrote."""
    from xml.etree.ElementTree import ParseError

    import geopandas as gpd
    import networkx as nx

    try:
        graph = nx.read_graphml(path, node_type=int, force_multigraph=True)
        rows = sorted((data for *_, data in graph.edges(data=True)), key=lambda data: data["edge"])
        lines = np.array([shapely.from_wkt(data["geometry"]) for data in rows], object)
        crs = graph.graph.get("crs") or None
        names = [name for name in READ_COLUMNS if any(name in data for data in rows)]
        columns = {name: [data.get(name, np.nan) for data in rows] for name in names}
        frame = gpd.GeoDataFrame(columns, geometry=lines, crs=crs)
    except (nx.NetworkXError, ParseError, KeyError, ValueError, TypeError) as error:
        raise SourceError(f"{path}: not readable as GraphML of a road network: {error}") from error
    except (shapely.errors.ShapelyError, pyproj.exceptions.CRSError) as error:
        raise SourceError(f"{path}: a geometry or the CRS is invalid: {error}") from error
    return network_of_frame(path, frame)
