"""Functions of road networks: vectorise predictions, score a network, find a route."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from geoprep.api.networks import RoadNetwork, read_network
from geoprep.errors import UsageError

if TYPE_CHECKING:
    import geopandas as gpd
    import pandas as pd

    from geoprep.labels import SpeedFrom, SpeedUnit
    from geoprep.roads import Kind, ScenePair, SceneScore, TopoVariant
    from geoprep.storage import StrPath

LonLat = tuple[float, float]
_TITLE = "vectorizing"
_AREA_FILES = (".gpkg", ".geojson", ".fgb")


def vectorize(
    source: Any,  # noqa: ANN401 - paths, datasets or arrays
    *,
    out: StrPath | None = None,
    kind: Kind | None = None,
    band: int | None = None,
    pixel_size: float | None = None,
    transform: Any = None,  # noqa: ANN401 - affine
    crs: Any = None,  # noqa: ANN401 - anything that rasterio understands
    threshold: float | None = None,
    high_threshold: float | None = None,
    spur_m: float = 10.0,
    min_length_m: float = 12.0,
    min_confidence: float = 0.0,
    smoothing_m: float | None = None,
    close_gaps: bool = True,
    motorway_mph: float = 60.0,
    workers: int | None = None,
    progress: bool = True,
) -> RoadNetwork:
    """Return the road network of predictions, masks or probabilities.

    Parameters
    ----------
    source
        A file or folder, or several; an open rasterio dataset; an ``xarray.DataArray`` with a CRS
        (of rioxarray), or with ``crs`` and ``transform`` given here; or an array (y, x) or
        (band, y, x) with ``crs`` and ``transform``, or with ``pixel_size``.
    out
        File to write as well; see `RoadNetwork.to_file`.
    kind
        ``probability``, ``speed`` or ``mask``. None: as the raster says, or by its values.
    band
        Band of roads, from 1. None: as the raster says.
    pixel_size
        Pixel size in metres of rasters that are not georeferenced.
    transform, crs
        Affine (pixel to CRS) and CRS of an array.
    threshold
        Minimum probability of road pixels. None: 0.3, or what makes a prediction's own threshold
        (its tag ``ROAD_THRESHOLD``) the high threshold: 0.3 for 0.5.
    high_threshold
        Probability that every connected component must reach at some pixel. None: the odds of the
        threshold times 7/3, such as 0.5 for 0.3.
    spur_m
        Minimum length in metres of a dead end at a junction. Shorter ones are removed, except at
        the border of the rasters.
    min_length_m
        Minimum total length in metres of a connected component. Shorter ones are removed.
    min_confidence
        Minimum mean probability along an edge. Edges below are removed; 0 keeps all.
    smoothing_m
        Standard deviation in metres of the Gaussian that smooths lines; 0: none. None: by the
        pixel size.
    close_gaps
        Whether interrupted roads are joined.
    motorway_mph
        Speed in mph above which a road has no level crossings: slower roads cross it on a bridge.
    workers
        Number of worker threads. None: one per core.
    progress
        Whether to show a progress bar.

    Raises
    ------
    UsageError
        Options do not fit each other or the rasters.
    SourceError, ImageError
        A raster cannot be found or read.
    """
    from geoprep.api.progress import counting_bar
    from geoprep.roads import Tracing, check_target
    from geoprep.roads import vectorize as trace_rasters

    if out is not None:
        check_target(Path(out))
        if Path(out).suffix.lower() == ".csv":
            raise UsageError(f"{out}: a table has no network. Use `write_road_table`")
    with _rasters(source, transform, crs) as paths:
        options = Tracing(
            threshold=threshold,
            high_threshold=high_threshold,
            spur_m=spur_m,
            min_length_m=min_length_m,
            min_confidence=min_confidence,
            smoothing_m=smoothing_m,
            motorway_mph=motorway_mph,
            close_gaps=close_gaps,
        )
        with counting_bar(_TITLE, quiet=not progress) as advance:
            graph = trace_rasters(
                paths,
                options,
                kind=kind,
                band=band,
                pixel_size_m=pixel_size,
                workers=workers,
                advance=advance,
            )
    network = RoadNetwork(graph)
    if out is not None:
        network.to_file(out)
    return network


def write_road_table(
    source: StrPath | Sequence[StrPath],
    out: StrPath,
    *,
    kind: Kind | None = None,
    band: int | None = None,
    pixel_size: float | None = None,
    workers: int | None = None,
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - numbers and a switch
) -> dict[str, int]:
    """Write the roads of every raster as SpaceNet's table (.csv), in pixels of its image.

    Parameters
    ----------
    source
        A file or folder, or several.
    out
        Table to write, NAME.csv.
    kind, band, pixel_size, workers, progress, **options
        As of `vectorize`.

    Returns
    -------
    dict
        Number of ``images`` and of ``edges``.

    Raises
    ------
    UsageError
        Options do not fit the rasters, or two rasters are of the same image.
    SourceError, ImageError
        A raster cannot be found or read.
    """
    from geoprep.api.progress import counting_bar
    from geoprep.roads import Tracing, check_target, vectorize_each, write_csv

    table = Path(out)
    check_target(table)
    if table.suffix.lower() != ".csv":
        raise UsageError(f"{out}: the name of a table ends in .csv")
    with _rasters(source) as paths, counting_bar(_TITLE, quiet=not progress) as advance:
        roads = vectorize_each(
            paths,
            Tracing(**options),
            kind=kind,
            band=band,
            pixel_size_m=pixel_size,
            workers=workers,
            advance=advance,
        )
        return {"images": len(paths), "edges": write_csv(roads, table)}


def stated_thresholds(source: StrPath) -> tuple[Path, float, float] | None:
    """Return the first raster and the two thresholds that it states; None if it states none.

    Raises
    ------
    SourceError, ImageError
        The raster cannot be found or read.
    """
    from geoprep.roads import Tracing, rasters_in, stated_threshold

    first = rasters_in(Path(source))[0]
    stated = stated_threshold(first)
    return None if stated is None else (first, *Tracing().thresholds(stated))


@contextmanager
def _rasters(source: Any, transform: Any = None, crs: Any = None) -> Iterator[list[Path]]:  # noqa: ANN401
    """Yield the rasters of a source as files, which exist as long as the context."""
    from geoprep.roads import rasters_in

    with tempfile.TemporaryDirectory() as folder:
        given = _paths_of(source, Path(folder), transform, crs)
        paths = [path for one in given for path in rasters_in(one)]
        if not paths:
            raise UsageError("`source` is empty: give at least one raster")
        yield paths


def _paths_of(source: Any, folder: Path, transform: Any, crs: Any) -> list[Path]:  # noqa: ANN401
    """Return the rasters of a source as files; arrays and datasets are written to a folder."""
    if isinstance(source, str | os.PathLike):
        return [Path(source)]
    if hasattr(source, "read") and hasattr(source, "profile"):  # a rasterio dataset
        transform, crs, values = source.transform, source.crs, source.read()
        return [_written(folder, values, transform, crs, source.descriptions, source.tags())]
    if hasattr(source, "dims") and hasattr(source, "values"):  # an xarray.DataArray
        if transform is None and crs is None:
            transform, crs = _georeference(source)
        return [_written(folder, np.asarray(source.values), transform, crs)]
    if isinstance(source, np.ndarray):
        return [_written(folder, source, transform, crs)]
    if isinstance(source, Iterable):
        return [Path(one) for one in source]
    raise UsageError(f"`source` is a {type(source).__name__}: give paths, a dataset or an array")


def _georeference(array: Any) -> tuple[Any, Any]:  # noqa: ANN401 - xarray's, affine
    """Return transform and CRS of a DataArray: of rioxarray, or as it writes them into files."""
    if hasattr(array, "rio"):
        found = array.rio.crs
        return (None, None) if found is None else (array.rio.transform(), found)
    written = array.coords["spatial_ref"].attrs if "spatial_ref" in array.coords else {}
    if not {"crs_wkt", "GeoTransform"} <= set(written):
        return None, None
    from affine import Affine

    return Affine.from_gdal(*map(float, written["GeoTransform"].split())), written["crs_wkt"]


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
    classes: Any = None,  # noqa: ANN401 - a path, text or plain values
    boundary: float = 2.0,
    csv: StrPath | None = None,
    threads: int | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Return APLS, APLS_time and TOPO of a road network, or IoU of classes, against ground truth.

    Parameters
    ----------
    truth, proposal
        A file of one scene, a folder with a file per scene, a SpaceNet table (.csv), or a
        `RoadNetwork`. If both are rasters, or folders of rasters, their classes are scored.
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
    classes
        Classes of ground truth rasters, as for `build_zarr`. None: their values are the numbers of
        the classes of the proposal.
    boundary
        Largest distance in pixels between boundaries of classes that match.
    csv
        File to write the rows to as well.
    threads
        Number of worker threads. None: one per core.
    progress
        Whether to show a progress bar.

    Returns
    -------
    pandas.DataFrame
        Of rasters: one row per scene with ``mean_iou``, ``mean_f1``, ``accuracy``, ``boundary_f1``
        and ``iou_NAME`` of each class; ``attrs`` have ``pooled`` figures and the ``confusion``
        matrix in pixels. Of road networks: one row per scene: ``apls``,
        ``apls_truth_to_proposal``, ``apls_proposal_to_truth``,
        ``apls_time``, ``topo``, ``topo_precision``, ``topo_recall`` (0..1, NaN where undefined),
        ``truth_km``, ``proposal_km`` and ``note``. Its ``attrs`` are what ``geoprep score --json``
        prints: ``mean`` of all scenes, ``scenes_in_mean``, ``scenes`` and ``settings``.

    Raises
    ------
    SourceError, LabelError
        A file cannot be read.
    UsageError
        The two have no scene in common, or only one is georeferenced.
    """
    from geoprep.api.progress import counting_bar
    from geoprep.labels import SpeedRule
    from geoprep.masks import has_rasters
    from geoprep.roads import ScoreSettings, mean_scores, score_scenes

    if has_rasters(truth) and has_rasters(proposal):
        return _score_classes(truth, proposal, classes, boundary, csv)
    if classes is not None:
        raise UsageError("`classes` is for rasters: give rasters as `truth` and `proposal`")
    if speed_field is None and speed_unit != "mph":
        raise UsageError("`speed_unit` is the unit of `speed_field`: name the field as well")
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
    frame = _score_frame(scores)
    frame.attrs = {
        "mean": mean_scores(scores),
        "scenes_in_mean": {  # with roads; and of these, with all speeds
            "apls": sum(one.apls is not None for one in scores),
            "apls_time": sum(one.apls_time is not None for one in scores),
        },
        "scenes": [asdict(one) for one in scores],
        "settings": asdict(settings) | {"published": published},
    }
    return _with_csv(frame, csv)


