"""Read the part of a raster label under a scene and convert it to label bytes.

It has the pixels of its scene, or a georeference of its own: then the nearest pixel is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.warp import reproject
from rasterio.windows import Window

from geoprep.crs import LONLAT, is_geographic, turn_of
from geoprep.errors import GeoprepError, LabelError
from geoprep.grid import Grid, SceneWindow
from geoprep.imagery.values import ValueRaster, open_values
from geoprep.labels.raster_rules import RasterRule
from geoprep.labels.value_tables import MaskPixels
from geoprep.speed import NODATA

_MOST_PIXELS: Final = 16 << 20
"""Pixels of a mask to read at once; a mask with finer pixels than its image is read in rows."""
_SAME_PIXEL: Final = 0.01
_MOST_MASKS: Final = 8
"""Masks to read for a message."""
_CENTRAL: Final = 1024
"""Side of the centre of a mask that is read for a message."""
_MARGIN: Final = 2
"""Pixels of a mask read around a scene, as straight edges become curves in another CRS."""


def read_mask(
    label: str,
    rule: RasterRule,
    grid: Grid,
    window: SceneWindow,
    valid: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.uint8], dict[str, int]]:
    """Return the label of a window of a scene, uint8 (y, x), and remarks on it with counts.

    ``label`` is the address of a raster, ``grid`` that of the whole scene; pixels without a raster
    are nodata. Values are refused only where pixels of the image are ``valid`` (y, x).
    """
    with _opened(label) as mask:
        own = mask.raster.grid_in(grid.crs)
        if _pixel_by_pixel(own, grid, label):
            pixels = Window(window.col, window.row, window.width, window.height)
            return rule.label_bytes(_pixels(mask, pixels), valid)
        onto = grid.window(*window)
        if all(_window_under(own, ground) is None for ground in (grid, onto)):
            raise LabelError(
                f"{label}: does not overlap its image; the mask is at {_numbers(own.bounds)} in "
                f"{own.crs[:40]}, the image at {_numbers(grid.bounds)} in {grid.crs[:40]}. Check "
                "the CRS and transform of both"
            )
        used = np.ones(onto.shape, np.bool_) if valid is None else valid
        return _placed(mask, rule, onto, used)


def mask_values(*labels: str) -> str:
    """Return the values near the centres of masks as text, for messages."""
    values = sorted(set[tuple[float, ...]]().union(*map(_central_values, labels[:_MOST_MASKS])))
    shown = [",".join(f"{part:g}" for part in value) for value in values[:6]]
    *first, last = [*shown, "more"] if len(values) > len(shown) else shown
    return f"{', '.join(first)} and {last}" if first else last


def _central_values(label: str) -> set[tuple[float, ...]]:
    with _opened(label) as mask:
        read = mask.dataset.read(window=_central(mask))
    values = read.reshape(len(read), -1).T
    return set(map(tuple, np.unique(values, axis=0).tolist()))


def _central(mask: ValueRaster) -> Window:
    whole = mask.raster.grid
    height, width = min(_CENTRAL, whole.height), min(_CENTRAL, whole.width)
    return Window((whole.width - width) // 2, (whole.height - height) // 2, width, height)


def unlabelled_pixels(*labels: str, tags: bool = True, roads: bool = False) -> str:
    """Return how many pixels near the centre of a mask have no label, and why; "" if none have.

    ``tags``: whether nodata tags count. ``roads``: whether they count as in masks of roads.
    """
    for label in labels[:_MOST_MASKS]:
        with _opened(label) as mask:
            pixels = _pixels(mask, _central(mask))
        counted = pixels.road_tags(())[0] if roads else pixels.tags
        tagged = pixels.has(counted if tags else ())
        listed = ", ".join(f"{tag:g}" for tag in counted)
        clear = tagged & False if pixels.opaque is None else ~pixels.opaque
        for where, cause in ((tagged, f"nodata tag {listed}"), (clear, "alpha or mask band")):
            if where.any():
                return (
                    f"{where.sum():,} of {where.size:,} pixels of {PurePosixPath(label).name} have "
                    f"no label, by its {cause}; `label_nodata` none reads them as background"
                )
    return ""


def is_mask_georeferenced(label: str) -> bool:
    """Return whether a mask has a georeference; a transform alone counts, in its image's CRS."""
    with _opened(label) as mask:
        return mask.raster.grid_in(LONLAT).georeferenced


@contextmanager
def _opened(label: str) -> Iterator[ValueRaster]:
    try:
        with open_values(label) as mask:
            yield mask
    except LabelError:
        raise
    except GeoprepError as error:
        raise LabelError(
            f"{error} It is a label: remove it to build the scene as unlabelled."
        ) from error


