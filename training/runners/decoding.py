"""Probabilities as bytes: the threshold, the bands of a prediction, the label of a model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoprep.compiled import compiled, compiled_sums
from geoprep.errors import UsageError
from geoprep.speed import MAX_MPH, NODATA
from training.checkpoint import ModelInfo

ROAD_BAND, SPEED_BAND = 0, 1
"""Indices of the bands of roads; the speed bins follow. Without speeds only the first."""

CLASS_BAND = 0
"""Index of the band of classes."""

DEFAULT_THRESHOLD = 0.5
"""Road probability threshold of a model without a validated one."""

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Part = tuple[int, int, int, int]
"""A rectangle: first row, last row, first column, last column; the last ones are excluded."""


def chosen_threshold(info: ModelInfo, wanted: float | None = None) -> float:
    """Return the requested threshold, else the best one of validation, else the default."""
    if info.has_classes and wanted is not None:
        raise UsageError("threshold", "is for models of roads: leave it out for classes")
    if wanted is not None:
        return wanted
    return DEFAULT_THRESHOLD if info.threshold is None else info.threshold


def label_bytes(probabilities: Tensor, info: ModelInfo, threshold: float) -> Tensor:
    """Return the speed or class band of probabilities (n, channel, y, x), uint8 (n, y, x)."""
    values = np.ascontiguousarray(probabilities.permute(0, 2, 3, 1).cpu().numpy())
    count, height, width, _ = values.shape
    valid, whole = np.ones((height, width), np.uint8), (0, height, 0, width)
    mph = np.array(info.class_mph, np.float32)
    bands = np.empty((count, 1 if info.has_classes else 2, height, width), np.uint8)
    for window, written in zip(values, bands, strict=True):
        if info.has_classes:
            class_bytes(window, whole, 0, valid, False, False, written)
        else:
            road_bytes(window, whole, 0, valid, mph, threshold, written)
    return torch.from_numpy(bands[:, CLASS_BAND if info.has_classes else SPEED_BAND])


@compiled
def road_bytes(
    values: Floats, part: Part, left: int, valid: Bytes, mph: Floats, threshold: float, out: Bytes
) -> int:
    """Write probabilities and speeds as bytes; return the number of pixels that are not finite.

    ``values`` are float32 (y, x, channel) with any road last; their ``part`` goes to the same rows
    of ``valid``, uint8 (y, x), 0 without imagery, and ``out``, uint8 (band, y, x), from column
    ``left`` on. The bands:

    1. the probability of any road times 255, rounded half up, at most 254;
    2. with speeds per class that of the most likely class, 1..253, or 0 for background;
    3. the other channels like the first, if ``out`` has bands for them.

    255 in every band without imagery or where a channel is not finite.
    """
    top, bottom, first, last = part
    road, has_speeds, lost = values.shape[2] - 1, len(mph) > 0, 0
    for y in range(top, bottom):
        pixels, bands = values[y, first:last], out[:, y, left + first : left + last]
        for x in range(len(pixels)):  # 1
            bands[0, x] = _scaled(pixels[x, road])
        for x in range(len(pixels) * has_speeds):  # 2
            bands[1, x] = _speed(pixels[x], mph) if pixels[x, road] >= threshold else 0
        for channel in range(len(bands) - 1 - has_speeds):  # 3
            for x in range(len(pixels)):
                bands[1 + has_speeds + channel, x] = _scaled(pixels[x, channel])
        lost += _hide(pixels, valid[y, left + first : left + last], bands)
    return lost


@compiled
def class_bytes(
    values: Floats,
    part: Part,
    left: int,
    valid: Bytes,
    confidence: bool,
    probabilities: bool,
    out: Bytes,
) -> int:
    """Write the most probable classes as bytes; return the number of pixels that are not finite.

    As `road_bytes`, of probabilities that add up to 1. The bands:

    1. the most probable class, the first of equal ones;
    2. on request the largest probability minus the second, as below;
    3. on request the probability of each class times 255, rounded half up, at most 254.
    """
    top, bottom, first, last = part
    lost = 0
    for y in range(top, bottom):
        pixels, bands = values[y, first:last], out[:, y, left + first : left + last]
        for x in range(len(pixels)):
            largest, second, best = np.float32(-1), np.float32(-1), 0
            for channel in range(pixels.shape[1]):
                value = pixels[x, channel]
                if value > largest:
                    largest, second, best = value, largest, channel
                elif value > second:
                    second = value
            bands[0, x] = best  # 1
            if confidence:  # 2
                bands[1, x] = _scaled(largest - max(second, np.float32(0)))
            for channel in range(pixels.shape[1] * probabilities):  # 3
                bands[1 + confidence + channel, x] = _scaled(pixels[x, channel])
        lost += _hide(pixels, valid[y, left + first : left + last], bands)
    return lost


def spread_bytes(
    values: Floats, part: Part, left: int, valid: Bytes, out: Bytes, convert: Callable[..., int]
) -> int:
    """Write bands as ``convert`` does, and as the last one the last channel times 255."""
    top, bottom, first, last = part
    rows, columns = slice(top, bottom), slice(left + first, left + last)
    pixels = values[rows, first:last]
    whole, others = (0, bottom - top, 0, last - first), np.ascontiguousarray(pixels[..., :-1])
    lost = convert(others, whole, left + first, valid[rows], out=out[:-1, rows])
    scaled = np.nan_to_num(pixels[..., -1] * 255 + 0.5).astype(np.uint8)
    hidden = out[0, rows, columns] == NODATA
    out[-1, rows, columns] = np.where(hidden, NODATA, scaled)
    return lost


@compiled
def _hide(pixels: Floats, valid: Bytes, bands: Bytes) -> int:
    """Write 255 where a row has no imagery or is not finite; return the number of the latter."""
    hidden = False
    for x in range(len(pixels)):
        hidden |= valid[x] == 0
    if not hidden and np.isfinite(_sum(pixels.reshape(-1))):
        return 0
    lost = 0
    for x in range(len(pixels)):
        total = np.float32(0)
        for channel in range(pixels.shape[1]):
            total += pixels[x, channel]
        finite = np.isfinite(total)
        lost += valid[x] != 0 and not finite
        if valid[x] == 0 or not finite:
            bands[:, x] = 255
    return lost


@compiled_sums
def _sum(values: Floats) -> np.float32:
    """Return the sum of many values, which is finite if all are."""
    total = np.float32(0)
    for i in range(len(values)):
        total += values[i]
    return total


@compiled
def _scaled(value: np.float32) -> np.uint8:
    """Return a probability times 255, rounded half up, 0 to 254."""
    value = value * np.float32(255) + np.float32(0.5)
    return np.uint8(np.int32(min(max(value, np.float32(0)), np.float32(254))))


@compiled
def _speed(pixel: Floats, class_mph: Floats) -> int:
    """Return the speed of the most likely class of a pixel, 1..253."""
    best = 0
    for channel in range(1, len(class_mph)):
        if pixel[channel] > pixel[best]:
            best = channel
    return int(min(max(class_mph[best] + 0.5, 1.0), MAX_MPH))