def _score_classes(
    truth: Any,  # noqa: ANN401 - a path of a raster or a folder
    proposal: Any,  # noqa: ANN401 - as above
    classes: Any,  # noqa: ANN401 - as `parse_classes` takes them
    boundary: float,
    csv: StrPath | None,
) -> pd.DataFrame:
    """Return the scores of rasters of classes; see `score`."""
    import pandas as pd

    from geoprep.labels import parse_classes
    from geoprep.masks import score_rasters
    from geoprep.roads import scene_key

    named = parse_classes(classes) if classes is not None else ()
    found = score_rasters(
        Path(truth), Path(proposal), named, boundary=boundary, scene_key=scene_key
    )
    frame = pd.DataFrame(found["scenes"])
    attrs: dict[Any, Any] = dict(found)
    frame.attrs = attrs
    return _with_csv(frame, csv)


def _with_csv(frame: pd.DataFrame, csv: StrPath | None) -> pd.DataFrame:
    """Return a frame, after writing it as CSV if a file is given."""
    from geoprep.storage import replaced

    if csv is not None:
        with replaced(Path(csv)) as partial:
            frame.to_csv(partial, index=False)
    return frame


def polygonize(
    source: Any,  # noqa: ANN401 - a path or several
    *,
    out: StrPath | None = None,
    simplify_m: float | None = None,
    min_area_m2: float = 0.0,
    background: bool = False,
) -> gpd.GeoDataFrame:
    """Return the classes of predictions as polygons, dissolved across their borders.

    Parameters
    ----------
    source
        A prediction of classes, or a folder of them; or several. Where they overlap the first
        counts.
    out
        File to write as well: .gpkg, .geojson (longitude and latitude) or .fgb.
    simplify_m
        Edges are simplified by about so many metres, shared edges alike, so that no gaps open
        between neighbours. None: one pixel; 0: the edges of pixels.
    min_area_m2
        Smaller polygons are left out.
    background
        Whether to keep the class ``background``.

    Returns
    -------
    geopandas.GeoDataFrame
        One row per polygon: ``class``, ``value`` (number of the class), ``area_m2``,
        ``confidence`` (0..1, the mean over its pixels of a prediction with this band, else NaN),
        ``geometry``.

    Raises
    ------
    ImageError
        A file cannot be read.
    UsageError
        There are no predictions of classes, their classes or CRS differ, they are not
        georeferenced, or the file cannot be written.
    """
    from geoprep.masks import polygonize_rasters
    from geoprep.storage import replaced

    several = [source] if isinstance(source, str | os.PathLike) else list(source)
    target = None if out is None else Path(out)
    if target is not None and target.suffix.lower() not in _AREA_FILES:
        raise UsageError(f"{target}: use a file that ends in {', '.join(_AREA_FILES)}")
    if target is not None and not target.parent.is_dir():
        raise UsageError(f"{target}: the folder {target.parent} does not exist: create it first")
    frame = polygonize_rasters(
        [Path(one) for one in several],
        simplify_m=simplify_m,
        min_area_m2=min_area_m2,
        background=background,
    )
    if target is not None:
        with replaced(target) as partial:
            written = frame.to_crs("OGC:CRS84") if target.suffix == ".geojson" else frame
            written.to_file(partial, layer=re.sub(r"\W", "_", target.stem), engine="pyogrio")
    return frame


