"""Scenes of a store as GeoTIFF: what a GIS opens, with every pixel where the source had it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from geoprep import __version__
from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.storage import make_folder
from geoprep.store import Store, find_scene, is_aligned, level_grid, split_names
from geoprep.views.cog import Coding, SceneRaster, write_image, write_speed
from geoprep.views.footprints import export_footprints

__all__ = ["export_footprints", "export_scene", "export_scenes"]

What = Literal["both", "image", "speed"]

SUFFIXES = (".tif", ".tiff")
ALL = "all"


def export_scene(
    store: Store,
    scene: str,
    out: str | Path,
    *,
    level: int | None = None,
    what: What = "both",
    coding: Coding = "mph",
) -> list[Path]:
    """Write a scene's image and speed mask as cloud optimised GeoTIFFs.

    Tiles are put back together without their overlap and padding, in the CRS of the source and
    with its affine (times a power of two at coarser levels). Each file appears under its name at
    once, or not at all, and is written some rows of tiles at a time. A scene without a place on the
    ground has none in its files either; they may be PNG.

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
        No such scene, nothing in it to export, or ``out`` is no place for a raster.
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
    targets = _targets(Path(out), str(store.scenes.id[index]), what, plain=not grid.georeferenced)
    if store.scenes.status[index] == "unlabelled":
        targets.pop("speed", None)
    raster = SceneRaster(store, index, level, grid, _tags(store, index, level))
    if "image" in targets:
        write_image(targets["image"], raster)
    if "speed" in targets:
        write_speed(targets["speed"], raster, coding)
    return list(targets.values())


def export_scenes(
    store: Store,
    scenes: Sequence[str],
    out: str | Path,
    *,
    level: int | None = None,
    what: What = "both",
    coding: Coding = "mph",
) -> list[Path]:
    """Write several scenes, or all, each into files named after it.

    Parameters
    ----------
    scenes
        Ids, or ends of them; ``all`` stands for every scene that has what is asked for.
    out
        A folder, made when absent; of one scene that is named, as for :func:`export_scene`.
    level, what, coding
        As for :func:`export_scene`.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    UsageError
        As for :func:`export_scene`; or ``out`` names a file, and there are several scenes.
    StoreError
        No such level, or damaged pixels.
    """
    names = _chosen(store, what) if ALL in scenes else list(scenes)
    if len(scenes) > 1 or ALL in scenes:
        if Path(out).suffix.lower() in (*SUFFIXES, ".png"):
            raise UsageError(f"{out}: several scenes go into a folder: give one")
        make_folder(Path(out))
    written = [
        export_scene(store, name, out, level=level, what=what, coding=coding) for name in names
    ]
    return [path for paths in written for path in paths]


def _chosen(store: Store, what: What) -> list[str]:
    """Return the ids of all scenes that have what is asked for."""
    wanted = ("ok",) if what == "speed" else ("ok", "unlabelled")
    found = [str(one) for one in store.scenes.id[[s in wanted for s in store.scenes.status]]]
    if not found:
        raise UsageError(f"{store.location}: no scene has anything to export")
    return found


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


def _targets(out: Path, scene: str, what: What, *, plain: bool) -> dict[str, Path]:
    """Return the file of every product that is wanted."""
    if out.is_dir():
        out = out / f"{scene}.tif"
    if out.suffix.lower() not in (*SUFFIXES, *([".png"] if plain else [])):
        or_png = " or, without a place on the ground, NAME.png" if plain else ""
        raise UsageError(f"{out}: scenes are exported as GeoTIFF: call the file NAME.tif{or_png}")
    if what == "both":
        return {"image": out, "speed": out.with_name(f"{out.stem}_speed{out.suffix}")}
    return {what: out}


def _tags(store: Store, index: int, level: int) -> dict[str, str]:
    return {
        "SCENE": str(store.scenes.id[index]),
        "SPLIT": split_names(store, index),
        "LEVEL": str(level),
        "TIFFTAG_SOFTWARE": f"geoprep {__version__}",
    }
