"""Loops over predicted pixels: from sums to bytes, and from one level of overviews to the next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from geoprep.kernels import compiled
from geoprep.speed import NO_DATA

HIGHEST = NO_DATA - 1
"""The byte of a probability of 254.5/255 and more: 255 is no data in every band."""


@compiled
def to_bytes(
    sums: NDArray[np.float32],
    valid: NDArray[np.uint8],
    class_mph: NDArray[np.float32],
    threshold: float,
    out: NDArray[np.uint8],
) -> None:
    """Write probabilities and the expected speed as bytes.

    Parameters
    ----------
    sums
        float32 (y, x, channel), probabilities; the last channel is any road.
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
    channels, classes = sums.shape[2], class_mph.shape[0]
    for y in range(valid.shape[0]):
        for x in range(valid.shape[1]):
            if valid[y, x] == 0:
                for k in range(out.shape[0]):
                    out[k, y, x] = 255
                continue
            for k in range(channels):
                value = sums[y, x, k] * np.float32(255) + np.float32(0.5)
                out[k, y, x] = np.uint8(min(max(value, np.float32(0)), np.float32(254)))
            if classes > 0:
                speed = 0
                if sums[y, x, channels - 1] >= threshold:
                    weight, mph = 1e-12, 0.0
                    for k in range(classes):
                        weight += float(sums[y, x, k])
                        mph += float(sums[y, x, k]) * float(class_mph[k])
                    speed = int(min(max(mph / weight + 0.5, 1.0), 254.0))
                out[channels, y, x] = speed


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
