"""A window of a raster -> uint8 (y, x, band): read, find nodata, resample, rescale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyproj.exceptions import ProjError
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import RasterioError
from rasterio.io import DatasetReader
from rasterio.windows import Window

from geoprep.errors import ImageError
from geoprep.grid import Grid
from geoprep.imagery import kernels

PERCENTILES = (2.0, 98.0)
"""Of CRESI's create_8bit_images: the shares of a band that become black and white."""

SUPPORTED = {"uint8": 256, "uint16": 65536}
_ALL_VALID = np.empty((0, 0), np.uint8)


@dataclass(frozen=True, slots=True)
class Pixels:
    """A window of an image in its own dtype.

    Attributes
    ----------
    values
        uint8 or uint16 (y, x, band), C-contiguous.
    valid
        uint8 (y, x), 1 where there is imagery; (0, 0) where all of it is valid.
    """

    values: NDArray[Any]
    valid: NDArray[np.uint8]

    @property
    def bands(self) -> tuple[int, ...]:
        """A tuple as long as there are bands, as the kernels want it."""
        count: int = self.values.shape[2]
        return (0,) * count

    @property
    def area(self) -> int:
        """Number of pixels."""
        return int(self.values.shape[0] * self.values.shape[1])

    @property
    def valid_pixels(self) -> int:
        """Number of pixels that hold imagery."""
        return int(np.count_nonzero(self.valid)) if self.valid.size else self.area


def default_bands(dataset: DatasetReader) -> tuple[int, ...]:
    """Return the 1-based bands that are imagery: all but alpha."""
    alpha = _alpha_band(dataset)
    return tuple(i for i in range(1, int(dataset.count) + 1) if i != alpha)


def grid_of(dataset: DatasetReader) -> Grid:
    """Return the grid of an image.

    Raises
    ------
    ImageError
        It has no CRS or no georeference, or one that leads nowhere.
    """
    if dataset.crs is None:
        raise ImageError(
            f"{dataset.name} has no CRS: give it one with `gdal_edit.py -a_srs EPSG:xxxx FILE`"
        )
    if dataset.transform.is_identity or dataset.transform.is_degenerate:
        raise ImageError(
            f"{dataset.name} has no georeference (affine {tuple(dataset.transform)[:6]}): "
            "give it one with `gdal_edit.py -a_ullr ULX ULY LRX LRY FILE`"
        )
    epsg = dataset.crs.to_epsg()
    crs = f"EPSG:{epsg}" if epsg else dataset.crs.to_wkt()
    grid = Grid(dataset.height, dataset.width, dataset.transform, crs)
    try:
        on_earth = all(0 < metres < np.inf for metres in grid.gsd_m())
    except ProjError:  # an engineering CRS, say, has no place on the ground
        on_earth = False
    if not on_earth:
        raise ImageError(
            f"{dataset.name} lies nowhere on Earth by its CRS and affine "
            f"{tuple(dataset.transform)[:6]}: check both with `gdalinfo FILE`, and mend them with "
            "`gdal_edit.py -a_srs EPSG:xxxx -a_ullr ULX ULY LRX LRY FILE`"
        )
    return grid


def check_image(dataset: DatasetReader, bands: Sequence[int]) -> str:
    """Return the dtype of the bands, or raise ImageError naming what cannot be used."""
    missing = [b for b in bands if b > dataset.count]
    if missing:
        raise ImageError(
            f"{dataset.name} has {dataset.count} band(s), not band {missing[0]}: "
            "choose with --bands"
        )
    dtypes = {dataset.dtypes[b - 1] for b in bands}
    if len(dtypes) != 1 or not dtypes <= set(SUPPORTED):
        raise ImageError(
            f"{dataset.name} holds {'/'.join(sorted(dtypes))}; geoprep reads uint8 and uint16: "
            "convert with `gdal_translate -ot UInt16 -scale LO HI 0 65535 IN OUT`"
        )
    return str(dtypes.pop())


