"""Functions of stores: describe, check, draw and export."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from geoprep.errors import UsageError

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


def store_info(
    store: Store | StrPath,
    *,
    scenes: bool = False,
    batch_size: int = 8,
    crop: int = 256,
    workers: int = 4,
) -> dict[str, Any]:
    """Return facts about a store as plain JSON values.

    Parameters
    ----------
    store
        A store, or its path or address.
    scenes
        Add every scene, under ``scene_table``.
    batch_size
        Samples per batch, for the memory of a loader.
    crop
        Side of the crops in pixels, for the memory; larger than a tile: whole tiles.
    workers
        Worker threads of a loader, for the memory.

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
        machine; ``batch``, which each worker adds; ``loader``, a `loaders.BatchLoader`; and
        ``total``, of tiles and loader) and ``notes`` (remarks of the build, counted).

    Raises
    ------
    StoreError
        The store cannot be opened.
    """
    from geoprep.views.facts import info

    sizes = {"batch_size": batch_size, "crop": crop, "workers": workers}
    return info(_opened(store), scenes=scenes, **sizes)


def check_store(
    store: Store | StrPath, *, workers: int | None = None, progress: bool = True
) -> VerifyReport:
    """Check every file and chunk of a store against checksums and hashes.

    Parameters
    ----------
    store
        A store, or its path or address.
    workers
        Number of worker threads. Default: one per core.
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
        return verify(os.fspath(store), workers=workers, report=report)


def preview(
    source: Store | RoadNetwork | StrPath,
    out: StrPath = "preview.png",
    *,
    scenes: Sequence[str] = (),
    count: int = 6,
    level: int | None = None,
    over: StrPath | None = None,
    pixel_size: float | None = None,
    progress: bool = True,
) -> Path:
    """Draw scenes of a store, a road network or polygons, or write an HTML page of a store.

    Parameters
    ----------
    source
        A store, or its path or address; or a road network, or its file (.gpkg, .geojson, .graphml,
        .parquet, .osm, or a SpaceNet table .csv); or a file of polygons (.gpkg, .geojson,
        .parquet), coloured by their field ``class``.
    out
        Picture (.png, .pdf, .svg, .jpg) or page (.html) to write.
    scenes
        Id of a scene to draw, or its end, or several. Default: some that represent the store.
    count
        Number of scenes to draw if no `scenes` are given.
    level
        Level to read. Default: as fine as the picture; for a page, the finest.
    over
        Image to draw below roads or polygons; of a table, the image whose roads are drawn.
    pixel_size
        Pixel size of the image `over` in metres, for features that are not georeferenced.
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
    from geoprep.api.networks import RoadNetwork, draw_network
    from geoprep.roads.names import NETWORK_SUFFIXES, TABLE_SUFFIX

    path, drawn = Path(out), (*NETWORK_SUFFIXES, TABLE_SUFFIX)
    if isinstance(source, RoadNetwork) or os.fspath(source).endswith(drawn):
        if scenes or level is not None:
            raise UsageError(
                "`scenes` and `level` are for stores. Omit them for a road network or polygons"
            )
        return draw_network(source, path, over=over, pixel_size=pixel_size)
    if over is not None:
        formats = ", ".join(drawn)
        raise UsageError(f"`over` {over} is for road networks and polygons ({formats}). Omit it")
    from geoprep.executors.progress import counting_bar
    from geoprep.views.overview import preview as draw
    from geoprep.views.page import make_page

    opened = _opened(source)
    if path.suffix.lower() not in (".html", ".htm"):
        return draw(opened, path, scenes=list(scenes) or None, count=count, level=level)
    if scenes:
        raise UsageError("`scenes` are for pictures. Omit them: a page shows every scene")
    with counting_bar("drawing scenes", quiet=not progress) as report:
        return make_page(opened, path, level=level, report=report)


def export_scenes(
    store: Store | StrPath,
    scenes: str | Sequence[str],
    out: StrPath,
    *,
    level: int | None = None,
    what: Literal["both", "image", "speed", "label"] = "both",
    coding: Literal["mph", "continuous", "binned"] = "mph",
) -> list[Path]:
    """Export scenes as Cloud Optimised GeoTIFFs, image and label.

    Parameters
    ----------
    store
        A store, or its path or address.
    scenes
        Id of a scene, or its end such as ``chip12``; several; or ``all``.
    out
        File NAME.tif, or a folder for several scenes.
    level
        Level to export. Default: the finest.
    what
        Arrays to export; the label is speed or label.
    coding
        Values of the label: mph, or one of CRESI's two codings.

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

    return export(_opened(store), scenes, Path(out), level=level, what=what, coding=coding)


def export_footprints(
    store: Store | StrPath, out: StrPath, *, by: Literal["scene", "tile"] = "scene"
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

    Raises
    ------
    UsageError
        No scene is georeferenced, or the suffix is another one.
    StoreError
        The store cannot be opened.
    """
    from geoprep.views.footprints import export_footprints as export

    return export(_opened(store), Path(out), by=by)
