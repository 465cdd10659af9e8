"""Functions of road networks and classes: score them, make polygons."""

from __future__ import annotations

import os
import re
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from geoprep.errors import UsageError
from geoprep.labels.label_options import ClassOptions, MaskOptions, RoadOptions
from geoprep.options import made, option, options_of, overwrite_option, with_options
from geoprep.outputs import check_outputs, require_suffix
from geoprep.roads.options import LABEL_OPTIONS, TOPO_INTERVAL_M, TOPO_MATCH_M, ScoreOptions

if TYPE_CHECKING:
    import geopandas as gpd
    import pandas as pd

    from geoprep.api.networks import RoadNetwork
    from geoprep.labels.raster_rules import ClassRaster
    from geoprep.roads.network import RoadGraph
    from geoprep.storage.local_files import StrPath

_COLUMNS = {
    "scene": "scene",
    "apls.score": "apls",
    "apls.truth_to_proposal": "apls_truth_to_proposal",
    "apls.proposal_to_truth": "apls_proposal_to_truth",
    "apls_time.score": "apls_time",
    "topo.f1": "topo",
    "topo.precision": "topo_precision",
    "topo.recall": "topo_recall",
    **{name: name for name in ("truth_km", "proposal_km", "note")},
}


@dataclass(frozen=True, kw_only=True)
class ScoreFiles:
    """Input: what is scored."""

    truth: Path = option(
        MISSING,
        "Ground truth: file of one scene, folder with a file per scene, or SpaceNet table (.csv), "
        "of labels or road networks. Functions take a `RoadNetwork` too.",
        "PATH",
    )
    proposal: Path = option(
        MISSING,
        "Road networks to score, given like the ground truth. If both are rasters, or folders of "
        "rasters, their classes are scored.",
        "PATH",
    )


@dataclass(frozen=True, kw_only=True)
class ScoreImages:
    """Input: the images of the scenes."""

    images: Path | None = option(
        None,
        "Image, folder of images, or store of the scenes: their borders, which both sides are "
        "clipped to, and the georeference of tables. Without it, a city is scored within the "
        "bounding box of each scene's ground truth, and false roads outside that box do not count.",
        "PATH",
    )
    split: Literal["train", "val", "test"] | None = option(
        None, "Score the scenes of a split alone; `images` is the store that has it."
    )


@dataclass(frozen=True, kw_only=True)
class ScoreClasses:
    """Classes: those of rasters."""

    classes: Any = option(
        None,
        "Classes of ground truth rasters, as for `geoprep build-zarr`. Default: their values are "
        "the numbers of the classes of the predictions.",
        "FILE|TEXT",
    )
    boundary: float = option(
        2.0,
        "Largest distance in pixels between boundaries of classes that match.",
        "PIXELS",
        above=0,
    )