def read_pixels(
    dataset: DatasetReader, bands: Sequence[int], window: Window | None = None
) -> Pixels:
    """Read bands and find what is valid.

    Validity comes from the alpha band, the mask, or the nodata value, in this order; where a file
    has none of them, a pixel that is 0 in every band read is nodata.

    Parameters
    ----------
    dataset
        An open image.
    bands
        1-based.
    window
        The whole image by default.

    Raises
    ------
    ImageError
        The file is truncated or otherwise unreadable.
    """
    height, width = (
        (dataset.height, dataset.width)
        if window is None
        else (int(window.height), int(window.width))
    )
    alpha = _alpha_band(dataset)
    wanted = [*bands, *([alpha] if alpha else [])]
    values = np.empty((height, width, len(wanted)), dataset.dtypes[bands[0] - 1])
    try:
        # Read into the final order of axes: GDAL fills pixel-interleaved buffers directly.
        dataset.read(wanted, out=values.transpose(2, 0, 1), window=window)
        valid = _valid(dataset, values, len(bands), window)
    except (RasterioError, OSError) as error:
        raise ImageError(f"{dataset.name} cannot be read: {_cause(error)}") from error
    return Pixels(np.ascontiguousarray(values[..., : len(bands)]), valid)


def _cause(error: BaseException) -> str:
    """Return the first line GDAL said, which rasterio hides behind "See previous exception"."""
    cause = error.__cause__ or error.__context__
    text = str(cause) if cause is not None else str(error)
    return (text.splitlines() or [type(error).__name__])[0]


def _alpha_band(dataset: DatasetReader) -> int | None:
    for i, meaning in enumerate(dataset.colorinterp, start=1):
        if meaning == ColorInterp.alpha:
            return i
    return None


def _valid(
    dataset: DatasetReader, values: NDArray[Any], bands: int, window: Window | None
) -> NDArray[np.uint8]:
    """Return uint8 (y, x), or (0, 0) when all is valid."""
    if values.shape[2] > bands:
        valid = values[..., bands] != 0
    elif MaskFlags.per_dataset in dataset.mask_flag_enums[0]:
        valid = dataset.read_masks(1, window=window) != 0
    else:
        return find_valid(values, bands, 0 if dataset.nodata is None else dataset.nodata)
    return _ALL_VALID if valid.all() else valid.astype(np.uint8, copy=False)


def find_valid(values: NDArray[Any], bands: int, nodata: float) -> NDArray[np.uint8]:
    """Return where a band is not ``nodata``.

    Parameters
    ----------
    values
        uint8 or uint16 (y, x, band), C-contiguous.
    bands
        How many of its bands are looked at, from the first.
    nodata
        The value that marks nodata in every band.

    Returns
    -------
    ndarray
        uint8 (y, x), 1 where there is imagery; (0, 0) when that is everywhere.
    """
    if not 0 <= nodata <= np.iinfo(values.dtype).max or nodata != int(nodata):
        return _ALL_VALID  # no pixel of this dtype can hold it; NaN ends here too
    found = np.empty(values.shape[:2], np.uint8)
    rows = values.reshape(len(values), -1)
    wanted = values.dtype.type(nodata)
    all_differ = kernels.any_differs(values, rows, (0,) * bands, wanted, found)
    return _ALL_VALID if all_differ else found


def count_source(pixels: Pixels) -> NDArray[np.int64]:
    """Return int64 (band, value): how often each value occurs among valid pixels."""
    size = SUPPORTED[pixels.values.dtype.name]
    counts = np.zeros((2, pixels.values.shape[2], size), np.int64)
    kernels.count_values(pixels.values, pixels.valid, pixels.bands, counts)
    total: NDArray[np.int64] = counts.sum(axis=0)
    return total


