"""Road networks for notebooks, with nodes and edges as GeoDataFrames."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from geoprep.outputs import check_outputs
from geoprep.roads.network import RoadGraph

if TYPE_CHECKING:
    import geopandas as gpd
    import networkx as nx
    from matplotlib.axes import Axes

    from geoprep.storage.local_files import StrPath


class RoadNetwork:
    """A road network: nodes and edges as GeoDataFrames, with the column names of osmnx.

    Parameters
    ----------
    graph
        Arrays of the network, in metres.

    Attributes
    ----------
    graph
        As above.
    """

    def __init__(self, graph: RoadGraph) -> None:
        self.graph = graph

    @property
    def crs(self) -> str | None:
        """CRS of `nodes` and `edges`; None if the network is not georeferenced."""
        return self.graph.crs

    @property
    def length_km(self) -> float:
        """Length of all edges in kilometres."""
        return float(self.graph.length_m.sum()) / 1000

    def __len__(self) -> int:
        return len(self.graph.ends)

    @cached_property
    def nodes(self) -> gpd.GeoDataFrame:
        """One row per node: ``x``, ``y`` and ``geometry``, in `crs`."""
        import geopandas as gpd

        points = gpd.points_from_xy(*self.graph.nodes.T, crs=self.graph.crs)
        frame = gpd.GeoDataFrame(geometry=points)
        frame.insert(0, "x", frame.geometry.x)
        frame.insert(1, "y", frame.geometry.y)
        frame.index.name = "node"
        return frame

    @cached_property
    def edges(self) -> gpd.GeoDataFrame:
        """One row per edge, indexed by ``u``, ``v`` and ``key``.

        Columns: ``length`` (metres), ``speed_mph``, ``speed_kph``, ``travel_time`` (seconds; NaN,
        as the speeds, where the speed is unknown) and ``geometry``, in `crs`; of a network that
        was traced from probabilities also ``confidence_mean`` and ``confidence_least``.
        """
        import pandas as pd

        from geoprep.roads.formats.table import FRAME_NAMES, edge_frame
        from geoprep.speed import KMH_PER_MPH

        graph = self.graph
        frame = edge_frame(graph).rename(columns=FRAME_NAMES)
        frame.insert(4, "speed_kph", graph.speed_mph * KMH_PER_MPH)
        # Parallel edges have equal ends in either direction.
        pair = pd.DataFrame(np.sort(graph.ends, axis=1), columns=["low", "high"])
        frame["key"] = pair.groupby(["low", "high"]).cumcount().to_numpy()
        return frame.set_index(["u", "v", "key"])

    @classmethod
    def from_geopandas(cls, edges: gpd.GeoDataFrame) -> RoadNetwork:
        """Return the network of a GeoDataFrame of lines; lines that share an end share a node.

        Parameters
        ----------
        edges
            Lines, with ``speed_mph`` or ``speed_kph`` if speeds are known, and tags: ``highway``,
            ``bridge``, ``tunnel``, ``layer``. Other columns are ignored.

        Raises
        ------
        SourceError
            A geometry is not a line, or the frame has degrees without a CRS.
        UsageError
            A speed is not above 0 and finite.

        Examples
        --------
        >>> import geopandas, shapely
        >>> ends = [[(5e5, 6e6), (500400, 6e6)], [(500400, 6e6), (500400, 6000600)]]
        >>> lines = [shapely.LineString(xy) for xy in ends]
        >>> speeds = {"speed_mph": [30, 20]}
        >>> frame = geopandas.GeoDataFrame(speeds, geometry=lines, crs="EPSG:32637")
        >>> RoadNetwork.from_geopandas(frame)
        <geoprep.RoadNetwork 2 edges, 3 nodes, 1.0 km, EPSG:32637>
        """
        from geoprep.roads.formats.table import network_of_frame

        frame = edges.reset_index(drop=True).drop(columns=["from_node", "to_node"], errors="ignore")
        if not {"speed_mph", "speed_kph"} & set(frame):
            frame["speed_mph"] = np.nan
        return cls(network_of_frame("`edges`", frame))

    def to_networkx(self) -> nx.MultiGraph[int]:
        """Return an undirected multigraph with osmnx's attributes.

        The graph has ``crs``; nodes have ``x`` and ``y``; edges have the columns of `edges`.
        """
        import networkx as nx

        graph = nx.MultiGraph(crs=self.crs)
        graph.add_nodes_from(self.nodes[["x", "y"]].to_dict("index").items())
        edges = self.edges.reset_index(drop=True).to_dict("records")
        graph.add_edges_from(
            (u, v, columns) for (u, v), columns in zip(self.graph.ends.tolist(), edges, strict=True)
        )
        return graph

    def to_file(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write the network: .gpkg, .geojson or .parquet; see `read_network`.

        Raises
        ------
        UsageError
            The suffix is another one, the folder does not exist, or the file exists and is not to
            be overwritten.
        """
        from geoprep.roads.formats.files import write_network

        check_outputs(path, overwrite=overwrite)
        write_network(self.graph, path)

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:  # noqa: ANN401 - matplotlib's
        """Draw the edges coloured by speed with matplotlib; `preview` draws them over an image.

        Parameters
        ----------
        ax
            Axes to draw on. None: a new figure.
        style
            As of `geopandas.GeoDataFrame.plot`.
        """
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots(figsize=(8, 8))
        if len(edges := self.edges):
            known = bool(edges["speed_mph"].notna().any())
            speeds = {"column": "speed_mph", "cmap": "plasma", "legend": True} if known else {}
            edges.plot(ax=ax, **{"linewidth": 1.5, **speeds, **style})
        return ax

    def __repr__(self) -> str:
        count = f"{len(self):,} edges, {len(self.graph.nodes):,} nodes, {self.length_km:,.1f} km"
        return f"<geoprep.RoadNetwork {count}, {self.crs or 'not georeferenced'}>"


def read_network(path: StrPath, *, layer: str | None = None) -> RoadNetwork:
    """Return the road network of a file.

    Parameters
    ----------
    path
        .gpkg, .geojson, .parquet, .shp or .fgb, as `vectorize` or another program wrote, .graphml
        as of osmnx, or OpenStreetMap data (.osm, .osm.pbf). Of files with road attributes, such as
        osmnx's, the roads for cars, with speeds from ``speed_kph`` or their tags; a warning names
        the assumption.
    layer
        Layer of a file with several.

    Raises
    ------
    SourceError
        The file cannot be read or is not a road network.

    Examples
    --------
    >>> import geopandas, shapely
    >>> lines = [shapely.LineString([(37.61, 55.75), (37.62, 55.75)])]
    >>> frame = geopandas.GeoDataFrame({"speed_mph": [25]}, geometry=lines, crs="EPSG:4326")
    >>> RoadNetwork.from_geopandas(frame).to_file("roads.gpkg")
    >>> roads = read_network("roads.gpkg")
    >>> roads.crs, roads.edges["travel_time"].round(1).tolist()
    ('EPSG:32637', [56.2])
    """
    from geoprep.roads.formats.files import read_network as read

    return RoadNetwork(read(path, layer=layer))
