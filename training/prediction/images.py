"""One image as it is to be predicted: which bands, on which grid, by which limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.crs import is_georeferenced
from geoprep.errors import ImageError, UsageError
from geoprep.plan import parse_rescale
from geoprep.storage import open_image
from training.checkpoint import ModelInfo
from training.prediction.predict_options import ReadingOptions, parse_bands

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

TOLERANCE = 0.1
"""How far an image's ground sample distance may be from the network's before it is resampled."""

_EXACT = 0.001


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image, opened once to see what it is.

    Attributes
    ----------
    address
        See `geoprep.storage.addresses`.
    bands
        1-based, in the network's order.
    dtype
        ``uint8`` or ``uint16``.
    lengths
        Rows and columns of the image.
    scales
        Pixels of the image per pixel of the network's grid, along y and x.
    height, width
        Of the network's grid, which is the image's own unless it was resampled.
    transform
        Of the network's grid, pixel -> CRS.
    crs
        WKT; None where the image has none.
    gsd_m
        Of the network's grid along x and y; None without a CRS.
    version
        Of the file, to see whether it has changed: its size and time, or an object's ETag.
    """

    address: str
    bands: tuple[int, ...]
    dtype: str
    lengths: tuple[int, int]
    scales: tuple[float, float]
    height: int
    width: int
    transform: Affine
    crs: str | None
    gsd_m: tuple[float, float] | None
    version: str

    @property
    def name(self) -> str:
        """The file's name, for messages."""
        return self.address.rpartition("/")[2]

    @property
    def resampled(self) -> bool:
        """Whether the network's grid is not the image's."""
        return self.scales != (1.0, 1.0)


def inspect_image(
    address: str, info: ModelInfo, options: ReadingOptions, version: str = ""
) -> ImageSource:
    """Return what there is to know of an image before its pixels are read.

    Parameters
    ----------
    address
        Of the image.
    info
        Of the network: bands, ground sample distance.
    options
        How to read it.
    version
        Of the object that the file is a copy of; else the file's own.

    Raises
    ------
    ImageError
        It cannot be read, has no place on the ground, lacks bands, or is of another dtype than
        the rescale rule takes.
    """
    with open_image(address) as dataset:
        bands = choose_bands(dataset, info.bands, parse_bands(options.bands))
        dtype = imagery.check_image(dataset, bands)
        if dtype != "uint8" and _rule(info, options.rescale) == "none":
            raise ImageError(
                f"{address} holds {dtype}, and the checkpoint was trained on uint8 left as it is: "
                "say how to make bytes of it, with --rescale scene or LO,HI"
            )
        lengths = int(dataset.height), int(dataset.width)
        placed = is_georeferenced(dataset.crs, dataset.transform)
        if not placed and options.allow_no_crs and options.pixel_size is None:
            height, width, scales, transform = *lengths, (1.0, 1.0), dataset.transform
            crs, gsd = None, None
        else:
            try:
                grid = imagery.grid_of(dataset, options.pixel_size)
            except ImageError as error:
                if placed:
                    raise
                raise ImageError(f"{error}; --allow-no-crs maps it as it is") from error
            ratios = _ratios(grid.gsd_m(), info.gsd_m, options.gsd)
            height, scale_y = _resampled(lengths[0], ratios[1], options.gsd)
            width, scale_x = _resampled(lengths[1], ratios[0], options.gsd)
            scales = scale_y, scale_x
            transform = grid.transform * Affine.scale(scale_x, scale_y)
            if not grid.georeferenced:  # nor is its prediction
                transform = Affine.identity()
            crs = dataset.crs.to_wkt() if grid.georeferenced else None
            x, y = grid.gsd_m()
            gsd = x * scale_x, y * scale_y
    version = version or file_version(address)
    return ImageSource(
        address, bands, dtype, lengths, scales, height, width, transform, crs, gsd, version
    )  # fmt: skip


