"""Road networks for notebooks, with nodes and edges as GeoDataFrames."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from geoprep.errors import LabelError, SourceError, UsageError
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
    crs
        CRS of `nodes` and `edges`; None: that of the graph.

    Attributes
    ----------
    graph
        As above.
    """

    def __init__(self, graph: RoadGraph, crs: str | None = None) -> None:
        self.graph = graph
        self._crs = graph.crs if crs is None else crs

    @property
    def crs(self) -> str | None:
        """CRS of `nodes` and `edges`; None if the network is not georeferenced."""
        return self._crs

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
        frame = frame.to_crs(self.crs) if self.crs != self.graph.crs else frame
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
        frame = frame.to_crs(self.crs) if self.crs != graph.crs else frame
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
        from geoprep.roads.formats.graphs import multigraph

        nodes = self.nodes[["x", "y"]].to_numpy()
        return multigraph(nodes, self.graph.ends, self.edges.reset_index(drop=True), self.crs)

    def to_crs(self, crs: object) -> RoadNetwork:
        """Return the network with `nodes` and `edges` in another CRS; lengths stay in metres.

        Raises
        ------
        UsageError
            The network is not georeferenced.
        """
        import pyproj

        if self.graph.crs is None:
            raise UsageError("the road network is not georeferenced, so it has no other CRS")
        return RoadNetwork(self.graph, pyproj.CRS.from_user_input(crs).to_string())

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

    def plot(self, ax: Axes | None = None, *, over: StrPath | None = None, **style: Any) -> Axes:  # noqa: ANN401 - matplotlib's
        """Draw the edges coloured by speed with matplotlib.

        Parameters
        ----------
        ax
            Axes to draw on. None: a new figure.
        over
            Georeferenced image to draw below the roads.
        style
            As of `geopandas.GeoDataFrame.plot`.

        Raises
        ------
        UsageError
            The network or the image is not georeferenced, so that ``over`` cannot be placed.
        """
        import matplotlib.pyplot as plt

        from geoprep.views.network_preview import read_picture

        if ax is None:
            _, ax = plt.subplots(figsize=(8, 8))
        edges = self.edges
        if over is not None:
            picture = read_picture(over)
            if self.crs is None or not picture.grid.georeferenced:
                raise UsageError(f"{over} cannot be drawn below the roads: not georeferenced")
            low, high = np.percentile(picture.rgb, (1, 99))
            shown = np.clip((picture.rgb - low) / max(high - low, 1e-9), 0, 1)
            ax.imshow(shown, extent=picture.extent)
            edges = edges.to_crs(picture.grid.crs)
        if len(edges):
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


def draw_network(
    source: RoadNetwork | StrPath,
    out: Path,
    *,
    over: StrPath | None = None,
    pixel_size: float | None = None,
    overwrite: bool = False,
) -> Path:
    """Draw a road network or polygons, or the roads of one image of a SpaceNet table (.csv).

    Parameters
    ----------
    source
        A road network, its file, or a file of polygons.
    out
        Picture (.png, .pdf, .svg, .jpg) to write.
    over
        Image below them; of a table, the image whose roads are drawn.
    pixel_size
        Pixel size of the image in metres, if they are not georeferenced.
    overwrite
        Replace files that exist.

    Raises
    ------
    UsageError
        The image does not exist, does not overlap them, or is not in the table.
    SourceError
        The file cannot be read, or has neither a road network nor polygons alone.
    """
    from geoprep.views.network_preview import preview_network, preview_polygons

    image = None if over is None else Path(over)
    check_outputs(out, inputs=[source, image], overwrite=overwrite)
    if image is not None and not image.exists():
        raise UsageError("over", f"{image}: no such file; check the path")
    size: float | tuple[float, float] | None = pixel_size
    if isinstance(source, RoadNetwork):
        graph = source.graph
    elif str(source).lower().endswith(".csv"):
        graph, size = _roads_of_image(Path(source), image, pixel_size)
    else:
        try:
            graph = read_network(source).graph
        except SourceError:
            with suppress(LabelError):
                return preview_polygons(Path(source), out, over=image, pixel_size_m=pixel_size)
            raise
    return preview_network(graph, out, over=image, pixel_size_m=size)


def _roads_of_image(
    table: Path, over: Path | None, pixel_size: float | None
) -> tuple[RoadGraph, tuple[float, float]]:
    """Return the roads of one image of a table, and its pixel size in metres (x, y)."""
    from geoprep.roads.centrelines.opening import pixel_size_of
    from geoprep.roads.formats.spacenet_csv import read_csv
    from geoprep.roads.names import scene_key

    if over is None:
        raise UsageError(f"{table}: its coordinates are pixels of images. Name the image by `over`")
    size = pixel_size_of(over, pixel_size)
    networks = read_csv(table, pixel_size_m=size)
    if scene_key(over.name) not in networks:
        some = ", ".join(list(networks)[:3])
        raise UsageError(f"{table}: has no image {scene_key(over.name)}; it has {some}")
    return networks[scene_key(over.name)], size
