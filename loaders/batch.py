"""One batch: its parts in one block of bytes, where blocks come from, and windows copied into it.

Windows are copied at memory speed: a pixel is one item, whatever its number of bands. NumPy then
moves 1, 2, 4 or 8 bytes at a time and releases the lock while it does, so plain threads scale. A
window whose pixels change places within a row is first copied, row by row, into a scratch that
stays in the cache: memory is read forwards, and only the cache is read sideways. Measured against
compiled loops (numba, blocked) this is as fast or faster for 3 and for 8 bands, with nothing to
compile.

Two cases have a way of their own. Items of 3 bytes, which NumPy moves by a call each, are mirrored
band by band, in half the time; transposed that gains nothing, since three bands are three walks
across the rows. And whole tiles are copied with as little Python as can be, since threads wait for
each other in it, and by a ufunc: NumPy's own copy is ``memcpy``, for such lengths ``rep movsb``,
which loses a quarter of its speed on some processors (AMD Zen) where one end begins on a cache line
and the other does not.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loaders.sampling import FLIP_X, FLIP_Y, TRANSPOSE, Sampling, Schedule, Step, Windows

_ALIGN = 64
"""Bytes: a cache line, and more than any dtype here needs."""

_NUMPY = {torch.uint8: np.uint8, torch.int32: np.int32, torch.int64: np.int64}


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples as bytes; on the host valid for as long as any part of it is held.

    Attributes
    ----------
    image
        uint8 (n, band, y, x), in ``torch.channels_last`` order.
    speed
        uint8 (n, y, x), mph; 0 no road, 255 no data.
    index
        int64 (n,), index of each sample's tile in the tiles.
    where
        int32 (n, 3), row and column of the window in its tile, and its symmetry 0..7.
    key
        int64 (n,), hash of (seed, epoch, sample); feeds random augmentation on the device.
    block
        uint8, what the others are views of where the batch was filled on the host, so that one
        transfer moves all.
    """

    image: Tensor
    speed: Tensor
    index: Tensor
    where: Tensor
    key: Tensor
    block: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def device(self) -> torch.device:
        """Where the batch is."""
        return self.image.device

    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return views of a batch on the host: uint8 (n, y, x, band) and (n, y, x)."""
        return self.image.numpy().transpose(0, 2, 3, 1), self.speed.numpy()

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Return the batch on a device; itself where it already is there.

        Parameters
        ----------
        device
            Such as ``cuda``, ``xpu`` or ``cpu``.
        non_blocking
            Return before the copy has ended; safe, since torch keeps a pinned block until then.
        """
        device = torch.device(device)
        if device == self.device or (device.index is None and device.type == self.device.type):
            return self
        if self.block is not None:
            n, bands, side = len(self), self.image.shape[1], self.image.shape[2]
            return batch_of(self.block.to(device, non_blocking=non_blocking), n, side, bands)
        parts = (self.image, self.speed, self.index, self.where, self.key)
        return Batch(*(part.to(device, non_blocking=non_blocking) for part in parts))


def _parts(n: int, side: int, bands: int) -> tuple[tuple[torch.dtype, tuple[int, ...]], ...]:
    """Return dtype and shape of image (channels last in memory), speed, index, where, key."""
    return (
        (torch.uint8, (n, side, side, bands)),
        (torch.uint8, (n, side, side)),
        (torch.int64, (n,)),
        (torch.int32, (n, 3)),
        (torch.int64, (n,)),
    )


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def block_bytes(n: int, side: int, bands: int) -> int:
    """Return the size of the block of a batch in bytes."""
    return sum(_aligned(d.itemsize * prod(shape)) for d, shape in _parts(n, side, bands))


def batch_of(block: Tensor, n: int, side: int, bands: int) -> Batch:
    """Return the batch that lies in a block.

    Parameters
    ----------
    block
        uint8, at least `block_bytes` long.
    n, side, bands
        Samples, window side in pixels, bands.
    """
    # Every operation of torch lets go of the interpreter's lock, and to get it back among threads
    # that fill batches takes longer than the operation. But whoever copies from a pinned block
    # while nobody waits finds the block by torch's storage.
    plain = block.device.type == "cpu" and not block.is_pinned()
    source: Any = block.numpy() if plain else block
    parts, end = [], 0
    for dtype, shape in _parts(n, side, bands):
        nbytes = dtype.itemsize * prod(shape)
        part = source[end : end + nbytes].view(_NUMPY[dtype] if plain else dtype)
        parts.append(part.reshape(shape))
        end += _aligned(nbytes)
    parts[0] = parts[0].swapaxes(1, 3).swapaxes(2, 3)
    image, speed, index, where, key = map(torch.from_numpy, parts) if plain else parts
    return Batch(image, speed, index, where, key, block[:end])


class Ring:
    """Blocks of one size, filled again only when nobody looks at them any more.

    A block is handed out as a tensor; every view, slice or permutation of it keeps its storage,
    which keeps the array that was made for it. A weak reference to that array says when the last
    of them is gone, without a finaliser. So a batch is valid for as long as it is held, without a
    copy; who holds many makes the ring allocate more.

    Parameters
    ----------
    nbytes
        Size of a block.
    spare
        How many blocks to keep.
    pinned
        Page-locked memory for asynchronous copies to a device. torch's own cache of it is then
        the ring: it alone knows when a copy that still reads a block has ended.
    """

    def __init__(self, nbytes: int, spare: int, *, pinned: bool = False) -> None:
        self.nbytes = nbytes
        self.pinned = pinned
        self._blocks: deque[tuple[weakref.ref[Any], NDArray[np.uint8]]] = deque(maxlen=spare)

    def take(self) -> Tensor:
        """Return a block, uint8 (nbytes,), with whatever it held before."""
        if self.pinned:
            return torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=True)
        busy = []
        block = None
        with suppress(IndexError):  # no lock, which a fork could leave taken
            while block is None:
                lent = self._blocks.pop()  # the one handed out last first: warm
                if lent[0]() is None:
                    block = lent[1]
                else:
                    busy.append(lent)
        block = np.empty(self.nbytes, np.uint8) if block is None else block
        view = block.view()
        self._blocks.extend([*reversed(busy), (weakref.ref(view), block)])
        return torch.from_numpy(view)

    def clear(self) -> None:
        """Let go of the blocks that nobody has."""
        self._blocks.clear()


