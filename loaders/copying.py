"""Copies of crops of tiles into batches: one compiled loop per batch, or NumPy crop by crop.

Both give the same bytes. NumPy copies whole tiles, pixels of many bands and crops of tiles that are
decoded one at a time, and all crops in installations where numba cannot cache what it compiles.

For NumPy a pixel is one item, whatever its number of bands. It moves items of 1, 2, 4 or 8 bytes
at a time and releases the interpreter's lock meanwhile. A crop whose pixels change places within a
row is first copied, row by row, into a scratch array that stays in the cache: memory is read
forwards, and only the cache is read sideways. Two cases have code of their own. Items of 3 bytes,
which NumPy moves by one call each, are mirrored band by band, in half the time. Whole tiles are
copied by a ufunc: NumPy's own copy is ``memcpy``, for such lengths ``rep movsb``, which loses a
quarter of its speed on some processors (AMD Zen) where only one end of the copy begins on a cache
line.

The compiled loops run without the interpreter's lock. A pixel is moved by one load and one store of
its bytes. Pixels of 3 bytes are moved 4 bytes at a time: the next pixel overwrites the extra byte.
The first and the last pixel of a row are moved exactly, so nothing is read or written beyond an
array. Rows of one-byte pixels are mirrored 8 at a time by reversing the bytes of a word, and
transposed in blocks of 8 x 8 in eight words (three rounds of masked swaps; Warren, Hacker's
Delight, 2nd ed., 7-3). Larger transposes go through strips of the source, which is read forwards,
while the target stays in the cache. Memory is addressed directly: the loops do not check bounds,
their caller does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from loaders.crops import FLIP_X, TRANSPOSE, Crops, symmetry

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
    kernel = crop_kernel(width) if together and width <= _MOST_BYTES else None
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


_MOST_BYTES = 8
"""Pixels of more bytes are not faster than with NumPy."""

_BLOCK = 16
_STRIP = 64
"""Pixels of the side of a block, and source rows of one-byte pixels read together."""

_WORD = ir.IntType(64)

CropKernel = Callable[..., None]
"""Called with addresses of tiles and crops; tile, y, x, op, int64 (n,); sides of tile and crop."""


def _instructions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for compiled code from one that generates its instructions."""
    return cast(Callable[..., Any], intrinsic(prefer_literal=True)(function))


@_instructions
def _move(_: Any, target: Any, source: Any, width: Any) -> Any:  # noqa: ANN401 - types of numba
    """Move a constant number of bytes from address to address."""
    kind = ir.IntType(8 * width.literal_value)

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:  # noqa: ANN401 - of numba
        to, at = (builder.inttoptr(arguments[i], kind.as_pointer()) for i in range(2))
        builder.store(builder.load(at, align=1), to, align=1)
        return context.get_dummy_value()

    return types.void(target, source, width), generate


@_instructions
def _move_row(_: Any, target: Any, source: Any, nbytes: Any) -> Any:  # noqa: ANN401 - types of numba
    """Move a row of bytes from address to address."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:  # noqa: ANN401 - of numba
        to, at = (builder.inttoptr(arguments[i], cgutils.voidptr_t) for i in range(2))
        cast(Any, cgutils).raw_memcpy(builder, to, at, arguments[2], 1, align=1)
        return context.get_dummy_value()

    return types.void(target, source, nbytes), generate


@_instructions
def _load(_: Any, source: Any) -> Any:  # noqa: ANN401 - types of numba
    """Return the word at an address."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:  # noqa: ANN401 - of numba
        return builder.load(builder.inttoptr(arguments[0], _WORD.as_pointer()), align=1)

    return types.uint64(source), generate


@_instructions
def _store(_: Any, target: Any, value: Any) -> Any:  # noqa: ANN401 - types of numba
    """Write a word to an address."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:  # noqa: ANN401 - of numba
        to = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store(arguments[1], to, align=1)
        return context.get_dummy_value()

    return types.void(target, value), generate


@_instructions
def _reversed_bytes(_: Any, value: Any) -> Any:  # noqa: ANN401 - types of numba
    """Return a word with its bytes in reverse order."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:  # noqa: ANN401 - of numba
        return builder.bswap(arguments[0])

    return types.uint64(value), generate


@numba.njit(inline="always")
def _swap(low: Any, high: Any, bits: Any, mask: Any) -> Any:  # noqa: ANN401 - compiled
    """Exchange the upper parts of one word with the lower parts of another, under a mask."""
    difference = ((low >> bits) ^ high) & mask
    return low ^ (difference << bits), high ^ difference