def _pixel_by_pixel(own: Grid, grid: Grid, label: str) -> bool:
    """Return whether a mask has the pixels of its scene; False: another grid, georeferenced."""
    fits = own.shape == grid.shape
    if not (grid.georeferenced and own.georeferenced):
        if fits:
            return True
        which = "mask" if grid.georeferenced else "image"
        raise LabelError(
            f"{label}: has {own.width} x {own.height} pixels, its image has "
            f"{grid.width} x {grid.height}, and the {which} is not georeferenced: give both the "
            "same size, or georeference both"
        )
    same_crs = bool(CRS.from_user_input(own.crs) == CRS.from_user_input(grid.crs))
    return fits and same_crs and own.has_corners_of(grid, _SAME_PIXEL)


def _pixels(mask: ValueRaster, window: Window) -> MaskPixels:
    raster = mask.raster
    if any(band.dtype.startswith("complex") for band in raster.bands):
        raise LabelError(f"{raster.name}: holds complex values; give a mask of real numbers")
    palette = None
    nodata = raster.bands[0].nodata
    tags = () if nodata is None else (nodata,)
    if raster.palette is not None:
        palette = raster.colours[:, :3]
        tags += tuple(np.flatnonzero(raster.colours[:, 3] == 0).astype(float).tolist())
    return MaskPixels(*mask.read(window), palette, tags, raster.name)


def _window_under(own: Grid, grid: Grid) -> Window | None:
    """Return the window of a mask under a grid with a margin of two pixels; None if empty."""
    box = own.box_around(grid)
    if box is None:  # outside the domain of its CRS
        return None
    top, left = max(box[0] - _MARGIN, 0), max(box[1] - _MARGIN, 0)
    bottom, right = min(box[2] + _MARGIN, own.height), min(box[3] + _MARGIN, own.width)
    return Window(left, top, right - left, bottom - top) if top < bottom and left < right else None


def _numbers(bounds: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.6g}" for value in bounds)


def _placed(
    mask: ValueRaster, rule: RasterRule, grid: Grid, used: NDArray[np.bool_]
) -> tuple[NDArray[np.uint8], dict[str, int]]:
    """Return the label of a grid from the nearest pixels of a mask on another one, and remarks."""
    own = mask.raster.grid_in(grid.crs)
    window = _window_under(own, grid)
    if window is None:
        return np.full((grid.height, grid.width), NODATA, np.uint8), {}
    if window.width * window.height > _MOST_PIXELS and grid.height > 1:
        half, width = grid.height // 2, grid.width
        parts = grid.window(0, 0, half, width), grid.window(half, 0, grid.height - half, width)
        halves = [
            _placed(mask, rule, part, used_part)
            for part, used_part in zip(parts, np.split(used, [half]), strict=True)
        ]
        notes = sum((Counter(notes) for _, notes in halves), Counter[str]())
        return np.concatenate([codes for codes, _ in halves]), dict(notes)
    pixels = _pixels(mask, window)

    turn, xs = turn_of(own.crs), (*own.bounds[::2], *grid.bounds[::2])
    # Of a mask in metres GDAL reads only one side of 180 degrees of longitude.
    crosses = not is_geographic(own.crs) and 0 < turn / 2 < max(map(abs, xs))

    extra = {"SOURCE_EXTRA": max(window.width, window.height)} if crosses else {}

    def onto_grid(bands: NDArray[Any]) -> NDArray[Any]:
        out = np.zeros((len(bands), grid.height, grid.width), bands.dtype)
        for x in (0.0, -turn, turn) if crosses else (0.0,):
            part = np.zeros_like(out)
            reproject(
                bands,
                part,
                src_transform=Affine.translation(x, 0) * mask.dataset.window_transform(window),
                src_crs=own.crs,
                dst_transform=grid.transform,
                dst_crs=grid.crs,
                resampling=Resampling.nearest,
                **extra,
            )
            out += part  # 0 outside of the mask
        return out

    with suppress(LabelError):  # perhaps of a value outside the scene
        codes, remarks = rule.label_bytes(pixels)
        if not remarks:
            # Plus 1, since GDAL writes 0 where there is no mask: one byte in place of the values.
            return onto_grid(codes[None] + np.uint8(1))[0] - np.uint8(1), {}
    opaque = np.ones(pixels.values.shape[1:], bool) if pixels.opaque is None else pixels.opaque
    covered = opaque[None].astype(pixels.values.dtype) + 1  # 0: outside, 1: transparent, 2: opaque
    *values, covered = onto_grid(np.concatenate([pixels.values, covered]))
    pixels = replace(pixels, values=np.array(values), opaque=covered == 2)
    codes, remarks = rule.label_bytes(pixels, used)
    codes[covered == 0] = NODATA
    return codes, remarks