def count_mask(speed: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return int64 (256): how often each byte occurs in a C-contiguous mask."""
    counts = np.zeros((4, 256), np.int64)
    flat = speed.reshape(-1)
    whole = flat.size // 8 * 8
    kernels.count_bytes(flat[:whole].view(np.uint64), flat[whole:], counts)
    total: NDArray[np.int64] = counts.sum(axis=0)
    return total


def percentile_limits(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the values that become black and white, from a histogram.

    As CRESI's create_8bit_images: percentiles 2 and 98, linearly interpolated, of the values
    above 0, and a lower limit of at least 1. Equal to ``np.percentile`` over the pixels.

    Parameters
    ----------
    counts
        int64 (band, value).

    Returns
    -------
    ndarray
        float64 (band, 2). A band of one value gets limits one apart; an empty one 1 and 2.
    """
    limits = np.empty((len(counts), 2))
    for band, histogram in enumerate(counts):
        below = np.cumsum(histogram[1:])  # value v sits at index v - 1
        low, high = (_percentile(below, p) for p in PERCENTILES)
        low = max(1.0, low)
        limits[band] = low, high if high > low else low + 1.0
    return limits


def _percentile(below: NDArray[np.int64], percent: float) -> float:
    total = int(below[-1])
    if total == 0:
        return 1.0
    # NumPy's "linear" method, its order of operations included, so that not a bit differs.
    position = percent / 100 * (total - 1)
    index = int(np.floor(position))
    part = position - index
    a, b = (float(np.searchsorted(below, min(i, total - 1) + 1) + 1) for i in (index, index + 1))
    return b - (b - a) * (1 - part) if part >= 0.5 else a + (b - a) * part


def lookup_tables(limits: NDArray[np.float64], dtype: str) -> NDArray[np.uint8]:
    """Return uint8 (band, value), the byte for every value a source can hold.

    ``clip(floor((v - lo) * 255 / (hi - lo) + 0.5), 0, 255)`` as GDAL's ``-scale`` computes it,
    except that valid pixels never become 0, which is kept for nodata.

    Parameters
    ----------
    limits
        float64 (band, 2), from :func:`percentile_limits` or (0, 255) for bytes left as they are.
    dtype
        ``uint8`` or ``uint16``.
    """
    table = np.ones((len(limits), SUPPORTED[dtype]), np.uint8)
    for of_band, (low, high) in zip(table, limits.tolist(), strict=True):
        # All but the values between the limits are known: few of 65536, in an 11-bit image.
        first = min(max(int(np.floor(low)), 0), len(of_band))
        last = min(max(int(np.ceil(high)) + 1, first), len(of_band))
        values = np.arange(first, last, dtype=np.float64)
        scaled = np.floor((values - low) * 255 / (high - low) + 0.5)
        of_band[first:last] = np.clip(scaled, 1, 255)
        of_band[last:] = 255
    return table


def pixel_edges(
    start: int, count: int, step: int, scale: float, length: int
) -> NDArray[np.float64]:
    """Return where wanted pixels lie along one axis of the source.

    Parameters
    ----------
    start
        Where the first one begins, in pixels of the finest level.
    count
        How many are wanted.
    step
        Pixels of the finest level in each: 1, or 2, 4, ... at coarser levels.
    scale
        Source pixels per pixel of the finest level.
    length
        Pixels of the source; edges past it are moved onto it.

    Returns
    -------
    ndarray
        float64 (count + 1), in source pixels.
    """
    edges: NDArray[np.float64] = (start + step * np.arange(count + 1, dtype=np.float64)) * scale
    return np.minimum(edges, np.float64(length))


def render(
    pixels: Pixels,
    tables: NDArray[np.uint8],
    ys: NDArray[np.float64],
    xs: NDArray[np.float64],
    out: NDArray[np.uint8],
    out_valid: NDArray[np.uint8],
) -> bool:
    """Average the source under every wanted pixel and map it to bytes, once.

    Parameters
    ----------
    pixels
        The source, or the window of it that the edges refer to.
    tables
        uint8 (band, value), from :func:`lookup_tables`.
    ys, xs
        From :func:`pixel_edges`. Whole steps of one size take a faster path.
    out
        uint8 (y, x, band), at least as large as wanted; its upper left is written, 0 where there
        is no imagery and only there.
    out_valid
        uint8 (y, x), likewise; only written when the function returns False.

    Returns
    -------
    bool
        Whether the source has no nodata at all.
    """
    values, valid, bands = pixels.values, pixels.valid, pixels.bands
    factor = _whole_step(ys, xs)
    if factor:
        row, col = int(ys[0]), int(xs[0])
        window = row, col, int(ys[-1]) - row, int(xs[-1]) - col
        kernels.map_block_means(values, valid, bands, window, factor, tables, out, out_valid)
    else:
        kernels.map_area_means(values, valid, bands, ys, xs, tables, out, out_valid)
    return not valid.size


def _whole_step(ys: NDArray[np.float64], xs: NDArray[np.float64]) -> int:
    """Return the step between edges if it is one whole number, 0 otherwise.

    Only a last pixel cut short by the image's edge may differ.
    """
    step = ys[1] - ys[0]
    if step != np.floor(step) or xs[1] - xs[0] != step or ys[0] % 1 or xs[0] % 1 or step < 1:
        return 0
    regular = all((np.diff(edges[:-1]) == step).all() and edges[-1] % 1 == 0 for edges in (ys, xs))
    return int(step) if regular else 0


def band_names(dataset: DatasetReader) -> tuple[str, ...]:
    """Return a name for every band: its description, its colour, or ``band N``."""
    return tuple(
        str(description or (meaning.name if meaning in _COLOURS else f"band {i}"))
        for i, (description, meaning) in enumerate(
            zip(dataset.descriptions, dataset.colorinterp, strict=True), start=1
        )
    )


_COLOURS = {ColorInterp.red, ColorInterp.green, ColorInterp.blue}
