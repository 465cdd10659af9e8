"""A scene of a store as GeoTIFF: what a GIS opens, with every pixel where the source had it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep import __version__
from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.palette import speed_colours
from geoprep.speed import BINNED_TABLE, CONTINUOUS_TABLE, NO_DATA
from geoprep.storage.files import replaced
from geoprep.store import Store
from geoprep.store.scenes import (
    find_scene,
    is_aligned,
    level_grid,
    read_image,
    read_speed,
    tiles_of,
)
from geoprep.store.schema import SPLITS
from geoprep.views.footprints import export_footprints

if TYPE_CHECKING:
    from rasterio.io import DatasetWriter

__all__ = ["export_footprints", "export_scene"]

What = Literal["both", "image", "speed"]
Coding = Literal["mph", "continuous", "binned"]

SUFFIXES = (".tif", ".tiff")
BLOCK = 256
COLOURS = ("red", "green", "blue")


def export_scene(
    store: Store,
    scene: str,
    out: str | Path,
    *,
    level: int | None = None,
    what: What = "both",
    coding: Coding = "mph",
) -> list[Path]:
    """Write a scene's image and speed mask as GeoTIFFs.

    Tiles are put back together without their overlap and padding, in the CRS of the source and
    with its affine (times a power of two at coarser levels). Each file appears under its name at
    once, or not at all.

    Parameters
    ----------
    scene
        Id, or the end of one, such as ``chip12``.
    out
        The image's file, or a folder to name it after the scene. The mask goes beside it:
        ``chip12.tif`` and ``chip12_speed.tif``; alone, it is written to ``out`` itself.
    level
        The finest by default.
    what
        ``image`` is uint8 with nodata 0; ``speed`` is uint8 with one band. Of an unlabelled scene,
        ``both`` is the image alone.
    coding
        Of the mask: ``mph`` (0 no road, 254 a road of unknown speed, nodata 255, with a colour
        table), or the grey values of
        the CRESI tools, ``continuous`` or ``binned``, which have no nodata: it becomes 0.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    UsageError
        No such scene, nothing in it to export, or ``out`` is no place for a GeoTIFF.
    StoreError
        No such level, or damaged pixels.
    """
    index = find_scene(store, scene)
    level = store.check_level(level)
    grid = _exportable(store, index, level, what)
    if coding != "mph" and what != "image" and not store.meta.has_speeds:
        raise UsageError(
            f"{store.location}: its roads have no speeds to export as {coding}: leave out --coding"
        )
    targets = _targets(Path(out), str(store.scenes.id[index]), what)
    if store.scenes.status[index] == "unlabelled":
        targets.pop("speed", None)
    tags = _tags(store, index, level)
    if "image" in targets:
        _write_image(targets["image"], read_image(store, index, level), grid, store, tags)
    if "speed" in targets:
        speed, has_speeds = read_speed(store, index, level), store.meta.has_speeds
        _write_speed(targets["speed"], speed, grid, coding, tags, has_speeds=has_speeds)
    return list(targets.values())


def _exportable(store: Store, index: int, level: int, what: What) -> Grid:
    """Return the scene's grid, or raise UsageError when a raster of it would be empty or wrong."""
    name, status = store.scenes.id[index], store.scenes.status[index]
    if status in ("skipped", "failed"):
        raise UsageError(
            f"{name} was {status} by the build ({store.scenes.reason[index]}): "
            f"{store.location} has no pixels of it"
        )
    if status == "unlabelled" and what == "speed":
        raise UsageError(f"{name} has no labels, so there is no speed mask: export its image")
    if not is_aligned(store, index, level):
        finest = store.meta.levels[0]
        raise UsageError(
            f"{name}: its tiles at level {level} lie half a pixel off one another (a tile was "
            f"shifted to end at the scene's edge), so no one raster holds them exactly: "
            f"use level {finest}"
        )
    grid = level_grid(store, index, level)
    if grid is None:
        raise UsageError(f"{name} has no georeference in {store.location}")
    return grid


def _targets(out: Path, scene: str, what: What) -> dict[str, Path]:
    """Return the file of every product that is wanted."""
    if out.is_dir():
        out = out / f"{scene}.tif"
    if out.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{out}: scenes are exported as GeoTIFF: call the file NAME.tif")
    if what == "both":
        return {"image": out, "speed": out.with_name(f"{out.stem}_speed{out.suffix}")}
    return {what: out}


def _tags(store: Store, index: int, level: int) -> dict[str, str]:
    split = store.tiles.split[tiles_of(store.tiles, index).start]
    return {
        "SCENE": str(store.scenes.id[index]),
        "SPLIT": SPLITS[split],
        "LEVEL": str(level),
        "TIFFTAG_SOFTWARE": f"geoprep {__version__}",
    }


def _write_image(
    path: Path, image: NDArray[np.uint8], grid: Grid, store: Store, tags: Mapping[str, str]
) -> None:
    from rasterio.enums import ColorInterp

    names = [band.lower() for band in store.meta.bands]
    with _create(path, grid, image.shape[2], 0) as raster:
        raster.colorinterp = [
            ColorInterp[name] if name in COLOURS else ColorInterp.gray for name in names
        ]
        raster.update_tags(**tags)
        raster.descriptions = store.meta.bands
        raster.write(np.moveaxis(image, 2, 0))


def _write_speed(
    path: Path,
    speed: NDArray[np.uint8],
    grid: Grid,
    coding: Coding,
    tags: Mapping[str, str],
    *,
    has_speeds: bool,
) -> None:
    tables = {"continuous": CONTINUOUS_TABLE, "binned": BINNED_TABLE}
    nodata = NO_DATA if coding == "mph" else None
    with _create(path, grid, 1, nodata) as raster:
        raster.update_tags(**tags, SPEED_CODING=coding)
        if coding == "mph":
            colours = speed_colours().tolist()
            raster.write_colormap(1, {i: (*rgb, 255) for i, rgb in enumerate(colours)})
            raster.units = ["mph" if has_speeds else ""]
        raster.descriptions = [f"speed, {coding}" if has_speeds else "road"]
        raster.write(tables[coding][speed] if coding in tables else speed, 1)


@contextmanager
def _create(path: Path, grid: Grid, bands: int, nodata: int | None) -> Iterator[DatasetWriter]:
    """Open a tiled, compressed uint8 GeoTIFF for writing; it appears when all went well.

    It is put together in memory: of a disk that fills up, GDAL tells the terminal, not us.
    """
    import rasterio

    profile: dict[str, Any] = {
        "driver": "GTiff",
        "dtype": "uint8",
        "height": grid.height,
        "width": grid.width,
        "count": bands,
        "crs": grid.crs,
        "transform": grid.transform,
        "nodata": nodata,
        "compress": "deflate",
        "predictor": 2 if bands > 1 else 1,
        "interleave": "pixel",
        "bigtiff": "if_safer",
    }
    if min(grid.height, grid.width) >= BLOCK:  # tiles of a smaller raster would be mostly padding
        profile |= {"tiled": True, "blockxsize": BLOCK, "blockysize": BLOCK}
    with replaced(path) as partial, rasterio.MemoryFile() as memory:
        with memory.open(**profile) as raster:
            yield raster
        partial.write_bytes(memory.getbuffer())
