"""Read rasters of classes: predictions of ``training.predict``, and masks of ground truth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.errors import RasterioError
from rasterio.vrt import WarpedVRT

from geoprep.errors import ImageError, UsageError

NODATA = 255
SUFFIXES = (".tif", ".tiff", ".png", ".jpg", ".jpeg", ".jp2", ".vrt")


@dataclass(frozen=True, slots=True)
class ClassRaster:
    """The classes of a raster.

    Attributes
    ----------
    path
        The file.
    label
        uint8 (y, x), number of the class; 255 without a class.
    transform, crs
        Georeference as rasterio has it; ``crs`` is None without.
    confidence
        uint8 (y, x), band ``confidence`` of a prediction; None without.
    """

    path: Path
    label: NDArray[np.uint8]
    transform: Any
    crs: Any
    confidence: NDArray[np.uint8] | None = None


def has_rasters(path: object) -> bool:
    """Return whether a path is a raster file, or a folder that holds some."""
    if not isinstance(path, str | Path):
        return False
    return bool(raster_files(Path(path), required=False))


def raster_files(path: Path, *, required: bool = True) -> list[Path]:
    """Return a raster file, or those of a folder in the order of their names.

    Raises
    ------
    UsageError
        There is none.
    """
    found = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    files = [file for file in found if file.suffix.lower() in SUFFIXES and file.is_file()]
    # The overlay of a prediction, NAME.png beside NAME.tif, is a picture.
    stems = {file.stem for file in files if file.suffix.lower() in (".tif", ".tiff")}
    files = [file for file in files if file.suffix.lower() != ".png" or file.stem not in stems]
    if required and not files:
        raise UsageError(f"{path}: no raster of classes; give a file or a folder of them")
    return files


def class_names(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return names and colours of the classes of a prediction; none for other rasters.

    Raises
    ------
    ImageError
        The file cannot be read, or its tags are malformed.
    """
    try:
        with rasterio.open(path) as dataset:
            tags = dataset.tags()
        names, colours = (json.loads(tags.get(f"CLASS_{key}", "[]")) for key in ("NAMES", "COLORS"))
        return tuple(map(str, names)), tuple(map(str, colours))
    except (RasterioError, ValueError, TypeError) as error:
        raise ImageError(f"{path}: cannot be read as a prediction of classes: {error}") from error


def read_classes(
    path: Path,
    names: Sequence[str],
    classes: Sequence[Mapping[str, Any]] = (),
    like: ClassRaster | None = None,
) -> ClassRaster:
    """Return the classes of a raster.

    Parameters
    ----------
    path
        A prediction, or a mask.
    names
        Names of the classes in the order of the result.
    classes
        Classes of a mask: ``name`` and ``values``, as of `geoprep.labels.parse_classes`. Empty:
        values are numbers in the order of ``names``.
    like
        Raster on whose grid to read, with the nearest pixels; None: its own grid.

    Raises
    ------
    ImageError
        The file cannot be read, or only one of the two is georeferenced.
    """
    try:
        with rasterio.open(path) as dataset:
            own = _names_of(dataset)
            values, crs, transform = _on_grid(path, dataset, like)
            marks = dataset.dataset_mask() if like is None else None
            nodata, descriptions = dataset.nodata, list(dataset.descriptions)
    except RasterioError as error:
        raise ImageError(f"{path}: cannot be read: {error}") from error
    if own:
        table = np.full(256, NODATA, np.uint8)
        numbers = [names.index(name) if name in names else NODATA for name in own]
        table[: len(own)] = numbers
        label = table[values[0]]
    elif classes:
        label = _of_values(values, names, classes)
    else:
        label = np.where(values[0] < len(names), values[0], NODATA).astype(np.uint8)
    if nodata is not None:
        label[values[0] == nodata] = NODATA
    elif marks is not None and not classes:
        label[marks == 0] = NODATA
    confidence = None
    if "confidence" in descriptions:
        confidence = values[descriptions.index("confidence")].astype(np.uint8)
    return ClassRaster(path, label, transform, crs, confidence)


def _names_of(dataset: Any) -> list[str]:  # noqa: ANN401 - rasterio has no types
    return list(json.loads(dataset.tags().get("CLASS_NAMES", "[]")))


def _on_grid(
    path: Path,
    dataset: Any,  # noqa: ANN401 - as above
    like: ClassRaster | None,
) -> tuple[NDArray[Any], Any, Any]:
    """Return the pixels (band, y, x), CRS and transform, on another raster's grid if given."""
    if like is None:
        return dataset.read(), dataset.crs, dataset.transform
    height, width = like.label.shape
    if bool(like.crs) != bool(dataset.crs):
        raise ImageError(f"{path} and {like.path}: only one of them is georeferenced")
    if not like.crs:
        shape = (dataset.count, height, width)
        return dataset.read(out_shape=shape, resampling=Resampling.nearest), None, like.transform
    grid = {"crs": like.crs, "transform": like.transform, "width": width, "height": height}
    fill = NODATA if dataset.nodata is None else dataset.nodata
    options = {"resampling": Resampling.nearest, "nodata": fill}
    with WarpedVRT(dataset, **grid, **options) as warped:
        return warped.read(), like.crs, like.transform


def _of_values(
    values: NDArray[Any], names: Sequence[str], classes: Sequence[Mapping[str, Any]]
) -> NDArray[np.uint8]:
    """Return the classes of a mask by their values or colours."""
    label = np.full(values.shape[1:], NODATA, np.uint8)
    coloured = len(values) >= 3
    for one in classes:
        if one["name"] not in names:
            continue
        texts = [str(text) for text in one["values"]]
        if coloured and len(texts) == 3 and not any(text.startswith("#") for text in texts):
            texts = ["#" + bytes(int(text) for text in texts).hex()]
        for text in texts:
            if text.startswith("#") and coloured:
                colour = np.frombuffer(bytes.fromhex(text[1:]), np.uint8)
                found = (values[:3] == colour[:, None, None]).all(axis=0)
            elif text.startswith("#"):
                continue
            else:
                found = values[0] == float(text)
            label[found] = list(names).index(one["name"])
    return label
