"""Loops over predicted pixels: from sums to bytes, and from one level of overviews to the next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled
from geoprep.speed import NO_DATA

HIGHEST = NO_DATA - 1
"""The byte of a probability of 254.5/255 and more: 255 is no data in every band."""


Part = tuple[int, int, int, int]
"""First and last row and first and last column of a rectangle; the last ones are not in it."""


@compiled
def to_bytes(
    values: NDArray[np.float32],
    part: Part,
    left: int,
    valid: NDArray[np.uint8],
    class_mph: NDArray[np.float32],
    threshold: float,
    out: NDArray[np.uint8],
) -> None:
    """Write probabilities and the expected speed as bytes.

    Arrays are whole and contiguous, which the compiler needs to know to vectorise.

    Parameters
    ----------
    values
        float32 (y, x, channel), probabilities; the last channel is any road.
    part
        Of ``values``, what is to be written.
    left
        Column of ``valid`` and ``out`` at which ``values`` begin; rows are the same.
    valid
        uint8 (y, x), 0 where there is no imagery.
    class_mph
        float32 (class), the speed of each of the first channels; empty for no speed band.
    threshold
        Least probability of any road for a speed.
    out
        uint8 (band, y, x), written: channels times 255, rounded half up, at most 254; then the
        mean of ``class_mph`` weighted by the classes' probabilities, 1..254, or 0 where there is
        no road. 255 everywhere where there is no imagery.
    """
    top, bottom, first, last = part
    channels, classes, width = values.shape[2], class_mph.shape[0], last - first
    begin = left + first
    scaled = np.empty(width * channels, np.uint8)
    for y in range(top, bottom):
        # In two steps, of which the compiler vectorises the first: four times as fast as in one.
        row = values[y].reshape(-1)[first * channels : last * channels]
        for i in range(width * channels):
            value = row[i] * np.float32(255) + np.float32(0.5)
            scaled[i] = np.uint8(np.int32(min(max(value, np.float32(0)), np.float32(254))))
        for k in range(channels):
            for x in range(width):
                out[k, y, begin + x] = scaled[x * channels + k]
        for x in range(width * (classes > 0)):
            speed = 0
            if row[x * channels + channels - 1] >= threshold:
                weight, mph = 1e-12, 0.0
                for k in range(classes):
                    weight += float(row[x * channels + k])
                    mph += float(row[x * channels + k]) * float(class_mph[k])
                speed = int(min(max(mph / weight + 0.5, 1.0), 254.0))
            out[channels, y, begin + x] = speed
        for x in range(begin, begin + width):
            if valid[y, x] == 0:
                for k in range(out.shape[0]):
                    out[k, y, x] = 255


@compiled
def fade(
    window: NDArray[np.float32],
    part: Part,
    above: int,
    left: int,
    down: NDArray[np.float32],
    across: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    """Add a part of a window to the sums, by its weights.

    Parameters
    ----------
    window
        float32 (y, x, channel).
    part
        Of it.
    above
        Row of the window at which ``sums`` begin.
    left
        Column of ``sums`` at which the window begins; may be negative.
    down, across
        float32 (y) and (x) of the window, whose products are the weights.
    sums
        float32 (y, x, channel).
    """
    top, bottom, first, last = part
    for y in range(top, bottom):
        for x in range(first, last):
            weight = down[y] * across[x]
            for k in range(window.shape[2]):
                sums[y - above, left + x, k] += weight * window[y, x, k]


@compiled
def halve(fine: NDArray[np.uint8], roads_only: bool, coarse: NDArray[np.uint8]) -> None:
    """Average blocks of 2 x 2 pixels, no data (255) left out.

    Parameters
    ----------
    fine
        uint8 (2 y, 2 x or more), 255 beyond the image.
    roads_only
        Whether zeros (no road) are left out of the mean too, so that roads are seen from afar.
    coarse
        uint8 (y, x), written.
    """
    for y in range(coarse.shape[0]):
        for x in range(coarse.shape[1]):
            total, count, seen = 0, 0, 0
            for i in range(2):
                for j in range(2):
                    value = int(fine[2 * y + i, 2 * x + j])
                    known = int(value != 255)
                    taken = known & int(value != 0) if roads_only else known
                    seen += known
                    count += taken
                    total += value * taken
            if seen == 0:
                coarse[y, x] = 255
            elif count == 0:
                coarse[y, x] = 0
            else:
                coarse[y, x] = (2 * total + count) // (2 * count)