@with_options(
    (
        *options_of(ScoreFiles),
        *options_of(ScoreImages),
        *options_of(ScoreClasses),
        *options_of(ScoreOptions),
        *options_of(RoadOptions, *LABEL_OPTIONS),
        *options_of(ClassOptions, "other", "tolerance"),
        *options_of(MaskOptions, "label_nodata"),
    )
)
def score(
    truth: StrPath | RoadNetwork,
    proposal: StrPath | RoadNetwork,
    *,
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - fields of the records above, and options of labels
) -> pd.DataFrame:
    """Return APLS, APLS_time and TOPO of a road network, or IoU of classes, against ground truth.

    Parameters
    ----------
    **options
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

    Examples
    --------
    >>> import geopandas, shapely
    >>> from geoprep import RoadNetwork
    >>> ends = [[(5e5, 6e6), (500400, 6e6)], [(5e5, 6e6), (5e5, 6000600)]]
    >>> lines = [shapely.LineString(xy) for xy in ends]
    >>> frame = geopandas.GeoDataFrame({"speed_mph": [30, 20]}, geometry=lines, crs="EPSG:32637")
    >>> truth, proposal = (RoadNetwork.from_geopandas(frame[:count]) for count in (2, 1))
    >>> score(truth, proposal, progress=False)["topo_recall"].round(2).to_dict()
    {'truth': 0.36}
    """
    import pandas as pd

    from geoprep.classes.class_rasters import has_rasters
    from geoprep.executors.progress import counting_bar
    from geoprep.labels.label_options import SpeedRule
    from geoprep.roads.scoring.pairs import pair_scenes
    from geoprep.roads.scoring.scenes import mean_scores, score_scenes

    given_images = made(ScoreImages, options)
    images, only = given_images.images, _scenes_of(given_images)
    classes = made(ScoreClasses, options)
    settings = made(ScoreOptions, options)
    rule = SpeedRule(**asdict(made(RoadOptions, options)))
    nodata = options.pop("label_nodata", None)
    class_rule = ClassOptions(classes=classes.classes, **options).make_rule(nodata)
    for name, side in (("truth", truth), ("proposal", proposal)):
        if isinstance(side, str | os.PathLike) and not Path(side).exists():
            raise UsageError(name, f"{os.fspath(side)}: no such file or folder; check the path")
    if has_rasters(truth) and has_rasters(proposal):
        return _score_classes(truth, proposal, class_rule, classes.boundary, only)
    if classes.classes is not None:
        raise UsageError("classes", "is for rasters: give rasters as `truth` and `proposal`")
    pairs = pair_scenes(
        _side(truth),
        _side(proposal),
        images=images,
        pixel_size_m=settings.pixel_size,
        rule=rule,
        only=only,
    )
    with counting_bar("scoring", quiet=not progress, per=1000) as advance:
        scores = score_scenes(pairs, settings, advance=advance)
    scenes = [asdict(score_of_scene) for score_of_scene in scores]
    # Figures that are not defined are NaN.
    frame = pd.json_normalize(scenes).reindex(columns=list(_COLUMNS))
    frame = frame.rename(columns=_COLUMNS).set_index("scene")
    frame.attrs = {
        "mean": mean_scores(scores),
        "scenes_in_mean": {  # with roads; and of these, with all speeds
            "apls": sum(scene["apls"] is not None for scene in scenes),
            "apls_time": sum(scene["apls_time"] is not None for scene in scenes),
        },
        "scenes": scenes,
        "settings": _settings(settings),
    }
    return frame


def _scenes_of(given: ScoreImages) -> set[str] | None:
    """Return the keys of the scenes of a split; None without one."""
    if given.split is None:
        return None
    from geoprep.roads.footprints import is_store
    from geoprep.roads.names import scene_key
    from geoprep.store.reader import StoreReader
    from geoprep.store.scenes import scenes_in_split

    if given.images is None or not is_store(given.images):
        raise UsageError("split", "is one of a store: give the store as `images`")
    return set(map(scene_key, scenes_in_split(StoreReader.open(given.images), given.split)))


def _settings(settings: ScoreOptions) -> dict[str, Any]:
    """Return the settings of scores by name; lengths are in metres."""
    return {
        "snap_m": settings.snap,
        "control_point_spacing_m": settings.control_point_spacing or None,
        "topo_radius_m": settings.topo_radius,
        "topo_interval_m": TOPO_INTERVAL_M,
        "topo_match_m": TOPO_MATCH_M,
    }


def _score_classes(
    truth: Any,  # noqa: ANN401 - a path of a raster or a folder
    proposal: Any,  # noqa: ANN401 - as above
    rule: ClassRaster | None,
    boundary: float,
    only: set[str] | None,
) -> pd.DataFrame:
    """Return the scores of rasters of classes; see `score`."""
    import pandas as pd

    from geoprep.classes.class_scores import score_rasters
    from geoprep.roads.names import scene_key

    paths = Path(truth), Path(proposal)
    found = score_rasters(*paths, rule, boundary=boundary, scene_key=scene_key, only=only)
    frame = pd.DataFrame(found["scenes"])
    frame.attrs.update(found)
    return frame


@dataclass(frozen=True, kw_only=True)
class PolygonFile:
    """Output: the polygons."""

    out: Path | None = option(
        None,
        "File to write; its suffix sets the format: .gpkg, .geojson (longitude and latitude) or "
        ".fgb.",
        "FILE",
        required=True,
    )
    overwrite: bool = overwrite_option()


