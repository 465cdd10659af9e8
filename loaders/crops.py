"""Crops: the squares of tiles that samples are cut from, and their geometry under symmetries."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FLIP_X, FLIP_Y, TRANSPOSE = 1, 2, 4
"""Bits of a symmetry: the crop is transposed first, then flipped in y, then flipped in x."""


class Crops(NamedTuple):
    """Square crops of tiles, one row per sample.

    Attributes
    ----------
    tile
        int64 (n,), index of the tile.
    y, x
        int64 (n,), upper left corner in the tile, pixels.
    op
        int64 (n,), symmetry 0..7: bits `TRANSPOSE`, `FLIP_Y`, `FLIP_X`, applied in that order.
    key
        int64 (n,), hash of (seed, epoch, sample), for augmentations on the device.
    sample
        int64 (n,), number of the sample in its epoch, before shuffling.
    """

    tile: NDArray[np.int64]
    y: NDArray[np.int64]
    x: NDArray[np.int64]
    op: NDArray[np.int64]
    key: NDArray[np.int64]
    sample: NDArray[np.int64]

    def rows(self, part: slice) -> Crops:
        """Return some of the crops, as views."""
        return Crops(*(column[part] for column in self))


def symmetry(array: NDArray[Any], op: int) -> NDArray[Any]:
    """Return a view of (side, side, ...) under a symmetry 0..7."""
    if op & TRANSPOSE:
        array = array.swapaxes(0, 1)
    if op & FLIP_Y:
        array = array[::-1]
    if op & FLIP_X:
        array = array[:, ::-1]
    return array


def crop_affine(
    affine: tuple[float, ...], y: int, x: int, op: int, side: int
) -> tuple[float, float, float, float, float, float]:
    """Return the affine of a crop under a symmetry, from that of its tile.

    Parameters
    ----------
    affine
        ``a b c d e f`` of rasterio, pixel corner (column, row) of the tile -> CRS.
    y, x, op
        Upper left corner of the crop in the tile, pixels, and its symmetry 0..7.
    side
        Side of the crop in pixels.

    Returns
    -------
    tuple of float
        ``a b c d e f``, pixel corner of the crop after its symmetry -> CRS.
    """
    # From a corner (column, row) of the result to one of the tile.
    corner = np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])
    if op & TRANSPOSE:
        corner = corner @ [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    if op & FLIP_Y:
        corner = corner @ [[1, 0, 0], [0, -1, side], [0, 0, 1]]
    if op & FLIP_X:
        corner = corner @ [[-1, 0, side], [0, 1, 0], [0, 0, 1]]
    a, b, c, d, e, f = (np.reshape(affine, (2, 3)) @ corner).ravel().tolist()
    return a, b, c, d, e, f
