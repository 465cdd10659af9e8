"""Prepare pixels of a store for display: bands, brightness, orientation, reduced size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from geoprep.grid import Grid
from geoprep.labels.downsampling import majority
from geoprep.palette import NODATA_GREYS, speed_colours
from geoprep.speed import BACKGROUND, NODATA, UNKNOWN_SPEED
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import read_image, read_label, scene_shape
from geoprep.store.schema import StoreMeta

SUFFIXES = (".png", ".pdf", ".svg", ".jpg")
"""Files that matplotlib draws pictures into."""
DARK = 0.45
"""Pictures with a lower median brightness are brightened to this median."""
MOST_GAMMA = 2.0
CLASS_OPACITY = 0.4
"""Opacity of classes over an image, which stays visible."""
MOSTLY_VALID = 0.9
"""Examples with a smaller share of imagery are shown only where there are too few others."""
_SENTINEL_2 = {"b02": "blue", "b03": "green", "b04": "red"}
STRIPES = 24
"""Stripes of the nodata hatch along the shorter side of a picture."""
STRIP_TILES = 8
"""Rows of tiles in memory at once. Tiles at the edge of a strip are read twice."""


def stripes(shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Return 0 or 1 (y, x): stripes at 45 degrees, equally many on any size of picture."""
    y, x = np.ogrid[: shape[0], : shape[1]]
    return (y + x) // max(2, min(shape[:2]) // STRIPES) % 2


def hatch(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return uint8 (y, x, 3): how pixels without data are shown."""
    return np.array(NODATA_GREYS, np.uint8)[stripes(shape)]


def aspect_of(grid: Grid | None) -> float:
    """Return height divided by width on the ground, where pixels need not be square."""
    if grid is None:
        return 1.0
    gsd_x, gsd_y = grid.gsd_m()
    return grid.height * gsd_y / (grid.width * gsd_x)


def north_up(grid: Grid | None) -> tuple[slice, slice]:
    """Return slices of rows and columns that turn an image north up and west left."""
    if grid is None:
        return slice(None), slice(None)
    return (
        slice(None, None, -1 if grid.transform.e > 0 else 1),
        slice(None, None, -1 if grid.transform.a < 0 else 1),
    )


def natural_bands(names: Sequence[str]) -> tuple[int, ...]:
    """Return the bands to show: red, green and blue by name, else the first three, else one."""
    lower = [_SENTINEL_2.get(name.lower(), name.lower()) for name in names]
    if {"red", "green", "blue"} <= set(lower):
        return lower.index("red"), lower.index("green"), lower.index("blue")
    return (0, 1, 2) if len(names) > 2 else (0,)


def brightness_table(store: StoreReader) -> NDArray[np.uint8]:
    """Return uint8 (256), a brightness lookup table for all bands and scenes of the store.

    The middle 98 % of the training pixels fill the range; a gamma raises the median of dark ones.
    """
    counts = store.histogram_band[list(natural_bands(store.meta.bands)), 1:].sum(axis=0)
    below = np.cumsum(counts, dtype=np.float64)
    values = np.arange(256, dtype=np.float64)
    if not below[-1]:
        return values.astype(np.uint8)
    low, median, high = (
        1 + np.searchsorted(below, share * below[-1]) for share in (0.01, 0.5, 0.99)
    )
    scaled = np.clip((values - low) / max(1, high - low), 0, 1)
    gamma = 1.0
    if 0 < (middle := scaled[median]) < DARK:
        gamma = min(MOST_GAMMA, np.log(middle) / np.log(DARK))
    table: NDArray[np.uint8] = np.round(255 * scaled ** (1 / gamma)).astype(np.uint8)
    return table


def display_rgb(
    store: StoreReader, image: NDArray[np.uint8], brighten: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return uint8 (y, x, 3) of an image (y, x, band), mapped by a `brightness_table`."""
    rgb = brighten[image[..., list(natural_bands(store.meta.bands))]]
    return np.broadcast_to(rgb, (*rgb.shape[:2], 3))


def label_title(meta: StoreMeta) -> str:
    """Return what the labels of a store show: classes, the speed of roads, or roads alone."""
    return "classes" if meta.has_classes else "speed" if meta.has_speeds else "road"


def label_colours(store: StoreReader) -> NDArray[np.uint8]:
    """Return the colour of every label byte of a store, uint8 (256, 3)."""
    return store.classes.colour_table() if store.meta.has_classes else speed_colours()


def read_thinned(
    store: StoreReader, scene: int, level: int, step: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return a scene's image and label, reduced by ``step``, read in strips to save memory."""
    if step == 1:
        return read_image(store, scene, level), read_label(store, scene, level)
    height = scene_shape(store, scene, level)[0]
    strip = step * -(-STRIP_TILES * level // step)
    reduce = thinned_classes if store.meta.has_classes else thinned_speed
    images, labels = [], []
    for top in range(0, height, strip):
        rows = range(top, top + strip)
        images.append(thinned_image(read_image(store, scene, level, rows), step))
        labels.append(reduce(read_label(store, scene, level, rows), step))
    return np.concatenate(images), np.concatenate(labels)


def _blocks(values: NDArray[np.uint8], step: int) -> NDArray[np.uint8]:
    """Return square blocks, (y, step, x, step, ...), without incomplete blocks at the edges."""
    height, width = values.shape[0] // step, values.shape[1] // step
    cut = values[: height * step, : width * step]
    return cut.reshape(height, step, width, step, *values.shape[2:])


def thinned_image(image: NDArray[np.uint8], step: int) -> NDArray[np.uint8]:
    """Return the means of square blocks, uint8 (y, x, band), without incomplete blocks."""
    mean: NDArray[np.float64] = _blocks(image, step).mean(axis=(1, 3))
    return np.ceil(mean).astype(np.uint8)  # rounded up: a block with some imagery is not nodata


def thinned_speed(speed: NDArray[np.uint8], step: int) -> NDArray[np.uint8]:
    """Return the highest speed of each square block; nodata only if the whole block is."""
    blocks = _blocks(speed, step)
    known = np.where(blocks < UNKNOWN_SPEED, blocks, BACKGROUND)
    fastest: NDArray[np.uint8] = known.max(axis=(1, 3))
    fastest[(fastest == BACKGROUND) & (blocks == UNKNOWN_SPEED).any(axis=(1, 3))] = UNKNOWN_SPEED
    fastest[(blocks == NODATA).all(axis=(1, 3))] = NODATA
    return fastest


def thinned_classes(label: NDArray[np.uint8], step: int) -> NDArray[np.uint8]:
    """Return the most frequent class of each square block, without incomplete blocks."""
    height, width = label.shape[0] // step, label.shape[1] // step
    out = np.empty((height, width), np.uint8)
    ys, xs = (np.arange(length + 1) * float(step) for length in (height, width))
    majority(label, ys, xs, out, roads=False)
    return out