@dataclass(frozen=True, kw_only=True)
class PolygonOptions:
    """Polygons: how areas become polygons."""

    simplify_m: float | None = option(
        None,
        "Simplify edges by about so many metres, shared edges alike, so that no gaps open between "
        "neighbours; 0 keeps the edges of pixels. Default: one pixel.",
        "METRES",
        flag="--simplify",
        least=0,
    )
    min_area_m2: float | None = option(
        None,
        "Leave out smaller polygons; 0 for none. Default: those of fewer than 10 pixels.",
        "M2",
        flag="--min-area",
        least=0,
    )
    square: bool = option(
        False,
        "Give buildings right angles: every wall along the main direction of its building or "
        "across it. An outline stays as it is if it is round, or if that would change its area by "
        "more than 5 %, or its IoU with the pixels would be below 0.9. Edges are simplified by a "
        "pixel or more.",
    )
    pixel_size: float | None = option(
        None,
        "Pixel width in metres of a prediction that is not georeferenced.",
        "METRES",
        above=0,
    )
    background: bool = option(False, "Keep the class background.")


@with_options(options_of(PolygonFile) + options_of(PolygonOptions))
def polygonize(
    source: Any,  # noqa: ANN401 - a path or several
    *,
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - fields of `PolygonFile` and `PolygonOptions`
) -> gpd.GeoDataFrame:
    """Return the classes of predictions as polygons, dissolved across their borders.

    Parameters
    ----------
    source
        A prediction of classes, or a folder of them; or several. Where they overlap the first
        counts.
    progress
        Whether to show a progress bar.
    **options

    Returns
    -------
    geopandas.GeoDataFrame
        One row per polygon: ``class``, ``value`` (number of the class), ``area_m2`` (on the
        ellipsoid),
        ``confidence`` (0..1, the mean over its pixels of a prediction with this band, else NaN),
        ``geometry``. Its ``attrs`` are ``min_area_m2`` (None: 10 pixels), the number of smaller
        polygons ``left_out``, and ``colors`` of the classes, which a .gpkg has as its style.

    Raises
    ------
    ImageError
        A file cannot be read.
    UsageError
        There are no predictions of classes, their classes or CRS differ, they are not
        georeferenced, or the file cannot be written.
    """
    from geoprep.classes.polygons import polygonize_rasters
    from geoprep.crs import LONLAT, areas_in_lonlat
    from geoprep.executors.progress import counting_bar
    from geoprep.roads.formats.files import write_layer
    from geoprep.roads.formats.style import class_style_row
    from geoprep.storage.output_files import replaced

    several = [source] if isinstance(source, str | os.PathLike) else list(source)
    file = made(PolygonFile, options)
    target = file.out
    if target is not None:
        require_suffix(target, ".gpkg", ".geojson", ".fgb")
        check_outputs(target, inputs=several, overwrite=file.overwrite)
    paths, rules = [Path(one) for one in several], asdict(made(PolygonOptions, options))
    with counting_bar("polygonizing", quiet=not progress, per=1000) as advance:
        frame = polygonize_rasters(paths, **rules, advance=advance)
    if target is not None:
        with replaced(target) as partial:
            is_json = target.suffix.lower() == ".geojson" and frame.crs is not None
            written = frame
            if is_json:
                lonlat = areas_in_lonlat(frame.geometry.to_numpy(), frame.crs.to_wkt())
                written = frame.set_geometry(lonlat, crs=LONLAT)
            layer = re.sub(r"\W", "_", target.stem)
            written.to_file(partial, layer=layer, engine="pyogrio")
            if target.suffix.lower() == ".gpkg":
                style = class_style_row(layer, frame.attrs["colors"])
                write_layer(style, partial, "layer_styles", None)
    return frame


def _side(given: StrPath | RoadNetwork) -> Path | RoadGraph:
    from geoprep.api.networks import RoadNetwork

    return given.graph if isinstance(given, RoadNetwork) else Path(given)