def file_version(address: str) -> str:
    """Return size and time of change of a file."""
    if not Path(address).is_file():
        return ""  # a member of an archive
    status = Path(address).stat()
    return f"{status.st_size} bytes of {status.st_mtime_ns} ns"


def choose_bands(
    dataset: DatasetReader, wanted: Sequence[str], chosen: Sequence[int]
) -> tuple[int, ...]:
    """Return the 1-based bands that the network's are read from.

    Those asked for; else those with the network's names; else all, where there are as many.

    Raises
    ------
    ImageError
        The image has no such bands, or it cannot be told which.
    UsageError
        Another number of bands was asked for than the network has.
    """
    if chosen:
        if len(chosen) != len(wanted):
            raise UsageError(
                f"--bands names {len(chosen)} band(s); the checkpoint needs {len(wanted)}: "
                f"{', '.join(wanted)}"
            )
        return tuple(chosen)
    there = imagery.default_bands(dataset)
    names = [name.casefold() for name in imagery.band_names(dataset)]
    if all(name.casefold() in names for name in wanted):
        return tuple(names.index(name.casefold()) + 1 for name in wanted)
    if len(there) == len(wanted):
        return there
    listed = ", ".join(f"{i} ({names[i - 1]})" for i in there)
    fix = (
        f"pick them with --bands, for example --bands {','.join(map(str, there[: len(wanted)]))}"
        if len(there) > len(wanted)
        else "use an image with these bands, or a checkpoint trained on fewer"
    )
    raise ImageError(
        f"{dataset.name} has band(s) {listed}; the checkpoint needs {len(wanted)}: "
        f"{', '.join(wanted)}: {fix}"
    )


def _ratios(
    have: tuple[float, float], trained: tuple[float, float], wanted: str
) -> tuple[float, float]:
    """Return how many pixels of the image one of the network's is long, along x and y."""
    if wanted == "image":
        return 1.0, 1.0
    want = trained if wanted == "checkpoint" else (float(wanted), float(wanted))
    if not all(0 < metres < math.inf for metres in want):
        return 1.0, 1.0  # trained on images without a place on the ground
    return want[0] / have[0], want[1] / have[1]


def _resampled(length: int, ratio: float, wanted: str) -> tuple[int, float]:
    """Return how many pixels an axis gets, and how many of the image's each of them is long.

    A whole number of pixels is preferred, as between the levels of a store; the last pixel then
    may reach past the image.
    """
    whole = max(1, round(ratio))
    if abs(ratio / whole - 1) <= (TOLERANCE if wanted == "checkpoint" else _EXACT):
        return -(-length // whole), float(whole)
    count = max(1, round(length / ratio))
    return count, length / count


def known_limits(info: ModelInfo, rule: str) -> NDArray[np.float64] | None:
    """Return float64 (band, 2), the source values that become black and white, or None.

    Parameters
    ----------
    info
        Of the network; hold the limits where its scenes shared them.
    rule
        As `training.prediction.predict_options.ReadingOptions`.

    Returns
    -------
    ndarray or None
        None where the image's own percentiles are to be found, see `scene_limits`.
    """
    rule = _rule(info, rule)
    fixed = (0.0, 255.0) if rule == "none" else parse_rescale(rule)
    if fixed is not None:
        return np.tile(fixed, (len(info.bands), 1))
    return np.array(info.limits) if rule == "city" and info.limits else None


def _rule(info: ModelInfo, rule: str) -> str:
    return info.rescale if rule == "checkpoint" else rule


def limits_note(info: ModelInfo, rule: str) -> str:
    """Return what a person should know of the limits; empty where there is nothing."""
    if _rule(info, rule) != "city":
        return ""
    if info.limits:
        return "limits of the city that the network was trained on"
    return (
        "the network was trained on limits of whole cities, of which its checkpoint holds no "
        "single pair: each image's own are used (--rescale LO,HI gives others)"
    )
