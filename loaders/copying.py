"""Copies of crops of tiles into batches: one compiled loop per batch, or NumPy crop by crop.

NumPy copies pixels of more than 16 bands, and all crops where numba cannot cache what it compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from loaders.batch import Crops, symmetry


def copy_crops(
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    crops: Crops,
    image: NDArray[np.uint8],
    label: NDArray[np.uint8],
) -> None:
    """Copy crops of tiles, uint8 (tile, y, x, band) and (tile, y, x), to a batch (n, ...)."""
    if not len(image) == len(label) == len(crops.tile):
        raise ValueError(f"{len(crops.tile)} crops do not fit into a batch of {len(image)}")
    parts = (images, labels[..., None], image, label[..., None])
    together = all(part.flags.c_contiguous for part in parts)
    width = images.shape[-1]
    kernel = crop_kernel(width if width <= _VECTOR else 1) if together else None
    if kernel is None or width > _VECTOR:
        _copy_items(images, crops, image)
        parts = (parts[1], parts[1], parts[3], parts[3])
    if kernel is None:
        _copy_items(parts[0], crops, parts[2])
        return
    columns = (np.ascontiguousarray(column, np.int64) for column in crops[:4])
    # Not allocated in compiled code, which frees an array after the last line that names it.
    scratch = np.empty(_ROWS * image.shape[1] * parts[0].shape[-1], np.uint8)
    if not kernel(*parts, *columns, scratch):
        raise IndexError("a crop is outside of its tile")


def _copy_items(tiles: NDArray[np.uint8], crops: Crops, out: NDArray[np.uint8]) -> None:
    """Copy crops one by one with NumPy, a pixel as one item, whatever its number of bands."""
    items, result = (array.view(f"V{array.shape[-1]}")[..., 0] for array in (tiles, out))
    side = out.shape[1]
    places = (column.tolist() for column in crops[:4])
    for i, (tile, y, x, op) in enumerate(zip(*places, strict=True)):
        result[i] = symmetry(items[tile, y : y + side, x : x + side], op)


# The compiled loops run without the interpreter's lock. They move vectors of 16 bytes, which every
# supported processor has. A row is mirrored by reversing the pixels of a vector. Blocks of pixels
# are transposed by interleaving vectors: 16 x 16 pixels of one byte, 8 x 8 of two, 4 x 4 of three
# or four, 2 x 2 of up to eight. Where pixels do not fill a vector, its remaining bytes are written
# too, and then overwritten by the next pixels; the last pixels of a row are moved one by one, so
# nothing is read or written beyond a row. Large batches are written past the caches, without
# reading each line of memory before it is replaced; not so rows that are mirrored.

_VECTOR = 16
"""Bytes of a vector. Wider pixels are not faster than with NumPy."""

_ROWS, _COLUMNS = 64, 32
"""Pixels of the sides of a block of the result that is transposed at once."""

_PAST = 4 << 20
"""Bytes of a batch from which on it is written past the caches, most of which hold less."""

CropKernel = Callable[..., bool]
"""Called with images and labels of tiles, those of a batch, all uint8 (n, y, x, band); tile, y, x
and op, int64 (n,); uint8 scratch for `_ROWS` rows of a crop. Returns whether all crops are within
their tiles; if not, nothing is copied."""

_WORD, _BYTES = ir.IntType(64), ir.VectorType(ir.IntType(8), _VECTOR)


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
def _stream(_: Any, target: Any, source: Any) -> Any:  # noqa: ANN401 - types of numba
    """Move 64 bytes to an address that 16 divides, past the caches: no line is read for it."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:  # noqa: ANN401 - of numba
        one = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        for start in range(0, 64, _VECTOR):
            to, at = (builder.add(arguments[i], _WORD(start)) for i in range(2))
            pointer = builder.inttoptr(to, _BYTES.as_pointer())
            builder.store(_load(builder, at), pointer, align=16).set_metadata("nontemporal", one)
        return context.get_dummy_value()

    return types.void(target, source), generate


