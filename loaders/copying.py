"""Copies of crops of tiles into batches, in one compiled loop per batch."""

# ruff: noqa: ANN401 - values in compiled code, and types of numba and llvmlite, have no others

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import raw_memcpy
from numba.extending import intrinsic, register_jitable
from numpy.typing import NDArray

from loaders.batch import Crops


def copy_crops(
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    crops: Crops,
    image: NDArray[np.uint8],
    label: NDArray[np.uint8],
) -> None:
    """Copy crops of tiles, uint8 (tile, y, x, band) and (tile, y, x), to a batch (n, ...).

    All arrays are C-contiguous.
    """
    if not len(image) == len(label) == len(crops.tile):
        raise ValueError(f"{len(crops.tile)} crops do not fit into a batch of {len(image)}")
    place = np.concatenate(crops[:4]).reshape(4, -1)
    # Not allocated in compiled code, which frees an array after the last line that names it.
    scratch = np.empty(_ROWS * image.shape[1] * images.shape[-1], np.uint8)
    kernel = crop_kernel(images.shape[-1])
    if not kernel(images, labels[..., None], image, label[..., None], place, scratch):
        raise IndexError("a crop is outside of its tile")


# The compiled loops run without the interpreter's lock. They move vectors of 16 bytes, which every
# supported processor has. A row is mirrored by reversing the pixels of a vector. Blocks of pixels
# are transposed by interleaving vectors: 16 x 16 pixels of one byte, 8 x 8 of two, 4 x 4 of three
# or four, 2 x 2 of up to eight. Where pixels do not fill a vector, its remaining bytes are written
# too, and then overwritten by the next pixels; the last pixels of a row are moved one by one, so
# nothing is read or written beyond a row. Large batches are written past the caches, without
# reading each line of memory before it is replaced; not so rows that are mirrored. Pixels of more
# bytes than a vector are moved one by one.

_VECTOR = 16
"""Bytes of a vector."""

_ROWS, _COLUMNS = 64, 32
"""Pixels of the sides of a block of the result that is transposed at once."""

_PAST = 4 << 20
"""Bytes of a batch from which on it is written past the caches, most of which hold less."""

CropKernel = Callable[..., bool]
"""Called with images and labels of tiles, those of a batch, all uint8 (n, y, x, band); tile, y, x
and op, int64 (4, n); uint8 scratch for `_ROWS` rows of a crop. Returns whether all crops are within
their tiles; if not, nothing is copied."""

_WORD, _BYTES = ir.IntType(64), ir.VectorType(ir.IntType(8), _VECTOR)


def _instructions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for compiled code from one that generates its instructions."""
    return cast(Callable[..., Any], intrinsic(prefer_literal=True)(function))


@_instructions
def _move(_: Any, target: Any, source: Any, nbytes: Any) -> Any:
    """Move bytes from address to address."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        to, at = (builder.inttoptr(arguments[i], ir.IntType(8).as_pointer()) for i in range(2))
        raw_memcpy(builder, to, at, arguments[2], itemsize=1)  # type: ignore[no-untyped-call]  # numba's
        return context.get_dummy_value()

    return types.void(target, source, nbytes), generate


@_instructions
def _stream(_: Any, target: Any, source: Any) -> Any:
    """Move 64 bytes to an address that 16 divides, past the caches: no line is read for it."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        one = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        for start in range(0, 64, _VECTOR):
            to, at = (builder.add(arguments[i], _WORD(start)) for i in range(2))
            pointer = builder.inttoptr(to, _BYTES.as_pointer())
            builder.store(_load(builder, at), pointer, align=16).set_metadata("nontemporal", one)
        return context.get_dummy_value()

    return types.void(target, source), generate


@_instructions
def _fence(_: Any) -> Any:
    """Order what was moved past the caches before all that follows."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        del arguments
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _load(builder: Any, address: Any) -> Any:
    """Generate the load of a vector."""
    return builder.load(builder.inttoptr(address, _BYTES.as_pointer()), align=1)


def _store(builder: Any, vector: Any, address: Any) -> None:
    """Generate the store of a vector."""
    builder.store(vector, builder.inttoptr(address, _BYTES.as_pointer()), align=1)


def _shuffle(builder: Any, one: Any, other: Any, lanes: list[int]) -> Any:
    """Generate the vector of some lanes of two vectors, counted through both."""
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    return builder.shuffle_vector(one, other, mask)