def _score_frame(scores: Sequence[SceneScore]) -> pd.DataFrame:
    """Return one row per scene."""
    import pandas as pd

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
    out: StrPath | None = None,
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
    out
        GeoJSON file to write as well.

    Returns
    -------
    geopandas.GeoDataFrame
        One row: ``length`` (metres), ``travel_time`` (seconds, NaN if a speed is unknown),
        ``off_road_start`` and ``off_road_goal`` (metres from the route) and ``geometry`` in
        EPSG:4326.

    Raises
    ------
    UsageError
        A point is too far from the roads, the points are not connected, or speeds are unknown.
    """
    import geopandas as gpd

    from geoprep.roads import check_route, find_route, write_route

    if out is not None:
        check_route(Path(out))
    network = roads if isinstance(roads, RoadNetwork) else read_network(roads)
    found = find_route(network.graph, start, goal, by=by, within_m=within)
    if out is not None:
        write_route(found, Path(out))
    columns = {
        "length": [found.length_m],
        "travel_time": [found.travel_time_s],
        "off_road_start": [found.off_road_m[0]],
        "off_road_goal": [found.off_road_m[1]],
    }
    frame = gpd.GeoDataFrame(columns, geometry=[found.line], crs=found.crs)
    return frame.to_crs("EPSG:4326") if found.crs is not None else frame
