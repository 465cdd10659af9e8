"""Memory for tiles that come and go, and threads that read them ahead into it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from loaders.ahead import Ahead, Beside, Crew
from loaders.batch import Batch, Ring, as_items, copy_windows
from loaders.sampling import Windows
from loaders.window import ReadPlan


class StoppedError(Exception):
    """The reading was closed while somebody waited for a tile; nobody is left to see it."""


class ReadAhead(Beside):
    """Carries out a `ReadPlan`, and fills batches from the tiles that are there.

    It reads as far ahead as memory allows, and cannot come to a standstill as long as samples are
    taken in their order: the first that is still to be taken then always has its place in memory
    free, see `loaders.window`.

    Parameters
    ----------
    plan
        What to read.
    image, speed
        uint8 (slot, y, x, band) and (slot, y, x), where to.
    read
        Reads tiles of one shard, int64 and ascending, to images and masks.
    threads
        How many read.
    """

    def __init__(
        self,
        plan: ReadPlan,
        image: NDArray[np.uint8],
        speed: NDArray[np.uint8],
        read: Callable[[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint8]], None],
        threads: int,
    ) -> None:
        self.threads = threads
        self._plan, self._image, self._speed, self._read = plan, image, speed, read
        self._changed = threading.Condition()
        self._there = np.zeros(len(plan.tile), np.bool_)
        # Samples still to come of every visit, and of the visit -1, which is none.
        self._left = np.append(np.bincount(plan.visit, minlength=len(plan.tile)), 0)
        self._reads = iter(plan.reads.tolist())
        self._stopped = False
        self._failed: dict[int, BaseException] = {}  # by visit

    def run(self) -> None:
        """Read what is next, until there is nothing more."""
        while (visits := self._claim()) is not None:
            tiles, slot = self._plan.tile[visits], int(self._plan.slot[visits.start])
            slots = slice(slot, slot + len(tiles))
            failed = {}
            try:
                self._read(tiles, self._image[slots], self._speed[slots])
            except BaseException as error:  # for whoever comes to need these tiles
                failed = dict.fromkeys(range(visits.start, visits.stop), error)
            with self._changed:
                self._failed |= failed
                self._there[visits] = not failed
                self._changed.notify_all()

    def stop(self) -> None:
        """Let threads end as soon as they can, and nobody wait any longer."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def fill(self, batch: Batch, windows: Windows, rows: slice) -> None:
        """Copy the pixels of a batch, waiting for its tiles; called from threads.

        Parameters
        ----------
        batch
            To be filled.
        windows
            Of its samples.
        rows
            Their places among all samples of the plan.

        Raises
        ------
        StoreError
            A tile cannot be read. Those before it can, whatever was read when.
        """
        image, speed = batch.arrays()
        items, visits, done = as_items(self._image), self._plan.visit[rows], 0
        while done < len(visits):
            # As soon as tiles are there: the last may need the place of the first.
            now = slice(done, done + self._wait(visits[done:]))
            there = windows.rows(now)._replace(tile=self._plan.slot[visits[now]])
            copy_windows(items, self._speed, there, image[now], speed[now])
            with self._changed:
                np.subtract.at(self._left, visits[now], 1)
                self._changed.notify_all()
            done = now.stop

    def _wait(self, visits: NDArray[np.int64]) -> int:
        """Wait for the first of some visits; return how many of them, from the first, are there."""
        with self._changed:
            while True:
                there = self._there[visits]
                count = len(there) if there.all() else int(np.argmin(there))
                if count:
                    return count
                if (error := self._failed.get(int(visits[0]))) is not None:
                    raise error
                if self._stopped:
                    raise StoppedError
                self._changed.wait()

    def _claim(self) -> slice | None:
        """Return the next visits to read, once their slots are free; None at the end."""
        with self._changed:
            visits = next((slice(*read) for read in self._reads), None)
            while visits and not self._stopped and self._left[self._plan.before[visits]].any():
                self._changed.wait()
            return None if self._stopped else visits


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
            Their bytes.
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
        return self._tiles[:tiles]

    def leave_to(self, epoch: Ahead[Any, Any]) -> None:
        """Say which epoch is running in the memory."""
        self._crew = epoch.crew
