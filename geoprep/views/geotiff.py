"""Export scenes of a store as GeoTIFF, on the pixel grid of the source image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from geoprep import __version__
from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.storage import make_folder
from geoprep.store import StoreReader, find_scene, is_aligned, level_grid, split_names
from geoprep.views.cog import Coding, SceneRaster, write_image, write_label

What = Literal["both", "image", "speed", "label"]

SUFFIXES = (".tif", ".tiff")
ALL = "all"


def export_scene(
    store: StoreReader,
    scene: str,
    out: str | Path,
    *,
    level: int | None = None,
    what: What = "both",
    coding: Coding = "mph",
) -> list[Path]:
    """Write a scene's image and label as Cloud Optimised GeoTIFFs, a few rows of tiles at a time.

    Tiles are joined without their overlap and padding, on the source's pixel grid.
    """
    index = find_scene(store, scene)
    level = store.check_level(level)
    what = _named(store, what)
    grid = _exportable(store, index, level, what)
    if coding != "mph" and what != "image" and not store.meta.has_speeds:
        raise UsageError(
            f"{store.location}: its labels have no speeds to export as {coding}. Omit `coding`"
        )
    label = store.meta.label_array
    name = str(store.scenes.id[index])
    targets = _targets(Path(out), name, what, label, plain=not grid.georeferenced)
    if store.scenes.status[index] == "unlabelled":
        targets.pop(label, None)
    raster = SceneRaster(store, index, level, grid, _tags(store, index, level))
    if "image" in targets:
        write_image(targets["image"], raster)
    if label in targets:
        write_label(targets[label], raster, coding)
    return list(targets.values())


def export_scenes(
    store: StoreReader,
    scenes: Sequence[str],
    out: str | Path,
    *,
    level: int | None = None,
    what: What = "both",
    coding: Coding = "mph",
) -> list[Path]:
    """Write several scenes, or all, into one folder."""
    names = _chosen(store, what) if ALL in scenes else list(scenes)
    if len(scenes) > 1 or ALL in scenes:
        if Path(out).suffix.lower() in (*SUFFIXES, ".png"):
            raise UsageError(f"{out} is a file. Give a folder for several scenes")
        make_folder(Path(out))
    written = [
        export_scene(store, name, out, level=level, what=what, coding=coding) for name in names
    ]
    return [path for paths in written for path in paths]


def _chosen(store: StoreReader, what: What) -> list[str]:
    """Return the ids of all scenes that have the requested pixels."""
    wanted = ("ok",) if what in ("speed", "label") else ("ok", "unlabelled")
    found = [str(one) for one in store.scenes.id[[s in wanted for s in store.scenes.status]]]
    if not found:
        raise UsageError(f"{store.location}: no scene has pixels to export")
    return found


def _named(store: StoreReader, what: What) -> What:
    """Return what to write, with the name of the label array for a label."""
    if what == "speed" and store.meta.has_classes:
        raise UsageError(f"{store.location}: its labels are classes, not speeds. Export its label")
    return "speed" if what == "label" and not store.meta.has_classes else what


def _exportable(store: StoreReader, index: int, level: int, what: What) -> Grid:
    """Return the scene's grid. Raise UsageError if its raster would be empty or inexact."""
    name, status = store.scenes.id[index], store.scenes.status[index]
    if status in ("skipped", "failed"):
        raise UsageError(
            f"{store.location} has no pixels of {name}: the scene was {status} by the build "
            f"({store.scenes.reason[index]})"
        )
    if status == "unlabelled" and what in ("speed", "label"):
        raise UsageError(f"{name} is unlabelled. Export its image")
    if not is_aligned(store, index, level):
        finest = store.meta.levels[0]
        raise UsageError(
            f"{name}: at level {level}, its tiles are offset from each other by half a pixel, "
            f"since a tile was shifted to end at the scene's edge. Export level {finest}"
        )
    grid = level_grid(store, index, level)
    if grid is None:
        raise UsageError(f"{name} has no grid in {store.location}")
    return grid


def _targets(out: Path, scene: str, what: What, label: str, *, plain: bool) -> dict[str, Path]:
    """Return the file of each product to write."""
    if out.is_dir():
        out = out / f"{scene}.tif"
    if out.suffix.lower() not in (*SUFFIXES, *([".png"] if plain else [])):
        or_png = " or, as the scene is not georeferenced, NAME.png" if plain else ""
        raise UsageError(f"{out}: scenes are exported as GeoTIFF. Name the file NAME.tif{or_png}")
    if what == "both":
        return {"image": out, label: out.with_name(f"{out.stem}_{label}{out.suffix}")}
    return {what: out}


def _tags(store: StoreReader, index: int, level: int) -> dict[str, str]:
    return {
        "SCENE": str(store.scenes.id[index]),
        "SPLIT": split_names(store, index),
        "LEVEL": str(level),
        "TIFFTAG_SOFTWARE": f"geoprep {__version__}",
    }
