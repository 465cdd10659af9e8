"""Crops of tiles under the eight symmetries of the square, and the copy of their bytes.

The crops of a batch are copied by one call of a compiled loop, see :mod:`loaders.crop_kernels`, or
one by one by NumPy, with the same result: pixels of many bands, crops of tiles that are decoded one
at a time, and installations where numba cannot cache what it compiles. Whole tiles are copied by
NumPy.

For NumPy a pixel is one item, whatever its number of bands. It moves items of 1, 2, 4 or 8 bytes
at a time and releases the interpreter's lock meanwhile. A crop whose pixels change places within a
row is first copied, row by row, into a scratch array that stays in the cache: memory is read
forwards, and only the cache is read sideways.

Two cases have code of their own. Items of 3 bytes, which NumPy moves by one call each, are mirrored
band by band, in half the time. Whole tiles are copied by a ufunc: NumPy's own copy is ``memcpy``,
for such lengths ``rep movsb``, which loses a quarter of its speed on some processors (AMD Zen)
where only one end of the copy begins on a cache line.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from loaders.crop_kernels import CropKernel

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


_SCRATCH_PAD = 17
"""Extra items in a row of scratch: a power of two as its length would crowd one cache set."""

_RGB = 3
"""Bytes of an item that is mirrored band by band."""

_ZERO = np.uint8(0)


class _Scratch(threading.local):
    """One scratch array per thread for every (side, dtype) it has used."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[int, np.dtype[Any]], NDArray[Any]] = {}


_scratches = _Scratch()


def as_items(image: NDArray[np.uint8]) -> NDArray[Any]:
    """Return uint8 (..., band), C-contiguous, as one item per pixel: shape (...)."""
    bands = image.shape[-1]
    dtype = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(bands, f"V{bands}")
    return image.view(dtype)[..., 0]


def _scratch(side: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return this thread's (side, side) scratch array."""
    arrays = _scratches.arrays
    key = (side, dtype)
    if key not in arrays:
        arrays[key] = np.zeros((side, side + _SCRATCH_PAD), dtype)[:, :side]
    return arrays[key]


def copy_crop(tile: NDArray[Any], y: int, x: int, op: int, out: NDArray[Any]) -> None:
    """Copy a square crop of one tile, under a symmetry.

    Parameters
    ----------
    tile
        Items (side, side).
    y, x
        Upper left corner of the crop, pixels.
    op
        Symmetry 0..7.
    out
        Items (crop, crop) of the same dtype; written.
    """
    side = len(out)
    view = tile[y : y + side, x : x + side]
    if not op and view.flags.c_contiguous and out.flags.c_contiguous:
        _copy_bytes(_bytes(view), _bytes(out))
    elif not op & (TRANSPOSE | FLIP_X):
        out[...] = symmetry(view, op)
    else:
        scratch = _scratch(side, tile.dtype)
        scratch[...] = view
        source = symmetry(scratch, op)
        if tile.dtype.itemsize == _RGB and not op & TRANSPOSE:
            _copy_by_band(source, out)
        else:
            out[...] = source


def _bytes(items: NDArray[Any], rows: int = 1) -> NDArray[np.uint8]:
    """Return a view of contiguous items as bytes (rows, n)."""
    flat: NDArray[np.uint8] = items.reshape(rows, -1).view(np.uint8)
    return flat


def _copy_bytes(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> None:
    np.bitwise_or(source, _ZERO, out=target)


def _copy_by_band(items: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy items of a few bytes, in any order of rows and columns, one byte of each at a time."""
    for band in range(out.dtype.itemsize):
        out.getfield(np.uint8, band)[...] = items.getfield(np.uint8, band)


def _copy_batch(tiles: NDArray[np.uint8], crops: Crops, out: NDArray[np.uint8]) -> None:
    """Copy crops of many tiles.

    Parameters
    ----------
    tiles
        uint8 (tile, side, side, band).
    crops
        One row per sample.
    out
        uint8 (n, crop, crop, band); written.
    """
    (count, side, _, width), crop = tiles.shape, out.shape[1]
    together = tiles.flags.c_contiguous and out.flags.c_contiguous
    if together and crop == side and not crops.op.any():
        sources, targets = (_bytes(array, rows=len(array)) for array in (tiles, out))
        for tile, target in zip(crops.tile.tolist(), targets, strict=True):
            _copy_bytes(sources[tile], target)
        return
    kernel = _kernel(width) if together else None
    columns = [np.ascontiguousarray(a) for a in (crops.tile, crops.y, crops.x, crops.op)]
    if kernel is None:
        items, result = as_items(tiles), as_items(out)
        for i, (tile, y, x, op) in enumerate(zip(*(a.tolist() for a in columns), strict=True)):
            copy_crop(items[tile], y, x, op, result[i])
        return
    if len(out) != len(columns[0]):
        raise ValueError(f"{len(columns[0])} crops do not fit into a batch of {len(out)}")
    for column, end in zip(columns, (count, side - crop + 1, side - crop + 1, 8), strict=True):
        if len(column) and not 0 <= column.min() <= column.max() < end:
            raise IndexError("a crop is outside of its tile")
    kernel(tiles.ctypes.data, out.ctypes.data, *columns, side, crop)


def _kernel(width: int) -> CropKernel | None:
    """Return the compiled loop for pixels of some bytes; None if NumPy is used."""
    from loaders.crop_kernels import MOST_BYTES, crop_kernel  # numba is slow to import

    return crop_kernel(width) if width <= MOST_BYTES else None


def copy_crops(
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    crops: Crops,
    image: NDArray[np.uint8],
    label: NDArray[np.uint8],
) -> None:
    """Copy crops of tiles, images and labels.

    Parameters
    ----------
    images, labels
        uint8 (tile, y, x, band) and (tile, y, x), C-contiguous.
    crops
        One row per sample.
    image, label
        uint8 (n, y, x, band) and (n, y, x), C-contiguous; written.
    """
    _copy_batch(images, crops, image)
    _copy_batch(labels[..., None], crops, label[..., None])
