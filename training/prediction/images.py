"""How one image is predicted: its bands, its pixel grid, and the limits of its rescaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.build import parse_nodata, parse_rescale
from geoprep.errors import ImageError, UsageError
from geoprep.storage import shown_address, split_address
from training.checkpoint import ModelInfo
from training.prediction.predict_options import ImageOptions, parse_bands

TOLERANCE = 0.1
"""Relative difference from the model's pixel size above which an image is resampled."""

_EXACT = 0.001


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Size, bands and grid of an image, as read from its header.

    The model's grid has ``height`` x ``width`` pixels, which differ from the image's if it is
    resampled.
    """

    address: str
    bands: tuple[int, ...]  # 1-based, in the order of the model's
    dtype: str
    lengths: tuple[int, int]  # rows and columns of the image
    scales: tuple[float, float]  # pixels of the image per pixel of the model's grid, y and x
    height: int
    width: int
    transform: Affine  # of the model's grid
    crs: str | None  # WKT; None if the image is not georeferenced
    gsd_m: tuple[float, float] | None  # of the model's grid, x and y; None if it is unknown
    version: str  # changes with the file: size and modification time, or the ETag of an object
    nodata: imagery.Nodata = None  # which pixels are nodata, as a build takes it
    black_decides: bool = False  # on nodata, at the edge: the file states none

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.address.rpartition("/")[2]

    @property
    def resampled(self) -> bool:
        """Whether the model's grid differs from the image's."""
        return self.scales != (1.0, 1.0)


def inspect_image(
    address: str, info: ModelInfo, options: ImageOptions, version: str = ""
) -> ImageSource:
    """Return the bands, grid and dtype of an image; ``version`` is that of a copied object."""
    raster = imagery.describe(address)
    bands = choose_bands(raster, info.bands, parse_bands(options.bands))
    dtype = raster.dtype_of(bands)
    if dtype != "uint8" and _rule(info, options.rescale) == "none":
        raise ImageError(
            f"{shown_address(address)} is {dtype}, but the model was trained on uint8 without "
            "rescaling: use `rescale` scene, or LO,HI, to map its values to bytes"
        )
    lengths = raster.grid.shape
    placed = raster.grid.georeferenced
    if not placed and options.allow_no_crs and options.pixel_size is None:
        height, width, scales, transform = *lengths, (1.0, 1.0), raster.grid.transform
        crs, gsd = None, None
    else:
        try:
            grid = raster.placed(options.pixel_size)
        except ImageError as error:
            if placed:
                raise
            raise ImageError(
                f"{error}; or use `allow_no_crs` to predict it pixel by pixel"
            ) from error
        (x, y), (trained_x, trained_y) = grid.gsd_m(), info.gsd_m
        height, scale_y = _resampled(lengths[0], y, trained_y, options.gsd)
        width, scale_x = _resampled(lengths[1], x, trained_x, options.gsd)
        scales = scale_y, scale_x
        transform = grid.scaled(height, width, scale_y, scale_x).transform
        if not grid.georeferenced:  # nor is its prediction
            transform = Affine.identity()
        crs = raster.crs if grid.georeferenced else None
        gsd = x * scale_x, y * scale_y
    version = version or file_version(address)
    nodata = info.nodata if options.nodata == "checkpoint" else parse_nodata(options.nodata)
    return ImageSource(
        address, bands, dtype, lengths, scales, height, width, transform, crs, gsd, version,
        nodata, nodata is None and not raster.states_nodata,
    )  # fmt: skip


def file_version(address: str) -> str:
    """Return sizes and modification times of local files; empty for a member of an archive."""
    known = [Path(one).stat() for one in split_address(address) if Path(one).is_file()]
    return ", ".join(f"{one.st_size} bytes of {one.st_mtime_ns} ns" for one in known)


def choose_bands(
    raster: imagery.Raster, wanted: Sequence[str], chosen: Sequence[int]
) -> tuple[int, ...]:
    """Return the 1-based bands: the chosen ones, else those of the model's names, else all."""
    if chosen:
        if len(chosen) != len(wanted):
            raise UsageError(
                f"`bands` names {len(chosen)} band(s), but the model needs {len(wanted)}: "
                f"{', '.join(wanted)}"
            )
        return tuple(chosen)
    there = raster.default_bands
    names = [name.casefold() for name in raster.band_names]
    if all(name.casefold() in names for name in wanted):
        return tuple(names.index(name.casefold()) + 1 for name in wanted)
    if len(there) == len(wanted):
        return there
    listed = ", ".join(f"{i} ({names[i - 1]})" for i in there)
    fix = (
        f"choose them with `bands`, for example {','.join(map(str, there[: len(wanted)]))}"
        if len(there) > len(wanted)
        else "use an image with these bands, or a model trained on fewer"
    )
    raise ImageError(
        f"{raster.name} has band(s) {listed}, but the model needs {len(wanted)}: "
        f"{', '.join(wanted)}. {fix[0].upper()}{fix[1:]}"
    )


def _resampled(length: int, have: float, trained: float, wanted: str) -> tuple[int, float]:
    """Return the pixels of the model's axis, and their length in pixels of the image.

    Pixels of the image have ``have`` metres. A whole length is preferred, as between the levels of
    a store; the last pixel may then extend beyond the image.
    """
    want = have if wanted == "image" else trained if wanted == "checkpoint" else float(wanted)
    ratio = want / have if 0 < want < math.inf else 1.0  # trained on images of unknown pixel size
    whole = max(1, round(ratio))
    if abs(ratio / whole - 1) <= (TOLERANCE if wanted == "checkpoint" else _EXACT):
        return -(-length // whole), float(whole)
    count = max(1, round(length / ratio))
    return count, length / count


def known_limits(info: ModelInfo, rule: str) -> NDArray[np.float64] | None:
    """Return float64 (band, 2), the values that become black and white; None: the image's own."""
    rule = _rule(info, rule)
    fixed = parse_rescale(rule)
    if fixed is not None:
        return np.tile(fixed, (len(info.bands), 1))
    return np.array(info.limits) if rule == "city" and info.limits else None


def _rule(info: ModelInfo, rule: str) -> str:
    return info.rescale if rule == "checkpoint" else rule


def limits_note(info: ModelInfo, rule: str) -> str:
    """Return a line for the user if limits of a city are not known; else an empty one."""
    if _rule(info, rule) != "city" or info.limits:
        return ""
    return (
        "rescaling: the model was trained on several cities with different limits, so each image's "
        "own limits are used (`rescale` LO,HI sets others)"
    )