def _pixel_bytes(width: int, lane: int, *, backwards: bool) -> list[int]:
    """Return which bytes of a vector form lanes of one pixel each; a lane may be wider."""
    starts = [_VECTOR - (i + 1) * width if backwards else i * width for i in range(_VECTOR // lane)]
    found = [start + min(byte, width - 1) for start in starts for byte in range(lane)]
    return found + [0] * (_VECTOR - len(found))


@_instructions
def _mirror(_: Any, target: Any, source: Any, width: Any) -> Any:
    """Move the pixels of a vector in reverse order, given the address of the last one."""
    pixel = width.literal_value

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        vector = _load(builder, builder.sub(arguments[1], _WORD(_VECTOR - pixel)))
        lanes = _pixel_bytes(pixel, pixel, backwards=True)
        _store(builder, _shuffle(builder, vector, vector, lanes), arguments[0])
        return context.get_dummy_value()

    return types.void(target, source, width), generate


@register_jitable
def _lane(width: int) -> int:
    """Return the bytes that hold a pixel in a transpose: the next power of two."""
    lane = 1
    while lane < width:
        lane *= 2
    return lane


@_instructions
def _transpose(
    _: Any, target: Any, down: Any, source: Any, along: Any, width: Any, back: Any
) -> Any:
    """Transpose a block from rows ``along`` apart, read ``back`` if so, to rows ``down`` apart."""
    pixel, reverse = min(width.literal_value, _VECTOR), bool(back.literal_value)
    lane = _lane(pixel)
    side = _VECTOR // lane
    lanes = ir.VectorType(ir.IntType(8 * lane), side)
    spread = _pixel_bytes(pixel, lane, backwards=reverse)
    packed = [i * lane + byte for i in range(side) for byte in range(pixel)]
    packed += [0] * (_VECTOR - len(packed))
    pairs = [(i, side + i) for i in range(side)]
    halves = [sum(half, ()) for half in (pairs[: side // 2], pairs[side // 2 :])]

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        to, step, at, apart = arguments[:4]
        if reverse:
            at = builder.sub(at, _WORD(_VECTOR - pixel))
        rows = []
        for _row in range(side):
            row = _load(builder, at)
            rows.append(builder.bitcast(_shuffle(builder, row, row, spread), lanes))
            at = builder.add(at, apart)
        for _round in range(side.bit_length() - 1):
            couples = zip(rows[: side // 2], rows[side // 2 :], strict=True)
            rows = [_shuffle(builder, *two, list(half)) for two in couples for half in halves]
        for row in rows:
            row = builder.bitcast(row, _BYTES)
            _store(builder, _shuffle(builder, row, row, packed), to)
            to = builder.add(to, step)
        return context.get_dummy_value()

    return types.void(target, down, source, along, width, back), generate


@numba.njit
def _move_rows(target: Any, source: Any, nbytes: Any, past: Any) -> None:
    """Move a row of bytes, past the caches if it is to and its address allows."""
    done = 0
    if past and target % _VECTOR == 0:
        while done + 64 <= nbytes:
            _stream(target + done, source + done)
            done += 64
    _move(target + done, source + done, nbytes - done)


@numba.njit
def _within(values: Any, end: Any) -> bool:
    """Return whether all values are at least 0 and less than an end."""
    outside = 0
    for value in values:
        outside |= (value < 0) | (value >= end)
    return outside == 0


@numba.njit(inline="always")
def _copy_part(images: Any, crops: Any, place: Any, width: Any, past: Any, scratch: Any) -> None:
    """Copy crops with pixels of ``width`` bytes."""
    tile_side, side = images.shape[1], crops.shape[1]
    row, out_row, last = tile_side * width, side * width, side - 1
    between = np.int64(scratch.ctypes.data)
    # Pixels of a row that whole vectors move: a vector from any of them ends within the row.
    room = out_row - _VECTOR if width <= _VECTOR else -1
    mirrored, block = max(1, _VECTOR // width), max(1, _VECTOR // _lane(width))
    even = (room // (mirrored * width) + 1) * mirrored if room >= 0 else 0
    square = (room // (block * width) + 1) * block if room >= 0 else 0
    for n in range(place.shape[1]):
        tile, y, x, op = place[0, n], place[1, n], place[2, n], place[3, n]
        first = images.ctypes.data + ((tile * tile_side + y) * tile_side + x) * width
        out = crops.ctypes.data + n * side * out_row
        # Row i, column j of the result is at first + i * down + j * along. Bits of op: 1
        # mirrors columns, 2 rows, 4 transposes before either.
        down, along = (width, row) if op & 4 else (row, width)
        if op & 2:
            first, down = first + last * down, -down
        if op & 1:
            first, along = first + last * along, -along
        if along == width and down == out_row:
            _move_rows(out, first, side * out_row, past)
        elif along == width:
            for i in range(side):
                _move_rows(out + i * out_row, first + i * down, out_row, past)
        elif along == -width:
            for i in range(side):
                at, to = first + i * down, out + i * out_row
                for j in range(0, even, mirrored):
                    _mirror(to + j * width, at + j * along, width)
                for j in range(even, side):
                    _move(to + j * width, at + j * along, width)
        else:
            for rows in range(0, square, _ROWS):
                end = min(rows + _ROWS, square)
                band = between if past else out + rows * out_row
                for columns in range(0, square, _COLUMNS):
                    for i in range(rows, end, block):
                        for j in range(columns, min(columns + _COLUMNS, square), block):
                            at = first + i * down + j * along
                            to = band + (i - rows) * out_row + j * width
                            if down > 0:
                                _transpose(to, out_row, at, along, width, 0)
                            else:
                                _transpose(to, out_row, at, along, width, 1)
                if past:
                    _move_rows(out + rows * out_row, band, (end - rows) * out_row, past)
            for i in range(side):
                for j in range(square if i < square else 0, side):
                    _move(out + i * out_row + j * width, first + i * down + j * along, width)


@cache
def crop_kernel(width: int) -> CropKernel:
    """Return the compiled copy of crops with pixels of ``width`` bytes."""

    def copy(images: Any, labels: Any, image: Any, label: Any, place: Any, scratch: Any) -> bool:
        places = images.shape[1] - image.shape[1] + 1
        within = _within(place[0], len(images)) & _within(place[3], 8)
        if not within & _within(place[1], places) & _within(place[2], places):
            return False
        past = image.size + label.size >= _PAST
        _copy_part(images, image, place, width, past, scratch)
        _copy_part(labels, label, place, 1, past, scratch)
        _fence()
        return True

    tiles = types.Array(types.uint8, 4, "C", readonly=True)
    batch, places = types.Array(types.uint8, 4, "C"), types.Array(types.int64, 2, "C")
    bytes_ = types.Array(types.uint8, 1, "C")
    signature = types.boolean(tiles, tiles, batch, batch, places, bytes_)
    try:
        compiled = numba.njit(signature, nogil=True, cache=True)(copy)
    except RuntimeError:  # "no locator": neither next to the source nor in the user's cache folder
        compiled = numba.njit(signature, nogil=True)(copy)
    return cast(CropKernel, compiled)
