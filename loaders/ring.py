"""Batch buffers that are filled again only when nobody looks at them any more.

A block is handed out as a tensor. Every view, slice or permutation of it keeps the block leased;
when the last one is gone the block goes back to the ring. So a batch is valid for as long as it
is held, without a copy; who holds many batches makes the ring allocate more.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class _Lease:
    """The owner of a block while any array or tensor over it exists.

    NumPy makes the object behind ``__array_interface__`` the base of the array, and every view of
    that array, torch's included, refers to it in turn.
    """

    __slots__ = ("__array_interface__", "_block", "_free")

    def __init__(self, block: NDArray[np.uint8], free: deque[NDArray[np.uint8]]) -> None:
        self.__array_interface__: dict[str, Any] = block.__array_interface__
        self._block = block
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._block)  # atomic; a full deque drops its oldest block


class Ring:
    """Blocks of one size, recycled.

    Parameters
    ----------
    nbytes
        Size of a block.
    spare
        How many idle blocks to keep.
    pinned
        Page-locked memory for asynchronous copies to a device. torch's own cache of it is then
        the ring: it alone knows when a copy that still reads a block has ended.
    """

    def __init__(self, nbytes: int, spare: int, *, pinned: bool = False) -> None:
        self.nbytes = nbytes
        self.pinned = pinned
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=spare)

    def take(self) -> Tensor:
        """Return a block, uint8 (nbytes,), with whatever it held before."""
        if self.pinned:
            return torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=True)
        try:
            block = self._free.pop()  # the one used last: warm
        except IndexError:
            block = np.empty(self.nbytes, np.uint8)
        return torch.from_numpy(np.asarray(_Lease(block, self._free)))
