"""Functions of stores: describe, check, draw and export."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from geoprep.errors import LabelError, SourceError, UsageError
from geoprep.options import (
    argument,
    local_output,
    made,
    option,
    options_of,
    overwrite_option,
    with_options,
    workers_option,
)
from geoprep.outputs import check_outputs

if TYPE_CHECKING:
    from geoprep.api.networks import RoadNetwork
    from geoprep.storage.local_files import StrPath
    from geoprep.store.reader import StoreReader
    from geoprep.verify.store_check import VerifyReport
    from geoprep.views.stores import Store


def _opened(store: Store | StrPath) -> StoreReader:
    from geoprep.store.reader import StoreReader
    from geoprep.views.stores import Store

    return store.reader if isinstance(store, Store) else StoreReader.open(str(store))


@dataclass(frozen=True, kw_only=True)
class StoreArgument:
    """Options: the store of a command."""

    store: str = argument("Store, or its path or address.", "STORE")


@dataclass(frozen=True, kw_only=True)
class InfoOptions:
    """Options: of what is printed about a store."""

    scenes: bool = option(False, "Add every scene, under scene_table.")
    batch_size: int = option(8, "Samples per batch, for the memory of a loader.", "N", least=1)
    crop: int = option(
        256,
        "Side of the crops in pixels, for the memory; larger than a tile: whole tiles.",
        "PIXELS",
        least=1,
    )
    workers: int = option(4, "Worker threads of a loader, for the memory.", "N", least=1)


@with_options(options_of(StoreArgument) + options_of(InfoOptions))
def store_info(store: Store | StrPath, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of `InfoOptions`
    """Return facts about a store as plain JSON values.

    Parameters
    ----------
    **options

    Returns
    -------
    dict
        The attributes of the store, ``bytes`` (on disk), ``km2`` (of imagery), ``gsd_range_m``
        (pixel sizes of scenes), ``road_fraction`` (of classes ``label_fraction``; of the labelled
        pixels of ``ok`` scenes), ``valid_fraction`` (of the pixels of all scenes),
        ``levels``, ``splits``, ``statuses``, ``issues`` (scenes that were not built as planned),
        ``statistics`` (mean and standard deviation per band, 1 to 255), ``speeds`` (pixels per mph
        over the training tiles), ``unknown_speed`` (pixels), ``classes`` (name, color, and pixels
        by split), ``memory`` (bytes by level: ``tiles`` of the splits train and val, once per
        machine; ``batch``, which each worker adds; ``worker_process``, a forked one of torch's
        ``DataLoader``; ``loader``, a `loaders.BatchLoader`; and ``total``, of tiles and loader) and
        ``notes`` (remarks of the build, counted).

    Raises
    ------
    StoreError
        The store cannot be opened.
    """
    from geoprep.views.facts import info

    return info(_opened(store), **asdict(made(InfoOptions, options)))


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options: of a check."""

    workers: int | None = workers_option()


@with_options(options_of(StoreArgument) + options_of(CheckOptions))
def check_store(store: Store | StrPath, *, progress: bool = True, **options: Any) -> VerifyReport:  # noqa: ANN401 - fields of `CheckOptions`
    """Check every file and chunk of a store against checksums and hashes.

    Parameters
    ----------
    **options
    progress
        Whether to show a progress bar.

    Returns
    -------
    VerifyReport
        Its ``problems`` are empty if the store is intact.

    Raises
    ------
    StoreError
        The store cannot be opened.
    """
    from geoprep.executors.progress import counting_bar
    from geoprep.verify.store_check import verify

    with counting_bar("checking shards", quiet=not progress) as report:
        return verify(os.fspath(store), report=report, **asdict(made(CheckOptions, options)))


@dataclass(frozen=True, kw_only=True)
class PreviewOptions:
    """Options: of a picture or page."""

    out: Path = option(
        Path("preview.png"),
        "Picture (.png, .pdf, .svg, .jpg) or page (.html) to write.",
        "FILE",
        parse=local_output,
    )
    overwrite: bool = overwrite_option()
    scenes: tuple[str, ...] = option(
        (),
        "Id of a scene to draw, or its end, or several. Default: some that represent the store.",
        "NAME",
        flag="--scene",
    )
    count: int = option(6, "Number of scenes to draw if no `scenes` are given.", "N", least=1)
    level: int | None = option(
        None,
        "Level to read. Default: as fine as the picture; for a page, the finest.",
        "LEVEL",
        least=1,
    )
    over: Path | None = option(
        None,
        "Image to draw below roads or polygons.",
        "IMAGE",
    )
    pixel_size: float | None = option(
        None,
        "Pixel size of the image `over` in metres, for features that are not georeferenced.",
        "METRES",
        above=0,
    )


@dataclass(frozen=True, kw_only=True)
class PreviewArgument:
    """Options: what is drawn."""

    source: str = argument(
        "Store, or its path or address; or a road network, or its file (.gpkg, .geojson, .parquet, "
        ".graphml, .osm); or a file of polygons (.gpkg, .geojson, "
        ".parquet), coloured by their field class.",
        "STORE|FEATURES",
    )


