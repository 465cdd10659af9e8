"""Read rasters of classes: predictions, exported labels, and masks of ground truth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.io import DatasetReader
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window

from geoprep.errors import ImageError, UsageError
from geoprep.grid import Grid, SceneWindow
from geoprep.imagery.description import Raster
from geoprep.imagery.headers import describe
from geoprep.imagery.samples import nearest_pixels
from geoprep.palette import class_colours
from geoprep.storage.inputs import open_image

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
    with open_image(str(path)) as dataset:
        text = dataset.tags().get("CLASS_NAMES", "[]")
    try:
        return tuple(map(str, json.loads(text)))
    except (ValueError, TypeError) as error:
        raise ImageError(f"{path}: its tag CLASS_NAMES is malformed: {text[:80]}") from error


def class_colors(path: Path, names: Sequence[str]) -> list[str]:
    """Return the colours ``#RRGGBB`` of the classes of a prediction or exported label."""
    with open_image(str(path)) as dataset:
        text = dataset.tags().get("CLASS_COLORS")
        if text is not None:
            return list(map(str, json.loads(text)))
        palette = Raster.of(dataset, str(path)).palette
    if palette is None:
        return class_colours(names)
    return ["#" + bytes(rgb).hex().upper() for *rgb, _ in palette[: len(names)]]


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

    if class_names(path):
        return read_prediction(path, names, like=like)
    rule = rule or _numbered(path, names)
    grid = like.grid if like else describe(str(path)).grid
    codes, _ = read_mask(str(path), rule, grid, SceneWindow(0, 0, *grid.shape))
    return ClassPixels(path, _renumbered(rule.names, names)[codes], grid)


def read_prediction(
    path: Path,
    names: Sequence[str],
    window: Window | None = None,
    like: ClassPixels | None = None,
) -> ClassPixels:
    """Return the classes of a prediction or exported label, as `read_classes` does, or a window."""
    own = class_names(path)
    with open_image(str(path)) as dataset:
        values = dataset.read(window=window) if like is None else _on_grid(path, dataset, like)
        bands = dict(zip(dataset.descriptions, values.astype(np.uint8), strict=True))
        grid = like.grid if like else Raster.of(dataset, str(path)).grid
        if values.dtype.kind not in "iu" or values[0].min() < 0 or values[0].max() > NODATA:
            raise ImageError(
                f"{path} has classes as {values.dtype} from {values[0].min()} to "
                f"{values[0].max()}: write them as bytes, 0 for {own[0]!r}, {NODATA} for none"
            )
        label = _renumbered(own, names)[values[0]]
        return ClassPixels(path, label, grid, bands.get("confidence"))


def _renumbered(own: Sequence[str], names: Sequence[str]) -> NDArray[np.uint8]:
    """Return uint8 (256,): the position in ``names`` of every class of a raster."""
    table = np.full(256, NODATA, np.uint8)
    table[: len(own)] = [names.index(name) if name in names else NODATA for name in own]
    return table


def _numbered(path: Path, names: Sequence[str]) -> ClassRaster:
    """Return the rule of a raster whose values are the numbers of classes; 255 and its tag none."""
    from geoprep.labels.raster_rules import ClassRaster

    with open_image(str(path)) as dataset:
        tags = {f"{value:g}" for value in dataset.nodatavals if value is not None}
    values = tuple((str(number),) for number in range(len(names)))
    nodata = tuple(sorted({str(NODATA), *tags} - {number for (number,) in values}))
    return ClassRaster(tuple(names), values, (), nodata=nodata)


def _on_grid(path: Path, dataset: DatasetReader, like: ClassPixels) -> NDArray[Any]:
    """Return the nearest pixels (band, y, x) on another raster's grid."""
    onto = like.grid
    if onto.georeferenced != bool(dataset.crs) and dataset.shape != onto.shape:
        raise ImageError(
            f"{path} and {like.path}: only one of them is georeferenced, and they have "
            f"{dataset.width} x {dataset.height} and {onto.width} x {onto.height} pixels"
        )
    if not (onto.georeferenced and dataset.crs):
        whole = Window(0, 0, dataset.width, dataset.height)
        return nearest_pixels(dataset.read, None, whole, onto.shape)
    fill = NODATA if dataset.nodata is None else dataset.nodata
    grid = {"crs": onto.crs, "transform": onto.transform, "nodata": fill}
    grid |= {"width": onto.width, "height": onto.height, "resampling": Resampling.nearest}
    with WarpedVRT(dataset, **grid) as warped:
        return np.asarray(warped.read())
