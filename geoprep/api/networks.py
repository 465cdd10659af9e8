"""Road networks for notebooks: vectorisation, scores and routes, with GeoDataFrames as results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from geoprep.errors import UsageError
from geoprep.roads import RoadGraph

if TYPE_CHECKING:
    import geopandas as gpd
    import networkx as nx
    import pandas as pd
    from matplotlib.axes import Axes

    from geoprep.labels import SpeedFrom, SpeedUnit
    from geoprep.roads import Kind, ScenePair, TopoVariant

StrPath = str | os.PathLike[str]
LonLat = tuple[float, float]

_EDGE_COLUMNS = ("length", "speed_mph", "speed_kph", "travel_time")


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
        as the speeds, where the speed is unknown) and ``geometry``, in `crs`.
        """
        import geopandas as gpd
        import pandas as pd

        from geoprep.speed import KMH_PER_MPH

        graph = self.graph
        columns = {
            "u": graph.ends[:, 0],
            "v": graph.ends[:, 1],
            "length": graph.length_m,
            "speed_mph": graph.speed_mph,
            "speed_kph": graph.speed_mph * KMH_PER_MPH,
            "travel_time": graph.travel_time_s,
        }
        frame = gpd.GeoDataFrame(pd.DataFrame(columns), geometry=graph.lines, crs=graph.crs)
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
            Lines, with ``speed_mph`` or ``speed_kph`` if speeds are known. Other columns are
            ignored.

        Raises
        ------
        SourceError
            A geometry is not a line.
        """
        from geoprep.speed import KMH_PER_MPH

        frame = edges.reset_index(drop=True)
        if "speed_mph" not in frame:
            known = "speed_kph" in frame
            frame["speed_mph"] = frame["speed_kph"] / KMH_PER_MPH if known else np.nan
        frame = frame[["speed_mph", frame.geometry.name]]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "edges.gpkg"
            frame.to_file(path, layer="edges")
            return read_network(path)

    def to_networkx(self) -> nx.MultiGraph[int]:
        """Return an undirected multigraph with osmnx's attributes.

        The graph has ``crs``; nodes have ``x`` and ``y``; edges have the columns of `edges`.
        """
        import networkx as nx

        graph = nx.MultiGraph(crs=self.crs)
        graph.add_nodes_from(
            (node, {"x": x, "y": y})
            for node, x, y in zip(self.nodes.index, self.nodes["x"], self.nodes["y"], strict=True)
        )
        columns = [*_EDGE_COLUMNS, "geometry"]
        rows = zip(*(self.edges[name] for name in columns), strict=True)
        for (u, v, key), row in zip(self.edges.index, rows, strict=True):
            graph.add_edge(u, v, key, **dict(zip(columns, row, strict=True)))
        return graph

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

    def to_file(self, path: StrPath) -> None:
        """Write the network: .gpkg, .geojson, .graphml or .parquet; see `read_network`.

        Raises
        ------
        UsageError
            The suffix is another one, or the folder does not exist.
        """
        from geoprep.roads import write_network

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

        if ax is None:
            _, ax = plt.subplots(figsize=(8, 8))
        edges = self.edges
        if over is not None:
            edges = edges.to_crs(_draw_image(ax, over, self.crs))
        if len(edges):
            known = bool(edges["speed_mph"].notna().any())
            speeds = {"column": "speed_mph", "cmap": "plasma", "legend": True} if known else {}
            edges.plot(ax=ax, **{"linewidth": 1.5, **speeds, **style})
        return ax

    def __repr__(self) -> str:
        count = f"{len(self):,} edges, {len(self.graph.nodes):,} nodes, {self.length_km:,.1f} km"
        return f"<geoprep.RoadNetwork {count}, {self.crs or 'not georeferenced'}>"


def _draw_image(ax: Axes, path: StrPath, crs: str | None) -> Any:  # noqa: ANN401 - rasterio's CRS
    """Draw a georeferenced image and return its CRS."""
    import rasterio
    from rasterio.plot import plotting_extent

    from geoprep.crs import is_georeferenced

    with rasterio.open(path) as image:
        if crs is None or not is_georeferenced(image.crs, image.transform):
            raise UsageError(f"{path} cannot be drawn below the roads: one is not georeferenced")
        step = max(1, max(image.shape) // 1600)
        shape = tuple(max(1, side // step) for side in image.shape)
        bands = [1, 2, 3] if image.count >= 3 else [1]
        values = image.read(bands, out_shape=(len(bands), *shape))
        low, high = np.percentile(values, (1, 99))
        shown = np.clip((values - low) / max(high - low, 1e-9), 0, 1).transpose(1, 2, 0)
        ax.imshow(np.broadcast_to(shown, (*shape, 3)), extent=plotting_extent(image))
        return image.crs


def read_network(path: StrPath, *, layer: str | None = None) -> RoadNetwork:
    """Return the road network of a file.

    Parameters
    ----------
    path
        .gpkg, .geojson, .graphml, .parquet, .shp or .fgb, as `vectorize` or another program wrote.
    layer
        Layer of a file with several.

    Raises
    ------
    SourceError
        The file cannot be read or is not a road network.
    """
    from geoprep.roads import read_network as read

    return RoadNetwork(read(path, layer=layer))


def vectorize(
    source: Any,  # noqa: ANN401 - paths, datasets or arrays
    *,
    kind: Kind | None = None,
    band: int | None = None,
    pixel_size: float | None = None,
    transform: Any = None,  # noqa: ANN401 - affine
    crs: Any = None,  # noqa: ANN401 - anything that rasterio understands
    workers: int | None = None,
    progress: bool = True,
    **options: float | bool,
) -> RoadNetwork:
    """Return the road network of predictions, masks or probabilities.

    Parameters
    ----------
    source
        A file or folder, or several; an open rasterio dataset; an ``xarray.DataArray`` with
        ``rio.crs``, or with ``crs`` and ``transform`` given here; or an array (y, x) or
        (band, y, x) with ``crs`` and ``transform``, or with ``pixel_size``.
    kind
        ``probability``, ``speed`` or ``mask``. None: as the raster says, or by its values.
    band
        Band of roads, from 1. None: as the raster says.
    pixel_size
        Pixel size in metres of rasters that are not georeferenced.
    transform, crs
        Affine (pixel to CRS) and CRS of an array.
    workers
        Number of worker threads. None: one per core.
    progress
        Whether to show a progress bar.
    options
        Fields of `geoprep.roads.Tracing`, such as ``threshold=0.4``.

    Raises
    ------
    UsageError
        Options do not fit each other or the rasters.
    SourceError, ImageError
        A raster cannot be found or read.
    """
    from geoprep.api.progress import counting_bar
    from geoprep.roads import Tracing, rasters_in
    from geoprep.roads import vectorize as trace_rasters

    with tempfile.TemporaryDirectory() as folder:
        given = _paths_of(source, Path(folder), transform, crs)
        paths = [path for one in given for path in rasters_in(one)]
        if not paths:
            raise UsageError("`source` is empty: give at least one raster")
        with counting_bar("vectorizing", quiet=not progress) as advance:
            graph = trace_rasters(
                paths,
                Tracing(**options),  # type: ignore[arg-type]  # fields by name
                kind=kind,
                band=band,
                pixel_size_m=pixel_size,
                workers=workers,
                advance=advance,
            )
    return RoadNetwork(graph)


def _paths_of(source: Any, folder: Path, transform: Any, crs: Any) -> list[Path]:  # noqa: ANN401
    """Return the rasters of a source as files; arrays and datasets are written to a folder."""
    if isinstance(source, str | os.PathLike):
        return [Path(source)]
    if hasattr(source, "read") and hasattr(source, "profile"):  # a rasterio dataset
        transform, crs, values = source.transform, source.crs, source.read()
        return [_written(folder, values, transform, crs, source.descriptions, source.tags())]
    if hasattr(source, "dims") and hasattr(source, "values"):  # an xarray.DataArray
        georeference = getattr(source, "rio", None)
        crs = crs if crs is not None else getattr(georeference, "crs", None)
        if transform is None and georeference is not None:
            transform = georeference.transform()
        return [_written(folder, np.asarray(source.values), transform, crs)]
    if isinstance(source, np.ndarray):
        return [_written(folder, source, transform, crs)]
    if isinstance(source, Iterable):
        return [Path(one) for one in source]
    raise UsageError(f"`source` is a {type(source).__name__}: give paths, a dataset or an array")


def _written(
    folder: Path,
    values: np.ndarray[Any, Any],
    transform: Any,  # noqa: ANN401
    crs: Any,  # noqa: ANN401
    names: Sequence[str | None] = (),
    tags: dict[str, str] | None = None,
) -> Path:
    """Write an array (y, x) or (band, y, x) as a GeoTIFF and return its path."""
    import warnings

    import rasterio
    from rasterio.errors import NotGeoreferencedWarning

    values = values[None] if values.ndim == 2 else values
    if values.ndim != 3:
        raise UsageError(f"`source` has {values.ndim} axes: give an array (y, x) or (band, y, x)")
    if (transform is None) != (crs is None):
        raise UsageError("give both `transform` and `crs` of an array, or `pixel_size` alone")
    kinds = {"b": "uint8", "f": "float32"}
    values = values.astype(kinds.get(values.dtype.kind, values.dtype), copy=False)
    georeference = {"transform": transform, "crs": crs} if crs is not None else {}
    path = folder / "array.tif"
    bands, height, width = values.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(
            path, "w", driver="GTiff", count=bands, height=height, width=width,
            dtype=values.dtype, **georeference,
        ) as file:  # fmt: skip
            file.write(values)
            if any(names):
                file.descriptions = [name or "" for name in names]
            file.update_tags(**(tags or {}))
    return path


def score(
    truth: StrPath | RoadNetwork,
    proposal: StrPath | RoadNetwork,
    *,
    images: StrPath | None = None,
    pixel_size: float | None = None,
    snap: float = 4.0,
    control_point_spacing: float = 50.0,
    published: bool = False,
    topo_radius: float = 150.0,
    topo_starts: int | None = None,
    topo_variant: TopoVariant = "default",
    seed: int = 0,
    speed_from: SpeedFrom = "attributes",
    speed_field: str | None = None,
    speed_unit: SpeedUnit = "mph",
    layer: str | None = None,
    where: str | None = None,
    threads: int | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Return APLS, APLS_time and TOPO of a road network against ground truth.

    Parameters
    ----------
    truth, proposal
        A file of one scene, a folder with a file per scene, a SpaceNet table (.csv), or a
        `RoadNetwork`.
    images
        Image, folder of images or store of the scenes, which give the borders of the scenes.
    pixel_size
        Pixel size in metres, for tables without images.
    snap
        Largest distance in metres of a control point from the other network.
    control_point_spacing
        Distance in metres of control points along edges; 0: nodes only.
    published
        Whether to reproduce published figures, see ``geoprep score --help``.
    topo_radius
        Distance in metres by road from each starting point of TOPO.
    topo_starts
        Largest number of starting points per scene. None: all.
    topo_variant
        Rules of matching. ``sat2graph``: those of Sat2Graph's program, for comparison with its
        published figures.
    seed
        Random seed for choosing starting points.
    speed_from, speed_field, speed_unit, layer, where
        Speeds, layer and features of label files, as for `build_zarr`. Road networks have their
        own speeds.
    threads
        Number of worker threads. None: one per core.
    progress
        Whether to show a progress bar.

    Returns
    -------
    pandas.DataFrame
        One row per scene: ``apls``, ``apls_truth_to_proposal``, ``apls_proposal_to_truth``,
        ``apls_time``, ``topo``, ``topo_precision``, ``topo_recall`` (0..1, NaN where undefined),
        ``truth_km``, ``proposal_km`` and ``note``.

    Raises
    ------
    SourceError, LabelError
        A file cannot be read.
    UsageError
        The two have no scene in common, or only one is georeferenced.
    """
    import pandas as pd

    from geoprep.api.progress import counting_bar
    from geoprep.labels import SpeedRule
    from geoprep.roads import ScoreSettings, score_scenes

    rule = SpeedRule(
        speed_from=speed_from,
        speed_field=speed_field,
        speed_unit=speed_unit,
        layer=layer,
        where=where,
    )
    given = {
        "images": images,
        "pixel_size_m": pixel_size,
        "as_published": published,
        "rule": rule,
    }
    settings = ScoreSettings(
        snap_m=snap,
        control_point_spacing_m=control_point_spacing or None,
        topo_radius_m=topo_radius,
        topo_starts=topo_starts,
        seed=seed,
        topo_variant=topo_variant,
    )
    with tempfile.TemporaryDirectory() as folder:
        pairs = _pairs(truth, proposal, Path(folder), given)
        with counting_bar("scoring", quiet=not progress) as advance:
            scores = score_scenes(pairs, settings, threads=threads, advance=advance)
    rows = []
    for one in scores:
        found = asdict(one)
        apls, time, topo = (found[name] or {} for name in ("apls", "apls_time", "topo"))
        rows.append(
            {
                "scene": one.scene,
                "apls": apls.get("score", np.nan),
                "apls_truth_to_proposal": apls.get("truth_to_proposal", np.nan),
                "apls_proposal_to_truth": apls.get("proposal_to_truth", np.nan),
                "apls_time": time.get("score", np.nan),
                "topo": topo.get("f1", np.nan),
                "topo_precision": topo.get("precision", np.nan),
                "topo_recall": topo.get("recall", np.nan),
                "truth_km": one.truth_km,
                "proposal_km": one.proposal_km,
                "note": one.note,
            }
        )
    return pd.DataFrame(rows).set_index("scene")


