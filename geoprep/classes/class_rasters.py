"""Read rasters of classes: predictions, exported labels, and masks of ground truth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rasterio.windows import Window

from geoprep.errors import ImageError, UsageError
from geoprep.grid import Grid, SceneWindow
from geoprep.imagery.description import Raster
from geoprep.imagery.headers import describe
from geoprep.imagery.values import ValueRaster, open_values
from geoprep.palette import class_colours

if TYPE_CHECKING:
    from geoprep.labels.raster_rules import ClassRaster

NODATA = 255
SUFFIXES = (".tif", ".tiff", ".png", ".jpg", ".jpeg", ".jp2", ".vrt")


@dataclass(frozen=True, slots=True)
class ClassPixels:
    """The classes of a raster."""

    path: Path
    label: NDArray[np.uint8]  # (y, x), number of the class; 255 without a class
    grid: Grid
    confidence: NDArray[np.uint8] | None = None  # (y, x), band of a prediction


def has_rasters(path: object) -> bool:
    """Return whether a path is a raster file, or a folder that holds some."""
    return isinstance(path, str | Path) and bool(raster_files(Path(path), required=False))


def raster_files(path: Path, *, required: bool = True) -> list[Path]:
    """Return a raster file, or those of a folder in the order of their names."""
    if required and not path.exists():
        raise UsageError(f"{path}: no such file or folder; check the path")
    given = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    files = [file for file in given if file.suffix.lower() in SUFFIXES and file.is_file()]
    # The overlay of a prediction, NAME.png beside NAME.tif, is a picture.
    stems = {file.stem for file in files if file.suffix.lower() in (".tif", ".tiff")}
    files = [file for file in files if file.suffix.lower() != ".png" or file.stem not in stems]
    if required and not files:
        raise UsageError(f"{path}: no raster of classes; give a file or a folder of them")
    return files


def class_names(path: Path) -> tuple[str, ...]:
    """Return the class names of a prediction or exported label; none for other rasters."""
    return _class_names(describe(str(path)))


def _class_names(raster: Raster) -> tuple[str, ...]:
    text = raster.tags.get("CLASS_NAMES", "[]")
    try:
        return tuple(map(str, json.loads(text)))
    except (ValueError, TypeError) as error:
        message = f"{raster.name}: its tag CLASS_NAMES is malformed: {text[:80]}"
        raise ImageError(message) from error


def class_colors(path: Path, names: Sequence[str]) -> list[str]:
    """Return the colours ``#RRGGBB`` of the classes of a prediction or exported label."""
    raster = describe(str(path))
    if "CLASS_COLORS" in raster.tags:
        return list(map(str, json.loads(raster.tags["CLASS_COLORS"])))
    if raster.palette is None:
        return class_colours(names)
    return ["#" + bytes(rgb).hex().upper() for *rgb, _ in raster.palette[: len(names)]]


def read_classes(
    path: Path,
    names: Sequence[str],
    rule: ClassRaster | None = None,
    like: ClassPixels | None = None,
) -> ClassPixels:
    """Return the classes of a raster: a prediction, or a mask that is read as a build reads it.

    ``names`` are the classes in the order of the result. Without a ``rule`` values of masks are
    numbers in that order. ``like`` is a raster on whose grid to read, with the nearest pixels.
    """
    from geoprep.labels.mask_files import read_mask  # imports compiled loops

    raster = describe(str(path))
    if _class_names(raster):
        return read_prediction(path, names, like=like)
    rule = rule or _numbered(raster, names)
    grid = like.grid if like else raster.grid
    codes, _ = read_mask(str(path), rule, grid, SceneWindow(0, 0, *grid.shape))
    return ClassPixels(path, _renumbered(rule.names, names)[codes], grid)


def read_prediction(
    path: Path,
    names: Sequence[str],
    window: Window | None = None,
    like: ClassPixels | None = None,
) -> ClassPixels:
    """Return the classes of a prediction or exported label, as `read_classes` does, or a window."""
    with open_values(str(path)) as source:
        values, known = source.read(window) if like is None else _on_grid(source, like)
        raster = source.raster
    own = _class_names(raster)
    if values.dtype.kind not in "iu" or values[0].min() < 0 or values[0].max() > NODATA:
        raise ImageError(
            f"{path} has classes as {values.dtype} from {values[0].min()} to "
            f"{values[0].max()}: write them as bytes, 0 for {own[0]!r}, {NODATA} for none"
        )
    values = values.astype(np.uint8)
    values[0] = _renumbered(own, names)[values[0]]
    if known is not None:
        values[:, ~known] = NODATA
    bands = dict(zip((band.description for band in raster.bands), values, strict=False))
    grid = like.grid if like else raster.grid
    return ClassPixels(path, values[0], grid, bands.get("confidence"))


def _renumbered(own: Sequence[str], names: Sequence[str]) -> NDArray[np.uint8]:
    """Return uint8 (256,): the position in ``names`` of every class of a raster."""
    table = np.full(256, NODATA, np.uint8)
    table[: len(own)] = [names.index(name) if name in names else NODATA for name in own]
    return table


def _numbered(raster: Raster, names: Sequence[str]) -> ClassRaster:
    """Return the rule of a raster whose values are the numbers of classes; 255 and its tag none."""
    from geoprep.labels.raster_rules import ClassRaster

    tags = {f"{band.nodata:g}" for band in raster.bands if band.nodata is not None}
    values = tuple((str(number),) for number in range(len(names)))
    nodata = tuple(sorted({str(NODATA), *tags} - {number for (number,) in values}))
    return ClassRaster(tuple(names), values, (), nodata=nodata)


def _on_grid(
    source: ValueRaster, like: ClassPixels
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return the nearest pixels (band, y, x) on another raster's grid, and where there are any."""
    onto, own = like.grid, source.raster.grid
    if onto.georeferenced and source.raster.crs:
        return source.on_grid(onto)
    if onto.georeferenced != bool(source.raster.crs) and own.shape != onto.shape:
        raise ImageError(
            f"{source.raster.name} and {like.path}: only one of them is georeferenced, and they "
            f"have {own.width} x {own.height} and {onto.width} x {onto.height} pixels"
        )
    return source.nearest(onto.shape), None
