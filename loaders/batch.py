"""One batch, how its parts lie in one block of bytes, and where blocks come from."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loaders.sampling import Windows

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
    return Batch(*(map(torch.from_numpy, parts) if plain else parts), block[:end])


def put_windows(batch: Batch, windows: Windows) -> None:
    """Write into a batch on the host which windows its samples are."""
    batch.index.numpy()[:] = windows.tile
    batch.key.numpy()[:] = windows.key
    where = batch.where.numpy()
    where[:, 0], where[:, 1], where[:, 2] = windows.y, windows.x, windows.op


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
        self._lock = threading.Lock()  # taken by the threads that fill, never by a loop
        self._blocks: deque[tuple[weakref.ref[Any], NDArray[np.uint8]]] = deque(maxlen=spare)

    def take(self) -> Tensor:
        """Return a block, uint8 (nbytes,), with whatever it held before."""
        if self.pinned:
            return torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=True)
        with self._lock:
            idle = (i for i, (user, _) in enumerate(self._blocks) if user() is None)
            at = max(idle, default=None)  # the one handed out last: warm
            block = np.empty(self.nbytes, np.uint8) if at is None else self._blocks[at][1]
            if at is not None:
                del self._blocks[at]
            view = block.view()
            self._blocks.append((weakref.ref(view), block))
        return torch.from_numpy(view)

    def clear(self) -> None:
        """Let go of the blocks that nobody has."""
        self._blocks.clear()
