"""Copies of crops of tiles into batches, in compiled loops outside of the interpreter's lock."""

# ruff: noqa: ANN401 - values in compiled code have no other type

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from loaders.batch import FLIP_X, FLIP_Y, TRANSPOSE, Crops

_COLUMNS = 64
"""Columns of a crop that are transposed together, so that the rows they come from stay cached."""


def copy_crops(
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    crops: Crops,
    image: NDArray[np.uint8],
    label: NDArray[np.uint8],
) -> None:
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
def crop_kernel(bands: int) -> Callable[..., None]:
    """Return the compiled copy of crops; a constant number of bands makes its inner loops fast.

    It is called with tiles and batch, uint8 (n, y, x, band), and int64 (4, crop): tile, y, x, op.
    """

    # Indexes are unsigned: signed ones may count from the end, which takes a comparison.
    @numba.njit
    def row(source: Any, start: Any, along: Any, target: Any, out: Any, columns: Any) -> None:
        for j in range(*columns):
            for band in range(bands):
                value = source[np.uintp(start + j * along + band)]
                target[np.uintp(out + j * bands + band)] = value

    def copy(tiles: Any, batch: Any, place: Any) -> None:
        source, target, side = tiles.ravel(), batch.ravel(), batch.shape[1]
        for n in range(place.shape[1]):
            tile, y, x, op = place[0, n], place[1, n], place[2, n], place[3, n]
            first = ((tile * tiles.shape[1] + y) * tiles.shape[2] + x) * bands
            # Pixel (i, j) of the result is at first + i * down + j * along.
            down, along = tiles.shape[2] * bands, bands
            if op & TRANSPOSE:
                down, along = along, down
            if op & FLIP_Y:
                first, down = first + (side - 1) * down, -down
            if op & FLIP_X:
                first, along = first + (side - 1) * along, -along
            # The compiler moves whole vectors where it knows `along`.
            columns = side if along == bands else _COLUMNS
            for left in range(0, side, columns):
                for i in range(side):
                    start, out = first + i * down, (n * side + i) * side * bands
                    if along == bands:
                        row(source, start, bands, target, out, (0, side))
                    else:
                        ends = left, min(left + columns, side)
                        row(source, start, along, target, out, ends)

    tiles, batch = types.Array(types.uint8, 4, "C", readonly=True), types.Array(types.uint8, 4, "C")
    signature = types.void(tiles, batch, types.Array(types.int64, 2, "C"))
    compiled: Callable[..., None]
    try:
        compiled = numba.njit(signature, nogil=True, cache=True)(copy)
    except RuntimeError:  # "no locator": neither next to the source nor in the user's cache folder
        compiled = numba.njit(signature, nogil=True)(copy)
    return compiled