Feed = Callable[[int, Sequence[Step]], Iterator[Batch]]
"""What a kind of tiles gives to a loader: from epoch and steps to the batch of every step."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a loader asks of tiles.

    Attributes
    ----------
    sampling
        What an epoch consists of, in the order that the tiles gave it.
    schedule
        Which positions this rank takes.
    bands
        Of the images.
    threads
        That fill batches.
    prefetch
        Batches filled ahead.
    pinned
        Whether batches are page-locked.
    """

    sampling: Sampling
    schedule: Schedule
    bands: int
    threads: int
    prefetch: int
    pinned: bool

    def ring(self) -> Ring:
        """Return buffers for the batches."""
        nbytes = block_bytes(self.schedule.batch_size, self.sampling.window, self.bands)
        # In work or waiting, with the one that the loop gets next: prefetch + 1. And what it has.
        return Ring(nbytes, self.prefetch + 2, pinned=self.pinned)

    def batch(self, ring: Ring, windows: Windows) -> Batch:
        """Return a batch that says which windows its samples are; its pixels are to be filled."""
        n = len(windows.tile)
        batch = batch_of(ring.take(), n, self.sampling.window, self.bands)
        batch.index.numpy()[:] = windows.tile
        batch.key.numpy()[:] = windows.key
        where = batch.where.numpy()
        where[:, 0], where[:, 1], where[:, 2] = windows.y, windows.x, windows.op
        return batch


_SCRATCH_PAD = 17
"""Extra items in a row of scratch: a power of two as its length would crowd one cache set."""

_RGB = 3
"""Bytes of an item that is mirrored band by band."""

_NOTHING = np.uint8(0)


class _Scratch(threading.local):
    """What each thread keeps: a scratch for every (side, dtype) it has met."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, np.dtype[Any]], NDArray[Any]] = {}


_scratches = _Scratch()


def as_items(image: NDArray[np.uint8]) -> NDArray[Any]:
    """Return uint8 (..., band), C-contiguous, as one item per pixel: shape (...)."""
    bands = image.shape[-1]
    dtype = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(bands, f"V{bands}")
    return image.view(dtype)[..., 0]


def _scratch(side: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return this thread's (side, side) scratch."""
    found = _scratches.found
    key = (side, dtype)
    if key not in found:
        found[key] = np.zeros((side, side + _SCRATCH_PAD), dtype)[:, :side]
    return found[key]


def copy_window(tile: NDArray[Any], y: int, x: int, op: int, out: NDArray[Any]) -> None:
    """Copy a square window of one tile, under a symmetry.

    Parameters
    ----------
    tile
        Items (side, side).
    y, x
        Upper left corner of the window.
    op
        Symmetry 0..7, see `loaders.sampling`.
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
    """Return contiguous items as so many rows of bytes, which are theirs and no copy."""
    flat: NDArray[np.uint8] = items.reshape(rows, -1).view(np.uint8)
    return flat


def _copy_bytes(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> None:
    np.bitwise_or(source, _NOTHING, out=target)


def _copy_by_band(items: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy items of a few bytes, in any order of rows and columns, a byte of each at a time."""
    for band in range(out.dtype.itemsize):
        out.getfield(np.uint8, band)[...] = items.getfield(np.uint8, band)


def gather(tiles: NDArray[Any], windows: Windows, out: NDArray[Any]) -> None:
    """Copy the windows of many tiles.

    Parameters
    ----------
    tiles
        Items (tile, side, side), from `as_items`; or a speed mask as it is.
    windows
        Which, one row per sample.
    out
        Items (n, crop, crop); written.
    """
    whole = out.shape[1:] == tiles.shape[1:] and not windows.op.any()
    if whole and tiles.flags.c_contiguous and out.flags.c_contiguous:
        sources, targets = (_bytes(array, rows=len(array)) for array in (tiles, out))
        for tile, target in zip(windows.tile.tolist(), targets, strict=True):
            _copy_bytes(sources[tile], target)
        return
    rows = zip(*(a.tolist() for a in (windows.tile, windows.y, windows.x, windows.op)), strict=True)
    for i, (tile, y, x, op) in enumerate(rows):
        copy_window(tiles[tile], y, x, op, out[i])


def symmetry(array: NDArray[Any], op: int) -> NDArray[Any]:
    """Return a view of (side, side, ...) under a symmetry 0..7."""
    if op & TRANSPOSE:
        array = array.swapaxes(0, 1)
    if op & FLIP_Y:
        array = array[::-1]
    if op & FLIP_X:
        array = array[:, ::-1]
    return array


def copy_windows(
    items: NDArray[Any],
    masks: NDArray[np.uint8],
    windows: Windows,
    image: NDArray[np.uint8],
    speed: NDArray[np.uint8],
) -> None:
    """Copy windows of tiles, images and masks.

    Parameters
    ----------
    items, masks
        Items (tile, y, x), from `as_items`, and uint8 (tile, y, x).
    windows
        Which.
    image, speed
        uint8 (n, y, x, band) and (n, y, x), C-contiguous; written.
    """
    gather(items, windows, as_items(image))
    gather(masks, windows, speed)