@numba.njit(inline="always")
def _transpose_block(source: Any, along: Any, target: Any, down: Any) -> None:  # noqa: ANN401 - compiled
    """Transpose 8 x 8 bytes: source rows ``along`` apart to target rows ``down`` apart.

    The swaps assume little-endian words, as all supported processors have.
    """
    r0, r1 = _load(source), _load(source + along)
    r2, r3 = _load(source + 2 * along), _load(source + 3 * along)
    r4, r5 = _load(source + 4 * along), _load(source + 5 * along)
    r6, r7 = _load(source + 6 * along), _load(source + 7 * along)
    bits, mask = np.uint64(8), np.uint64(0x00FF00FF00FF00FF)
    r0, r1 = _swap(r0, r1, bits, mask)
    r2, r3 = _swap(r2, r3, bits, mask)
    r4, r5 = _swap(r4, r5, bits, mask)
    r6, r7 = _swap(r6, r7, bits, mask)
    bits, mask = np.uint64(16), np.uint64(0x0000FFFF0000FFFF)
    r0, r2 = _swap(r0, r2, bits, mask)
    r1, r3 = _swap(r1, r3, bits, mask)
    r4, r6 = _swap(r4, r6, bits, mask)
    r5, r7 = _swap(r5, r7, bits, mask)
    bits, mask = np.uint64(32), np.uint64(0x00000000FFFFFFFF)
    r0, r4 = _swap(r0, r4, bits, mask)
    r1, r5 = _swap(r1, r5, bits, mask)
    r2, r6 = _swap(r2, r6, bits, mask)
    r3, r7 = _swap(r3, r7, bits, mask)
    _store(target, r0)
    _store(target + down, r1)
    _store(target + 2 * down, r2)
    _store(target + 3 * down, r3)
    _store(target + 4 * down, r4)
    _store(target + 5 * down, r5)
    _store(target + 6 * down, r6)
    _store(target + 7 * down, r7)


@numba.njit
def _mirror_bytes(source: Any, target: Any, side: Any) -> None:  # noqa: ANN401 - compiled
    """Copy a row of one-byte pixels, given its last one, in reverse order."""
    done = 0
    while done + 8 <= side:
        _store(target + done, _reversed_bytes(_load(source - done - 7)))
        done += 8
    for i in range(done, side):
        _move(target + i, source - i, 1)


@numba.njit
def _transpose_bytes(source: Any, down: Any, along: Any, target: Any, side: Any) -> None:  # noqa: ANN401 - compiled
    """Copy a crop of one-byte pixels, whose row i, column j is at ``source + i*down + j*along``."""
    even = side - side % 8
    for strip in range(0, even, _STRIP):
        for i in range(0, even, 8):
            for j in range(strip, min(strip + _STRIP, even), 8):
                first, out = source + i * down + j * along, target + i * side + j
                if down > 0:
                    _transpose_block(first, along, out, side)
                else:  # a word is read forwards: its bytes are the rows from the last up
                    _transpose_block(first - 7, along, out + 7 * side, -side)
    for i in range(side):
        for j in range(even if i < even else 0, side):
            _move(target + i * side + j, source + i * down + j * along, 1)


@cache
def crop_kernel(width: int) -> CropKernel | None:
    """Return the compiled copy of crops with pixels of ``width`` bytes, 1 to `_MOST_BYTES`.

    It compiles for seconds when it is first used on a machine, and is then loaded from numba's
    cache. None where numba finds no folder for its cache: every process would compile again.
    """
    wide = 4 if width == 3 else width
    one = width == 1

    def copy(
        source: Any,  # noqa: ANN401 - compiled
        target: Any,  # noqa: ANN401 - compiled
        tile: Any,  # noqa: ANN401 - compiled
        y: Any,  # noqa: ANN401 - compiled
        x: Any,  # noqa: ANN401 - compiled
        op: Any,  # noqa: ANN401 - compiled
        tile_side: Any,  # noqa: ANN401 - compiled
        side: Any,  # noqa: ANN401 - compiled
    ) -> None:
        row, out_row, last = tile_side * width, side * width, side - 1
        for n in range(len(tile)):
            first = source + ((tile[n] * tile_side + y[n]) * tile_side + x[n]) * width
            out = target + n * side * out_row
            # Row i, column j of the result is at first + i * down + j * along. Bits of op: 1
            # mirrors columns, 2 rows, 4 transposes before either.
            down, along = (width, row) if op[n] & 4 else (row, width)
            if op[n] & 2:
                first, down = first + last * down, -down
            if op[n] & 1:
                first, along = first + last * along, -along
            if along == width:
                for i in range(side):
                    _move_row(out + i * out_row, first + i * down, out_row)
            elif one and along == -1:
                for i in range(side):
                    _mirror_bytes(first + i * down, out + i * out_row, side)
            elif one:
                _transpose_bytes(first, down, along, out, side)
            elif along == -width:
                for i in range(side):
                    at, to = first + i * down, out + i * out_row
                    _move(to, at, width)
                    for j in range(1, last):
                        _move(to + j * width, at + j * along, wide)
                    _move(to + last * width, at + last * along, width)
            else:
                for strip in range(0, side, _BLOCK):
                    begin, end = max(strip, 1), min(strip + _BLOCK, last)
                    for block in range(0, side, _BLOCK):
                        for i in range(block, min(block + _BLOCK, side)):
                            at, to = first + i * down, out + i * out_row
                            if strip == 0:
                                _move(to, at, width)
                            for j in range(begin, end):
                                _move(to + j * width, at + j * along, wide)
                            if strip + _BLOCK >= side:
                                _move(to + last * width, at + last * along, width)

    column = types.Array(types.int64, 1, "C")
    signature = types.void(*[types.int64] * 2, *[column] * 4, *[types.int64] * 2)
    try:
        compiled = numba.njit(signature, nogil=True, cache=True)(copy)
    except RuntimeError:  # "no locator": neither next to the source nor in the user's cache folder
        return None
    return cast(CropKernel, compiled)
