"""Read a window of an image in its own dtype, and find where it holds imagery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pyproj.exceptions import ProjError
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.io import DatasetReader
from rasterio.windows import Window

from geoprep.crs import is_georeferenced
from geoprep.errors import ImageError
from geoprep.grid import Grid, local_grid
from geoprep.imagery import kernels
from geoprep.imagery.black import without_specks
from geoprep.imagery.rescale import SIZES
from geoprep.imagery.wide import WIDE, find_usable, held_dtype, is_held_wide

Nodata = float | Literal["none"] | None
"""A value that marks nodata; ``none``: alpha, mask and nodata tag only; None: black too."""


@dataclass(frozen=True, slots=True)
class ImageWindow:
    """Decoded pixels of a window of an image."""

    values: NDArray[Any]  # (y, x, band), uint8, uint16, or floats of wide dtypes; C-contiguous
    valid: NDArray[np.uint8] | None = None  # (y, x), 1 where there is imagery; None: everywhere
    black: int = 0  # pixels that are nodata only because they are black

    @property
    def area(self) -> int:
        """Number of pixels."""
        return int(self.values.shape[0] * self.values.shape[1])

    @property
    def valid_pixels(self) -> int:
        """Number of pixels that hold imagery."""
        return self.area if self.valid is None else int(np.count_nonzero(self.valid))


def default_bands(dataset: DatasetReader) -> tuple[int, ...]:
    """Return the 1-based bands of imagery: all but alpha; red, green and blue of a palette."""
    alpha = _alpha_band(dataset)
    return tuple(i for i in range(1, _band_count(dataset) + 1) if i != alpha)


def grid_of(dataset: DatasetReader, pixel_size_m: float | None = None) -> Grid:
    """Return the grid of an image; one that is not georeferenced needs the pixel size in metres."""
    if not is_georeferenced(dataset.crs, dataset.transform):
        if pixel_size_m is not None:
            return local_grid(dataset.height, dataset.width, pixel_size_m)
        raise ImageError(f"{dataset.name} {_missing_georeference(dataset)}")
    epsg = dataset.crs.to_epsg()
    crs = f"EPSG:{epsg}" if epsg else dataset.crs.to_wkt()
    grid = Grid(dataset.height, dataset.width, dataset.transform, crs)
    try:
        on_earth = all(0 < metres < np.inf for metres in grid.gsd_m())
    except ProjError:  # the CRS of another planet, for one
        on_earth = False
    if not on_earth:
        raise ImageError(
            f"{dataset.name} is nowhere on Earth by its CRS and transform "
            f"{tuple(dataset.transform)[:6]}: check both with `gdalinfo FILE`, and correct them "
            "with `gdal_edit.py -a_srs EPSG:xxxx -a_ullr ULX ULY LRX LRY FILE`"
        )
    return grid


def _missing_georeference(dataset: DatasetReader) -> str:
    """Return what an image lacks to be georeferenced, and the command that adds it."""
    name, out = dataset.name, f"{PurePath(dataset.name).stem}_warped.tif"
    if dataset.gcps[0]:
        return (
            f"has {len(dataset.gcps[0])} ground control points and no transform: rectify it with "
            f"`gdalwarp -t_srs EPSG:4326 -r bilinear {name} {out}` and use the result"
        )
    if dataset.rpcs is not None:
        return (
            "has RPCs, the camera's model, and no transform: rectify it with "
            f"`gdalwarp -rpc -to RPC_DEM=DEM.tif -t_srs EPSG:4326 -r bilinear {name} {out}` (on "
            "flat ground without -to RPC_DEM=...) and use the result"
        )
    without = "or set `pixel_size`, the width of its pixels in metres, to use it as it is"
    if dataset.crs is None:
        return f"has no CRS: add one with `gdal_edit.py -a_srs EPSG:xxxx FILE`, {without}"
    if dataset.transform.is_identity or dataset.transform.is_degenerate:
        return (
            f"has no georeference (transform {tuple(dataset.transform)[:6]}): add it with "
            f"`gdal_edit.py -a_ullr ULX ULY LRX LRY FILE`, {without}"
        )
    return (
        f"has a CRS that is neither geographic nor projected ({dataset.crs.to_wkt()[:60]}): "
        f"set the right one with `gdal_edit.py -a_srs EPSG:xxxx FILE`, {without}"
    )


def check_image(dataset: DatasetReader, bands: Sequence[int]) -> str:
    """Return the dtype of the bands; raise ImageError if they cannot be read together."""
    count = _band_count(dataset)
    missing = [b for b in bands if b > count]
    if missing:
        raise ImageError(
            f"{dataset.name} has {count} band(s) and no band {missing[0]}: choose `bands`"
        )
    require_upright(dataset)
    dtypes = {"uint8"} if has_palette(dataset) else {dataset.dtypes[b - 1] for b in bands}
    if len(dtypes) == 1 and dtypes <= {*SIZES, *WIDE}:
        return str(dtypes.pop())
    held = "/".join(sorted(dtypes))
    if "complex" in held:
        raise ImageError(
            f"{dataset.name} holds {held} values: complex values have no brightness; convert them "
            "to a real image, such as the amplitude, first"
        )
    raise ImageError(
        f"{dataset.name} holds {held} in the bands to read, which must have one dtype: choose "
        "`bands`, or convert with gdal_translate -ot Float32 IN OUT"
    )


def require_upright(dataset: DatasetReader) -> None:
    """Raise ImageError for a photograph whose pixels viewers turn, so that others do not fit it."""
    turned = dataset.tags().get("EXIF_Orientation", "1")
    if turned not in ("0", "1") and dataset.transform.is_identity:
        raise ImageError(
            f"{dataset.name} is stored turned (EXIF orientation {turned}), other files upright: "
            "turn its pixels with `mogrify -auto-orient FILE`"
        )


def has_palette(dataset: DatasetReader) -> bool:
    """Return whether an image is one band of indexes into a colour table."""
    return bool(dataset.colorinterp[0] == ColorInterp.palette and dataset.dtypes[0] == "uint8")


def _band_count(dataset: DatasetReader) -> int:
    return 3 if has_palette(dataset) else int(dataset.count)


def read_pixels(
    dataset: DatasetReader,
    bands: Sequence[int],
    window: Window | None = None,
    *,
    nodata: Nodata = None,
    missing: NDArray[np.uint8] | None = None,
) -> ImageWindow:
    """Read 1-based bands and find the valid pixels.

    Validity comes from ``nodata`` if it is a number, else from the alpha band, the mask, or the
    nodata tag, in this order. Without any, black is nodata (:mod:`geoprep.imagery.black`); for a
    window ``missing``, uint8 (y, x), is 1 where. In wide dtypes one band of NaN or nodata suffices.
    """
    marker = None if nodata == "none" else nodata
    values, valid = _read_bands(dataset, bands, window, marker)
    black = 0
    if marker is None and not marks_nodata(dataset) and not valid.all():
        if nodata == "none":
            valid[...] = 1
        elif missing is not None:
            valid |= missing == 0
        elif window is None:
            valid = without_specks(valid)
        black = _count_black(values, valid)
    if is_held_wide(values):
        valid &= find_usable(values, _nodata_of(dataset, bands) if marker is None else marker)
    return ImageWindow(values, None if valid.all() else valid, black)


def _count_black(values: NDArray[Any], valid: NDArray[np.uint8]) -> int:
    """Return the number of pixels that are nodata because they are black; NaN is not black."""
    nodata = valid == 0
    if is_held_wide(values):
        nodata &= find_usable(values, None)
    return int(np.count_nonzero(nodata))


def marks_nodata(dataset: DatasetReader) -> bool:
    """Return whether a file marks nodata by an alpha band, a mask or a nodata tag."""
    masked = MaskFlags.per_dataset in dataset.mask_flag_enums[0]
    tagged = any(value is not None for value in dataset.nodatavals)
    clear = has_palette(dataset) and bool((colour_table(dataset)[:, 3] == 0).any())
    return _alpha_band(dataset) is not None or masked or tagged or clear


def _nodata_of(dataset: DatasetReader, bands: Sequence[int]) -> list[float | None]:
    """Return the nodata value of each band, which files such as VRTs have of their own."""
    if has_palette(dataset):
        return [None] * len(bands)
    return [dataset.nodatavals[band - 1] for band in bands]


def _read_bands(
    dataset: DatasetReader, bands: Sequence[int], window: Window | None, nodata: float | None
) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    alpha, palette = _alpha_band(dataset), has_palette(dataset)
    if palette:
        colours, indexes = colour_table(dataset), dataset.read(1, window=window)
        values = colours[:, [band - 1 for band in bands]][indexes]
    else:
        wanted = [*bands, *([alpha] if alpha else [])]
        dtype = held_dtype(dataset.dtypes[bands[0] - 1])
        values = np.empty((*_shape(dataset, window), len(wanted)), dtype)
        # Read into the final axis order: GDAL fills pixel-interleaved buffers directly.
        dataset.read(wanted, out=values.transpose(2, 0, 1), window=window)
    if nodata is not None:  # of a palette the colour, as in other images
        valid = find_valid(values, len(bands), nodata)
    elif alpha is not None:
        valid = (values[..., len(bands)] != 0).view(np.uint8)
    elif MaskFlags.per_dataset in dataset.mask_flag_enums[0]:
        valid = (dataset.read_masks(1, window=window) != 0).view(np.uint8)
    elif palette and marks_nodata(dataset):
        marked = np.isin(np.arange(256), [dataset.nodata]) | (colours[:, 3] == 0)
        valid = (~marked)[indexes].view(np.uint8)
    elif not palette and len(set(dataset.nodatavals)) > 1:
        valid = _differs(values, _nodata_of(dataset, bands))
    else:
        valid = find_valid(values, len(bands), 0 if dataset.nodata is None else dataset.nodata)
    return np.ascontiguousarray(values[..., : len(bands)]), valid


def _differs(values: NDArray[Any], nodata: Sequence[float | None]) -> NDArray[np.uint8]:
    """Return where any band differs from its own nodata value, as rasterio's dataset_mask."""
    found = np.ones(values.shape[:2], np.bool_)
    if None not in nodata:  # a band without one is valid everywhere
        found = np.logical_or.reduce([values[..., k] != one for k, one in enumerate(nodata)])
    return found.view(np.uint8)


