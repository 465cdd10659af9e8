"""Copies of crops of tiles into batches, in compiled loops outside of the interpreter's lock."""

# ruff: noqa: ANN401 - values in compiled code have no other type

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from loaders.batch import FLIP_X, FLIP_Y, TRANSPOSE, Crops, Pixels

_COLUMNS, _ROWS = 128, 16
"""Pixels of a block that is transposed at a time: the rows that it comes from stay cached."""


def copy_crops(images: Pixels, labels: Pixels, crops: Crops, image: Pixels, label: Pixels) -> None:
    """Copy crops of tiles, uint8 (tile, y, x, band) and (tile, y, x), to a batch (n, ...).

    All arrays are C-contiguous. IndexError if a crop is outside of its tile.
    """
    place = np.stack(crops[:4])
    corners = images.shape[1] - image.shape[1] + 1
    if (place < 0).any() or (place >= np.array([[len(images)], [corners], [corners], [8]])).any():
        raise IndexError("a crop is outside of its tile")
    crop_kernel(images.shape[-1])(images, image, place)
    crop_kernel(1)(labels[..., None], label[..., None], place)


@cache
def crop_kernel(bands: int) -> Any:
    """Return the compiled copy of crops; a constant number of bands makes its inner loops fast.

    It is called with tiles and batch, uint8 (n, y, x, band), and int64 (4, crop): tile, y, x, op.
    """

    def copy(tiles: Any, batch: Any, place: Any) -> None:
        # Inside, where numba inlines it. Compiled on its own it would have another name in each
        # process, so that the cache of `copy` were never hit.
        def pixels(source: Any, start: Any, step: Any, target: Any, out: Any, count: Any) -> None:
            # Indexes are unsigned: signed ones may count from the end, which takes a comparison.
            for j in range(count):
                for band in range(bands):
                    to, origin = np.uintp(out + j * bands + band), np.uintp(start + j * step + band)
                    target[to] = source[origin]

        source, target, side = tiles.ravel(), batch.ravel(), batch.shape[1]
        row, out_row = tiles.shape[2] * bands, side * bands
        for n in range(place.shape[1]):
            tile, y, x, op = place[0, n], place[1, n], place[2, n], place[3, n]
            first = (tile * tiles.shape[1] + y) * row + x * bands
            # Row i of the result comes from row (or column, if transposed) abs(i - last_y).
            # abs() rather than a negative step: the compiler compares the ends of all rows of
            # source and target, and moves single bytes where the last one is before the first.
            last_y = side - 1 if op & FLIP_Y else 0
            last_x = side - 1 if op & FLIP_X else 0
            if op & TRANSPOSE:
                step = -row if op & FLIP_X else row
                for top in range(0, side, _ROWS):
                    for left in range(0, side, _COLUMNS):
                        count = min(_COLUMNS, side - left)
                        for i in range(top, min(top + _ROWS, side)):
                            start = first + abs(left - last_x) * row + abs(i - last_y) * bands
                            out = (n * side + i) * out_row + left * bands
                            pixels(source, start, step, target, out, count)
                continue
            for i in range(side):
                start, out = first + abs(i - last_y) * row, (n * side + i) * out_row
                # Constant steps: the compiler moves whole vectors.
                if op & FLIP_X:
                    pixels(source, start + last_x * bands, -bands, target, out, side)
                else:
                    pixels(source, start, bands, target, out, side)

    tiles, batch = types.Array(types.uint8, 4, "C", readonly=True), types.Array(types.uint8, 4, "C")
    signature = types.void(tiles, batch, types.Array(types.int64, 2, "C"))
    try:
        return numba.njit(signature, nogil=True, cache=True)(copy)
    except RuntimeError:  # "no locator": neither next to the source nor in the user's cache folder
        return numba.njit(signature, nogil=True)(copy)
