"""A batch: its crops and their symmetries, its parts in one block of bytes, blocks used again.

All parts of a batch are in one block, so that one transfer moves a batch to a device.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoprep.errors import UsageError

Pixels = NDArray[np.uint8]
Ints = NDArray[np.int64]

FLIP_X, FLIP_Y, TRANSPOSE = 1, 2, 4
"""Bits of a symmetry: the crop is transposed first, then flipped in y, then flipped in x."""


class Crops(NamedTuple):
    """Square crops of tiles, one row per sample; int64 (n,) each."""

    tile: Ints
    y: Ints  # upper left corner in the tile, pixels
    x: Ints
    op: Ints  # symmetry 0..7: bits `TRANSPOSE`, `FLIP_Y`, `FLIP_X`, in that order
    key: Ints  # hash of (seed, epoch, sample), for augmentations on the device
    sample: Ints  # number in its epoch, before shuffling

    def rows(self, part: slice) -> Crops:
        """Return some of the crops, as views."""
        return Crops(*(column[part] for column in self))


def crop_affine(
    affine: tuple[float, ...], y: int, x: int, op: int, side: int
) -> tuple[float, float, float, float, float, float]:
    """Return the affine of a crop under a symmetry, ``a b c d e f``, from that of its tile."""
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


_ALIGN = 64
"""Bytes: a cache line, and more than any dtype here needs."""

Shape = tuple[int, ...]

_PARTS = ("image", "label", "index", "where", "key")


@dataclass(eq=False)
class Batch:
    """Samples as bytes; on the host valid for as long as any part of it is referenced.

    Attributes
    ----------
    image
        uint8 (n, band, y, x), in ``torch.channels_last`` order.
    label
        uint8 (n, y, x), 255 nodata. Of speeds: mph, 0 background, 254 road of unknown speed. Of
        classes: the number of the class.
    index
        int64 (n,), index of each sample's tile in the tiles.
    where
        int32 (n, 3), row and column of the crop in its tile, and its symmetry 0..7.
    key
        int64 (n,), hash of (seed, epoch, sample); the source of random augmentation on the device.
    block
        uint8, the memory that the other parts are views of; None for a batch made of parts.
    has_classes
        Whether the label holds classes, not speeds.
    """

    image: Tensor
    label: Tensor
    index: Tensor
    where: Tensor
    key: Tensor
    block: Tensor | None = None
    has_classes: bool = False

    def __len__(self) -> int:
        return len(self.index)

    @property
    def speed(self) -> Tensor:
        """The label of speeds, uint8 (n, y, x); raises UsageError if it holds classes."""
        check_speeds("batch.label", has_classes=self.has_classes)
        return self.label

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
        non_blocking = non_blocking and has_streams(device)
        if device == self.device or (device.index is None and device.type == self.device.type):
            return self
        if self.block is not None:
            block = self.block.to(device, non_blocking=non_blocking)
            n, bands, side, _ = self.image.shape
            return batch_of(block, n, side, bands, has_classes=self.has_classes)
        parts = {n: getattr(self, n).to(device, non_blocking=non_blocking) for n in _PARTS}
        return Batch(**parts, has_classes=self.has_classes)

    def copy_from(self, batch: Batch) -> None:
        """Copy the samples of another batch of this shape, without waiting for a device."""
        whole = self.block is not None and batch.block is not None
        for name in ("block",) if whole else _PARTS:
            getattr(self, name).copy_(getattr(batch, name), non_blocking=True)


def has_streams(device: torch.device) -> bool:
    """Return whether a device has streams and takes pinned memory, as all but the CPU."""
    return device.type != "cpu"


def copy_words(source: NDArray[Any], target: Tensor) -> None:
    """Copy a small array to a tensor of the same shape and dtype, without waiting for its device.

    torch's cache of pinned memory keeps the copy that is sent until the device has read it.
    """
    words, pinned = torch.from_numpy(source), has_streams(target.device)
    target.copy_(words.pin_memory() if pinned else words, non_blocking=pinned)


def check_speeds(instead: str, *, has_classes: bool) -> None:
    """Raise UsageError if labels hold classes; the message names what to use instead."""
    if has_classes:
        raise UsageError(f"these labels hold classes, not speeds: use `{instead}`")


@lru_cache(maxsize=16)
def _layout(n: int, side: int, bands: int) -> tuple[list[tuple[torch.dtype, Shape, int]], int]:
    """Return dtype, shape and first byte of the parts of a block, and its size."""
    parts: tuple[tuple[torch.dtype, Shape], ...] = (
        (torch.uint8, (n, side, side, bands)),
        (torch.uint8, (n, side, side)),
        (torch.int64, (n,)),
        (torch.int32, (n, 3)),
        (torch.int64, (n,)),
    )
    sizes = [-(-dtype.itemsize * prod(shape) // _ALIGN) * _ALIGN for dtype, shape in parts]
    starts = list(accumulate(sizes, initial=0))
    return [(*part, start) for part, start in zip(parts, starts, strict=False)], starts[-1]


def block_bytes(n: int, side: int, bands: int) -> int:
    """Return the size of the block of a batch."""
    return _layout(n, side, bands)[1]


def batch_of(block: Tensor, n: int, side: int, bands: int, *, has_classes: bool = False) -> Batch:
    """Return the batch in a block, uint8, whose parts are views of it."""
    layout, end = _layout(n, side, bands)
    # Views of the block also where it is pinned: torch finds a block that is still being copied
    # from by its own storage.
    image, label, index, where, key = (
        block[start:][: dtype.itemsize * prod(shape)].view(dtype).view(shape)
        for dtype, shape, start in layout
    )
    image = image.permute(0, 3, 1, 2)
    return Batch(image, label, index, where, key, block[:end], has_classes)


def describe(batch: Batch, crops: Crops) -> None:
    """Write index, place and key of crops to a batch on the host."""
    batch.index.numpy()[:], batch.key.numpy()[:] = crops.tile, crops.key
    np.stack(crops[1:4], axis=1, out=batch.where.numpy(), casting="same_kind")


class BufferPool:
    """Blocks for batches of one size, reused once nothing refers to them any more.

    A block is given out as a tensor; every view, slice or permutation of it keeps its storage,
    which keeps the array that was made for it. A weak reference to that array says when the last
    of them is gone, without a finaliser. So a batch is valid for as long as it is referenced,
    without a copy; a caller who keeps many makes the pool allocate more.

    Pinned blocks, and those on a ``device`` where batches are gathered, come from torch's caches:
    they alone know when a copy that still reads a block has ended.
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
        has_classes: bool = False,
    ) -> None:
        self.has_classes, self.pinned, self.device = has_classes, pinned, device
        self.nbytes = block_bytes(batch_size, side, bands)
        self._side, self._bands = side, bands
        self.most_bytes = self.nbytes * (spare + 1)
        self._blocks: deque[tuple[weakref.ref[Any], memoryview]] = deque(maxlen=spare)

    def batch(self, crops: Crops) -> tuple[Batch, Any, Any]:
        """Return a batch without its pixels, and where they go: (n, y, x, band) and (n, y, x).

        They are tensors on a device, else arrays.
        """
        n, side, bands = len(crops.tile), self._side, self._bands
        if self.device:
            block = torch.empty(self.nbytes, dtype=torch.uint8, device=self.device)
        elif self.pinned:
            block = torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=True)
        else:
            block = torch.from_numpy(self.take())
        batch = batch_of(block, n, side, bands, has_classes=self.has_classes)
        image = batch.image.permute(0, 2, 3, 1)
        if not self.device:
            describe(batch, crops)
            return batch, image.numpy(), batch.label.numpy()
        # Index, place and key are filled on the host and cross the bus together.
        words = torch.empty(block_bytes(n, 0, bands), dtype=torch.uint8)
        describe(batch_of(words, n, 0, bands), crops)
        assert batch.block is not None
        copy_words(words.numpy(), batch.block[-len(words) :])
        return batch, image, batch.label

    def take(self) -> NDArray[np.uint8]:
        """Return a block, uint8 (nbytes,), with undefined content."""
        busy = []
        block = None
        with suppress(IndexError):  # no lock, which a fork could leave taken
            while block is None:
                lent = self._blocks.pop()  # the most recent one is still in the cache
                if lent[0]() is None:
                    block = lent[1]
                else:
                    busy.append(lent)
        # Not an array: views of a view of one refer to it, and not to the view in between.
        block = np.empty(self.nbytes, np.uint8).data if block is None else block
        view = np.frombuffer(block, np.uint8)
        self._blocks.extend([*reversed(busy), (weakref.ref(view), block)])
        return view

    def clear(self) -> None:
        """Forget all blocks: those that no batch uses are freed."""
        self._blocks.clear()
