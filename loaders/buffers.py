"""Batches, and the pool of buffers that they are filled into.

All parts of a batch are in one block of bytes, so that one transfer moves a batch to a device.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loaders.crops import Crops

_ALIGN = 64
"""Bytes: a cache line, and more than any dtype here needs."""

_NUMPY = {torch.uint8: np.uint8, torch.int32: np.int32, torch.int64: np.int64}


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples as bytes; on the host valid for as long as any part of it is referenced.

    Attributes
    ----------
    image
        uint8 (n, band, y, x), in ``torch.channels_last`` order.
    speed
        uint8 (n, y, x), mph; 0 background, 254 road of unknown speed, 255 nodata.
    index
        int64 (n,), index of each sample's tile in the tiles.
    where
        int32 (n, 3), row and column of the crop in its tile, and its symmetry 0..7.
    key
        int64 (n,), hash of (seed, epoch, sample); the source of random augmentation on the device.
    block
        uint8, the memory that the other parts are views of; None for a batch made of parts.
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
        """Device of the batch."""
        return self.image.device

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Return the batch on a device; itself if it is there already.

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
    """Return the size of the block of a batch in bytes.

    Parameters
    ----------
    n, side, bands
        Samples, side of a sample in pixels, bands.
    """
    return sum(_aligned(d.itemsize * prod(shape)) for d, shape in _parts(n, side, bands))


def batch_of(block: Tensor, n: int, side: int, bands: int) -> Batch:
    """Return the batch in a block.

    Parameters
    ----------
    block
        uint8, at least `block_bytes` long.
    n, side, bands
        Samples, side of a sample in pixels, bands.
    """
    # Every operation of torch releases the interpreter's lock, and taking it back among threads
    # that fill batches takes longer than the operation. But torch finds a pinned block that is
    # still being copied from by its own storage, so a pinned block is sliced by torch.
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


class BufferPool:
    """Blocks for batches of one size, reused once nothing refers to them any more.

    A block is given out as a tensor; every view, slice or permutation of it keeps its storage,
    which keeps the array that was made for it. A weak reference to that array says when the last
    of them is gone, without a finaliser. So a batch is valid for as long as it is referenced,
    without a copy; a caller who keeps many makes the pool allocate more.

    Parameters
    ----------
    batch_size, side, bands
        Samples at most, side of a sample in pixels, bands.
    spare
        Number of blocks to keep.
    pinned
        Page-locked memory for asynchronous copies to a device. torch's own cache of it is then
        the pool: it alone knows when a copy that still reads a block has ended.
    device
        Device of the batches. On any but the host torch's allocator is the pool.

    Attributes
    ----------
    nbytes
        Size of a block.
    most_bytes
        Size of all spare blocks and one more.
    """

    def __init__(
        self,
        batch_size: int,
        side: int,
        bands: int,
        spare: int,
        *,
        pinned: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self.nbytes = block_bytes(batch_size, side, bands)
        self.pinned = pinned
        self.device = torch.device("cpu") if device is None else device
        self._side, self._bands = side, bands
        self.most_bytes = self.nbytes * (spare + 1)
        self._blocks: deque[tuple[weakref.ref[Any], NDArray[np.uint8]]] = deque(maxlen=spare)

    def batch(self, crops: Crops) -> Batch:
        """Return a batch with everything but the pixels of its crops."""
        n, side, bands = len(crops.tile), self._side, self._bands
        if self.device.type == "cpu":
            batch = batch_of(self.take(), n, side, bands)
            batch.index.numpy()[:] = crops.tile
            batch.key.numpy()[:] = crops.key
            where = batch.where.numpy()
            where[:, 0], where[:, 1], where[:, 2] = crops.y, crops.x, crops.op
            return batch
        nbytes = block_bytes(n, side, bands)
        block = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        # Index, place and key are filled here and cross the bus together.
        pixels = sum(_aligned(prod(shape)) for _, shape in _parts(n, side, bands)[:2])
        words = batch_of(torch.empty(nbytes - pixels, dtype=torch.uint8), n, 0, bands)
        words.index.numpy()[:], words.key.numpy()[:] = crops.tile, crops.key
        words.where.numpy()[:] = np.stack([crops.y, crops.x, crops.op], axis=1)
        assert words.block is not None
        block[pixels:].copy_(words.block)
        return batch_of(block, n, side, bands)

    def take(self) -> Tensor:
        """Return a block on the host, uint8 (nbytes,), with undefined content."""
        if self.pinned:
            return torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=True)
        busy = []
        block = None
        with suppress(IndexError):  # no lock, which a fork could leave taken
            while block is None:
                lent = self._blocks.pop()  # the most recent one is still in the cache
                if lent[0]() is None:
                    block = lent[1]
                else:
                    busy.append(lent)
        block = np.empty(self.nbytes, np.uint8) if block is None else block
        view = block.view()
        self._blocks.extend([*reversed(busy), (weakref.ref(view), block)])
        return torch.from_numpy(view)

    def clear(self) -> None:
        """Forget all blocks: those that no batch uses are freed."""
        self._blocks.clear()