@_instructions
def _fence(_: Any) -> Any:  # noqa: ANN401 - types of numba
    """Order what was moved past the caches before all that follows."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:  # noqa: ANN401 - of numba
        del arguments
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _load(builder: Any, address: Any) -> Any:  # noqa: ANN401 - of numba
    """Generate the load of a vector."""
    return builder.load(builder.inttoptr(address, _BYTES.as_pointer()), align=1)


def _store(builder: Any, vector: Any, address: Any) -> None:  # noqa: ANN401 - of numba
    """Generate the store of a vector."""
    builder.store(vector, builder.inttoptr(address, _BYTES.as_pointer()), align=1)


def _shuffle(builder: Any, one: Any, other: Any, lanes: list[int]) -> Any:  # noqa: ANN401 - of numba
    """Generate the vector of some lanes of two vectors, counted through both."""
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes)
    return builder.shuffle_vector(one, other, mask)


def _pixel_bytes(width: int, lane: int, *, backwards: bool) -> list[int]:
    """Return which bytes of a vector form lanes of one pixel each; a lane may be wider."""
    starts = [_VECTOR - (i + 1) * width if backwards else i * width for i in range(_VECTOR // lane)]
    found = [start + min(byte, width - 1) for start in starts for byte in range(lane)]
    return found + [0] * (_VECTOR - len(found))


@_instructions
def _mirror(_: Any, target: Any, source: Any, width: Any) -> Any:  # noqa: ANN401 - types of numba
    """Move the pixels of a vector in reverse order, given the address of the last one."""
    pixel = width.literal_value

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:  # noqa: ANN401 - of numba
        vector = _load(builder, builder.sub(arguments[1], _WORD(_VECTOR - pixel)))
        lanes = _pixel_bytes(pixel, pixel, backwards=True)
        _store(builder, _shuffle(builder, vector, vector, lanes), arguments[0])
        return context.get_dummy_value()

    return types.void(target, source, width), generate


def _lane(width: int) -> int:
    """Return the bytes that hold a pixel in a transpose: the next power of two."""
    return 1 << (width - 1).bit_length()


@_instructions
def _transpose(
    _: Any,  # noqa: ANN401 - types of numba
    target: Any,  # noqa: ANN401 - types of numba
    down: Any,  # noqa: ANN401 - types of numba
    source: Any,  # noqa: ANN401 - types of numba
    along: Any,  # noqa: ANN401 - types of numba
    width: Any,  # noqa: ANN401 - types of numba
    backwards: Any,  # noqa: ANN401 - types of numba
) -> Any:  # noqa: ANN401 - types of numba
    """Transpose a block from rows ``along`` apart, read backwards if so, to rows ``down`` apart."""
    pixel, reverse = width.literal_value, bool(backwards.literal_value)
    lane = _lane(pixel)
    side = _VECTOR // lane
    lanes = ir.VectorType(ir.IntType(8 * lane), side)
    spread = _pixel_bytes(pixel, lane, backwards=reverse)
    packed = [i * lane + byte for i in range(side) for byte in range(pixel)]
    packed += [0] * (_VECTOR - len(packed))
    pairs = [(i, side + i) for i in range(side)]
    halves = [sum(half, ()) for half in (pairs[: side // 2], pairs[side // 2 :])]

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:  # noqa: ANN401 - of numba
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

    return types.void(target, down, source, along, width, backwards), generate


@numba.njit
def _move_row(target: Any, source: Any, nbytes: Any) -> None:  # noqa: ANN401 - compiled
    """Move a row of bytes from address to address."""
    done = 0
    while done + 128 <= nbytes:
        _move(target + done, source + done, 32)
        _move(target + done + 32, source + done + 32, 32)
        _move(target + done + 64, source + done + 64, 32)
        _move(target + done + 96, source + done + 96, 32)
        done += 128
    while done + 8 <= nbytes:
        _move(target + done, source + done, 8)
        done += 8
    while done < nbytes:
        _move(target + done, source + done, 1)
        done += 1


@numba.njit
def _move_rows(target: Any, source: Any, nbytes: Any, past: Any) -> None:  # noqa: ANN401 - compiled
    """Move a row of bytes, past the caches if it is to and its address allows."""
    done = 0
    if past and target % _VECTOR == 0:
        while done + 64 <= nbytes:
            _stream(target + done, source + done)
            done += 64
    _move_row(target + done, source + done, nbytes - done)


@numba.njit
def _within(values: Any, end: Any) -> bool:  # noqa: ANN401 - compiled
    """Return whether all values are at least 0 and less than an end."""
    outside = 0
    for value in values:
        outside |= (value < 0) | (value >= end)
    return outside == 0


@numba.njit(inline="always")
def _copy_part(
    images: Any,  # noqa: ANN401 - compiled
    crops: Any,  # noqa: ANN401 - compiled
    tile: Any,  # noqa: ANN401 - compiled
    y: Any,  # noqa: ANN401 - compiled
    x: Any,  # noqa: ANN401 - compiled
    op: Any,  # noqa: ANN401 - compiled
    width: Any,  # noqa: ANN401 - compiled
    block: Any,  # noqa: ANN401 - compiled
    past: Any,  # noqa: ANN401 - compiled
    scratch: Any,  # noqa: ANN401 - compiled
) -> None:
    """Copy crops with pixels of ``width`` bytes, transposed in squares of ``block`` pixels."""
    source, target = images.ctypes.data, crops.ctypes.data
    tile_side, side = images.shape[1], crops.shape[1]
    mirrored = _VECTOR // width
    row, out_row, last = tile_side * width, side * width, side - 1
    between = np.int64(scratch.ctypes.data)
    # Pixels of a row that whole vectors move: a vector from any of them ends within the row.
    room = out_row - _VECTOR
    even = (room // (mirrored * width) + 1) * mirrored if room >= 0 else 0
    square = (room // (block * width) + 1) * block if room >= 0 else 0
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
def crop_kernel(width: int) -> CropKernel | None:
    """Return the compiled copy of crops with pixels of ``width`` bytes, 1 to `_VECTOR`.

    None where numba finds no folder for its cache: every process would compile for seconds.
    """
    block = _VECTOR // _lane(width)

    def copy(
        images: Any,  # noqa: ANN401 - compiled
        labels: Any,  # noqa: ANN401 - compiled
        image: Any,  # noqa: ANN401 - compiled
        label: Any,  # noqa: ANN401 - compiled
        tile: Any,  # noqa: ANN401 - compiled
        y: Any,  # noqa: ANN401 - compiled
        x: Any,  # noqa: ANN401 - compiled
        op: Any,  # noqa: ANN401 - compiled
        scratch: Any,  # noqa: ANN401 - compiled
    ) -> bool:
        places = images.shape[1] - image.shape[1] + 1
        within = _within(tile, len(images)) & _within(op, 8)
        if not within & _within(y, places) & _within(x, places):
            return False
        past = image.size + label.size >= _PAST
        _copy_part(images, image, tile, y, x, op, width, block, past, scratch)
        _copy_part(labels, label, tile, y, x, op, 1, _VECTOR, past, scratch)
        _fence()
        return True

    tiles = types.Array(types.uint8, 4, "C", readonly=True)
    batch, column = types.Array(types.uint8, 4, "C"), types.Array(types.int64, 1, "C")
    bytes_ = types.Array(types.uint8, 1, "C")
    signature = types.boolean(tiles, tiles, batch, batch, *[column] * 4, bytes_)
    try:
        compiled = numba.njit(signature, nogil=True, cache=True)(copy)
    except RuntimeError:  # "no locator": neither next to the source nor in the user's cache folder
        return None
    return cast(CropKernel, compiled)
