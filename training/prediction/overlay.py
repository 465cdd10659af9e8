"""A picture of a map over its image, small enough to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray

from geoprep.imagery import Pixels, count_source, lookup_tables, percentile_limits
from geoprep.speed import NO_DATA, NO_ROAD
from geoprep.storage import open_image, replaced
from geoprep.views import NODATA_GREYS, natural_bands, speed_colours
from training.prediction.source import Source, bounded_cache

LONGEST = 2048
"""Pixels of the longer side of an overlay at most."""

_OPACITY = 0.85
_DIMMED = 0.7
_ANY_ROAD_MPH = 35
"""Whose colour a road has in a map that tells no speeds."""


def write_overlay(source: Source, target: Path, names: tuple[str, ...], threshold: float) -> Path:
    """Write ``NAME.png`` beside a map: its roads over the image, coloured by speed.

    Parameters
    ----------
    source
        The image.
    target
        Its map.
    names
        Of the image's bands that the network was given, to choose natural colours by.
    threshold
        Least probability of a road, for maps without speeds.

    Returns
    -------
    Path
        The picture.
    """
    import matplotlib.image

    speed = _speeds(target, threshold)
    picture = _brightened(source, names, speed.shape) * _DIMMED
    road = (speed != NO_ROAD) & (speed != NO_DATA)
    colours = speed_colours()[speed]
    picture[road] += (colours[road] - picture[road]) * _OPACITY
    picture[speed == NO_DATA] = NODATA_GREYS[0]
    path = target.with_suffix(".png")
    with replaced(path) as partial:
        matplotlib.image.imsave(partial, picture.round().astype(np.uint8))
    return path


def _speeds(target: Path, threshold: float) -> NDArray[np.uint8]:
    """Return uint8 (y, x), mph; from an overview, where the map is large."""
    with rasterio.open(target) as dataset:
        band, shape = dataset.count, _shrunk(dataset.height, dataset.width)
        has_speed = dataset.descriptions[band - 1] == "speed"
        values: NDArray[np.uint8] = dataset.read(band, out_shape=shape)
    if has_speed:
        return values
    roads = np.where(values >= threshold * 255, _ANY_ROAD_MPH, NO_ROAD).astype(np.uint8)
    roads[values == NO_DATA] = NO_DATA
    return roads


def _brightened(
    source: Source, names: tuple[str, ...], shape: tuple[int, ...]
) -> NDArray[np.float32]:
    """Return float32 (y, x, 3), the image in natural colours between its own percentiles."""
    shown = natural_bands(names)
    with bounded_cache(), open_image(source.address) as dataset:
        read: Any = dataset.read([source.bands[i] for i in shown], out_shape=(len(shown), *shape))
    values = np.ascontiguousarray(np.moveaxis(read, 0, 2))
    counts = count_source(Pixels(values, np.empty((0, 0), np.uint8)))
    tables = lookup_tables(percentile_limits(counts), source.dtype)
    bands = [table[values[..., i]] for i, table in enumerate(tables)]
    return np.stack(bands * (3 // len(bands)), axis=-1).astype(np.float32)


def _shrunk(height: int, width: int) -> tuple[int, int]:
    scale = max(1.0, max(height, width) / LONGEST)
    return max(1, round(height / scale)), max(1, round(width / scale))
