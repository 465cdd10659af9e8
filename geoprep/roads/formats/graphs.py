"""Road networks as graphs of networkx, and read from GraphML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyproj
import shapely

from geoprep.errors import SourceError

if TYPE_CHECKING:
    import networkx
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from geoprep.labels.vector_files import VectorFile


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


def open_graphml(path: Path) -> VectorFile:
    """Return the edges of a GraphML file that osmnx wrote, as a layer of lines.

    An edge without a geometry is the straight line between its nodes.
    """
    from xml.etree.ElementTree import ParseError

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