def _pairs(
    truth: StrPath | RoadNetwork,
    proposal: StrPath | RoadNetwork,
    folder: Path,
    given: dict[str, Any],
) -> list[ScenePair]:
    """Return the scenes of both sides; networks in memory go by way of files."""
    from geoprep.roads import pair_scenes

    def path_of(side: StrPath | RoadNetwork, name: str) -> Path:
        if isinstance(side, RoadNetwork):
            path = folder / f"{name}.gpkg"
            side.to_file(path)
            return path
        return Path(side)

    images = given["images"]
    return pair_scenes(
        path_of(truth, "truth"),
        path_of(proposal, "proposal"),
        **{**given, "images": None if images is None else Path(images)},
    )


def route(
    roads: RoadNetwork | StrPath,
    start: LonLat,
    goal: LonLat,
    *,
    by: Literal["time", "length"] = "time",
    within: float = 100.0,
) -> gpd.GeoDataFrame:
    """Return the fastest or the shortest route between two points.

    Parameters
    ----------
    roads
        A road network, or its file. Every road can be driven both ways.
    start, goal
        Longitude and latitude in degrees; x and y in metres if the roads are not georeferenced.
    by
        ``time``: the fastest route; ``length``: the shortest.
    within
        Largest distance in metres of a point from the nearest road.

    Returns
    -------
    geopandas.GeoDataFrame
        One row: ``length`` (metres), ``travel_time`` (seconds, NaN if a speed is unknown),
        ``off_road`` (metres from start and goal to the route) and ``geometry`` in EPSG:4326.

    Raises
    ------
    UsageError
        A point is too far from the roads, the points are not connected, or speeds are unknown.
    """
    import geopandas as gpd

    from geoprep.roads import find_route

    network = roads if isinstance(roads, RoadNetwork) else read_network(roads)
    found = find_route(network.graph, start, goal, by=by, within_m=within)
    columns = {
        "length": [found.length_m],
        "travel_time": [found.travel_time_s],
        "off_road": [sum(found.off_road_m)],
    }
    frame = gpd.GeoDataFrame(columns, geometry=[found.line], crs=found.crs)
    return frame.to_crs("EPSG:4326") if found.crs is not None else frame
