"""One batch, and how its parts lie in one block of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
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
    views, end = (_arrays if _is_plain(block) else _views)(block, n, side, bands)
    image, speed, index, where, key = views
    return Batch(image, speed, index, where, key, block[:end])


def _is_plain(block: Tensor) -> bool:
    """Whether a block is memory that no device copies from by itself."""
    return block.device.type == "cpu" and not block.is_pinned()


def _views(block: Tensor, n: int, side: int, bands: int) -> tuple[list[Tensor], int]:
    """Return the parts of a batch, image first, and where they end, as views by torch.

    A transfer that reads a pinned block while nobody waits finds the block by its storage.
    """
    views, offset = [], 0
    for dtype, shape in _parts(n, side, bands):
        nbytes = dtype.itemsize * prod(shape)
        views.append(block[offset : offset + nbytes].view(dtype).view(shape))
        offset += _aligned(nbytes)
    views[0] = views[0].permute(0, 3, 1, 2)
    return views, offset


def _arrays(block: Tensor, n: int, side: int, bands: int) -> tuple[list[Tensor], int]:
    """Return the same as `_views`, by NumPy.

    Every operation of torch lets go of the interpreter's lock, and to get it back among threads
    that fill batches takes longer than the operation.
    """
    views, offset = [], 0
    array = block.numpy()
    for dtype, shape in _parts(n, side, bands):
        nbytes = dtype.itemsize * prod(shape)
        part = array[offset : offset + nbytes].view(_NUMPY[dtype]).reshape(shape)
        views.append(torch.from_numpy(part if offset else part.transpose(0, 3, 1, 2)))
        offset += _aligned(nbytes)
    return views, offset


def put_windows(batch: Batch, windows: Windows) -> None:
    """Write into a batch on the host which windows its samples are."""
    batch.index.numpy()[:] = windows.tile
    batch.key.numpy()[:] = windows.key
    where = batch.where.numpy()
    where[:, 0], where[:, 1], where[:, 2] = windows.y, windows.x, windows.op