@with_options(options_of(PreviewArgument) + options_of(PreviewOptions))
def preview(
    source: Store | RoadNetwork | StrPath,
    out: StrPath = "preview.png",
    *,
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - fields of `PreviewOptions`
) -> Path:
    """Draw scenes of a store, a road network or polygons, or write an HTML page of a store.

    Parameters
    ----------
    **options
    progress
        Whether to show a progress bar for a page.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    UsageError
        There is no such scene, level or image, or the suffix is another one.
    StoreError
        The store cannot be opened, or a tile is damaged.
    SourceError
        The road network or the polygons cannot be read.
    """
    from geoprep.api.networks import RoadNetwork
    from geoprep.roads.names import READ_SUFFIXES

    given = made(PreviewOptions, {"out": out, **options})
    if isinstance(source, RoadNetwork) or os.fspath(source).endswith(READ_SUFFIXES):
        if given.scenes or given.level is not None:
            raise UsageError(
                "`scenes` and `level` are for stores. Omit them for a road network or polygons"
            )
        return _draw_features(source, given)
    if given.over is not None:
        formats = ", ".join(READ_SUFFIXES)
        raise UsageError(
            "over", f"{given.over} is for road networks and polygons ({formats}). Omit it"
        )
    from geoprep.executors.progress import counting_bar
    from geoprep.views.overview import preview as draw
    from geoprep.views.page import make_page

    opened = _opened(source)
    if given.out.suffix.lower() not in (".html", ".htm"):
        return draw(
            opened,
            given.out,
            scenes=list(given.scenes) or None,
            count=given.count,
            level=given.level,
            overwrite=given.overwrite,
        )
    if given.scenes:
        raise UsageError("scenes", "are for pictures. Omit them: a page shows every scene")
    with counting_bar("drawing scenes", quiet=not progress) as report:
        return make_page(
            opened, given.out, level=given.level, overwrite=given.overwrite, report=report
        )


def _draw_features(source: RoadNetwork | Store | StrPath, given: PreviewOptions) -> Path:
    """Draw a road network, or polygons."""
    from geoprep.api.networks import RoadNetwork, read_network
    from geoprep.views.network_preview import preview_network, preview_polygons

    check_outputs(given.out, inputs=[source, given.over], overwrite=given.overwrite)
    if given.over is not None and not given.over.exists():
        raise UsageError("over", f"{given.over}: no such file; check the path")
    if isinstance(source, RoadNetwork):
        network = source
    else:
        path = Path(os.fspath(source))
        try:
            network = read_network(path)
        except SourceError:
            with suppress(LabelError):
                return preview_polygons(
                    path, given.out, over=given.over, pixel_size_m=given.pixel_size
                )
            raise
    return preview_network(network.graph, given.out, over=given.over, pixel_size_m=given.pixel_size)


@dataclass(frozen=True, kw_only=True)
class ExportTarget:
    """Options: of the command alone."""

    scenes: tuple[str, ...] = option(
        (),
        "Scene id, or its end such as chip12, or all.",
        "NAME[,NAME]|all",
        flag="--scene --scenes",
    )
    by: Literal["scene", "tile"] | None = option(
        None,
        "Export the outlines of all scenes or tiles (.geojson, .gpkg) instead of pixels.",
        flag="--footprints",
    )
    out: Path = option(MISSING, "File NAME.tif, or a folder.", "PATH", parse=local_output)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options: of exported pixels."""

    split: Literal["train", "val", "test"] | None = option(
        None, "Export the scenes of a split, in place of those named."
    )
    overwrite: bool = overwrite_option()
    level: int | None = option(None, "Level to export. Default: the finest.", "LEVEL", least=1)
    what: Literal["both", "image", "label"] = option("both", "Arrays to export.")


@with_options(options_of(ExportOptions))
def export_scenes(
    store: Store | StrPath,
    scenes: str | Sequence[str],
    out: StrPath,
    **options: Any,  # noqa: ANN401 - fields of `ExportOptions`
) -> list[Path]:
    """Export scenes as Cloud Optimised GeoTIFFs, image and label.

    Parameters
    ----------
    store
        A store, or its path or address.
    scenes
        Id of a scene, or its end such as ``chip12``; several; or ``all``; none with ``split``.
    out
        File NAME.tif, or a folder for several scenes.
    **options

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    UsageError
        There is no such scene or level, or a scene has no pixels.
    StoreError
        The store cannot be opened, or a tile is damaged.
    """
    from geoprep.views.geotiff import export_scenes as export

    return export(_opened(store), scenes, Path(out), **asdict(made(ExportOptions, options)))


def export_footprints(
    store: Store | StrPath,
    out: StrPath,
    *,
    by: Literal["scene", "tile"] = "scene",
    overwrite: bool = False,
) -> Path:
    """Write the outlines of all scenes or tiles as GeoJSON or GeoPackage, in EPSG:4326.

    Parameters
    ----------
    store
        A store, or its path or address.
    out
        File NAME.geojson or NAME.gpkg.
    by
        Export the outlines of all scenes or tiles (.geojson, .gpkg) instead of pixels.
    overwrite
        Replace files that exist.

    Raises
    ------
    UsageError
        No scene is georeferenced, or the suffix is another one.
    StoreError
        The store cannot be opened.
    """
    from geoprep.views.footprints import export_footprints as export

    return export(_opened(store), Path(out), by=by, overwrite=overwrite)
