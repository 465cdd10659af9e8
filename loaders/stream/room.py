"""Memory for tiles that come and go, which loaders use one epoch at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from loaders.ahead import Ahead, Crew
from loaders.batch import Ring


class Room:
    """A limit of memory, and the tiles of whichever epoch is running.

    Parameters
    ----------
    limit
        Bytes of tiles, batches, and what threads read.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._tiles = np.empty(0, np.uint8)
        self._crew: Crew[Any, Any] | None = None
        self._ring: Ring | None = None

    def enter(self, ring: Ring, tiles: int, beside: int) -> NDArray[np.uint8]:
        """Return memory for tiles; what was there before is over.

        Parameters
        ----------
        ring
            Buffers of the batches; those of the loader before are let go.
        tiles
            Bytes of tiles.
        beside
            Bytes of batches and of what threads read.

        Raises
        ------
        UsageError
            An epoch is running.
        """
        if self._crew is not None and not self._crew.over:
            if self._crew.owner() is not None and not self._crew.closed:
                raise UsageError(
                    "these tiles are in the middle of an epoch: end that iteration, or open them a "
                    "second time, with memory of their own"
                )
            self._crew.closed = True
            self._crew.wait()
        self._crew = None  # which knows the memory
        if self._ring is not None and self._ring is not ring:
            self._ring.clear()
        self._ring = ring
        if not tiles <= len(self._tiles) <= self.limit - beside:
            self._tiles = np.empty(0, np.uint8)  # first, or both would be held
            self._tiles = np.empty(tiles, np.uint8)
        return self._tiles

    def leave_to(self, epoch: Ahead[Any, Any]) -> None:
        """Say which epoch is running in the memory."""
        self._crew = epoch.crew