def colour_table(dataset: DatasetReader) -> NDArray[np.uint8]:
    """Return the red, green, blue and alpha of every index of a palette, uint8 (256, 4)."""
    colours = np.full((256, 4), (0, 0, 0, 255), np.uint8)
    for index, colour in dataset.colormap(1).items():
        colours[index] = colour
    return colours


def _shape(dataset: DatasetReader, window: Window | None) -> tuple[int, int]:
    if window is None:
        return int(dataset.height), int(dataset.width)
    return int(window.height), int(window.width)


def _alpha_band(dataset: DatasetReader) -> int | None:
    for i, meaning in enumerate(dataset.colorinterp, start=1):
        if meaning == ColorInterp.alpha:
            return i
    return None


def find_valid(values: NDArray[Any], bands: int, nodata: float) -> NDArray[np.uint8]:
    """Return uint8 (y, x), 1 where any of the first bands of (y, x, band) differs from a value."""
    if is_held_wide(values):
        nodata = float(values.dtype.type(nodata))
        differs = (values[..., :bands] != nodata) & np.isfinite(values[..., :bands])
        anywhere: NDArray[np.uint8] = differs.any(axis=2).view(np.uint8)
        return anywhere
    if not 0 <= nodata <= np.iinfo(values.dtype).max or nodata != int(nodata):
        return np.ones(values.shape[:2], np.uint8)  # the dtype cannot hold it, as NaN
    found = np.empty(values.shape[:2], np.uint8)
    rows = values.reshape(len(values), -1)
    kernels.any_differs(values, rows, (0,) * bands, values.dtype.type(nodata), found)
    return found


def band_names(dataset: DatasetReader) -> tuple[str, ...]:
    """Return the name of every band: its description, its colour, or ``band N``."""
    if has_palette(dataset):
        return "red", "green", "blue"
    return tuple(
        str(description or (meaning.name if meaning in _COLOURS else f"band {i}"))
        for i, (description, meaning) in enumerate(
            zip(dataset.descriptions, dataset.colorinterp, strict=True), start=1
        )
    )


_COLOURS = {ColorInterp.red, ColorInterp.green, ColorInterp.blue}
