"""Memory for tiles that come and go, and threads that read them ahead into it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from loaders.ahead import Ahead, Beside, Crew
from loaders.batch import Batch, Ring, as_items, copy_windows, put_windows
from loaders.sampling import Windows
from loaders.stream.window import ReadPlan


class StoppedError(Exception):
    """The reading was closed while somebody waited for a tile; nobody is left to see it."""


class ReadAhead(Beside):
    """Carries out a `ReadPlan`: reads as far ahead as memory allows, and says what is there.

    It cannot come to a standstill as long as samples are taken and given back in their order: the
    first sample that is still to be taken then always has its place in memory free, see
    `loaders.stream.window`.

    Parameters
    ----------
    plan
        What to read.
    read
        Reads visits ``first`` up to ``last`` into their slots; called from threads.
    threads
        How many.
    """

    def __init__(self, plan: ReadPlan, read: Callable[[int, int], None], threads: int) -> None:
        self.plan = plan
        self._read = read
        self._changed = threading.Condition()
        self._there = np.zeros(len(plan.tile), np.bool_)
        # Samples still to come of every visit, and of the visit -1, which is none.
        self._left = np.append(np.bincount(plan.visit, minlength=len(plan.tile)), 0)
        self._next = 0
        self._stopped = False
        self._failed: dict[int, BaseException] = {}  # by visit
        self._wanted = threads
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to read."""
        for number in range(self._wanted):
            name = f"loaders-read-{number}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def take(self, visits: NDArray[np.int64]) -> int:
        """Wait for the first of some visits; return how many of them, from the first, are there.

        Raises
        ------
        StoreError
            The first cannot be read. Those before a damaged tile can, whatever was read when.
        """
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

    def give_back(self, visits: NDArray[np.int64]) -> None:
        """Say that a sample of each of these visits has been copied."""
        with self._changed:
            np.subtract.at(self._left, visits, 1)
            self._changed.notify_all()

    def stop(self) -> None:
        """Let threads end as soon as they can, and nobody wait any longer."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until no thread reads any more."""
        while self._threads:
            # Let go of here: `threading` notes the end of a thread in Python code, in which Ctrl-C
            # would be lost if it were the loop that let go of the last reference.
            self._threads.pop().join()

    def _run(self) -> None:
        while (visits := self._claim()) is not None:
            try:
                self._read(*visits)
            except BaseException as error:  # for whoever comes to need these tiles
                failed = dict.fromkeys(range(*visits), error)
            else:
                failed = {}
            with self._changed:
                self._failed |= failed
                self._there[slice(*visits)] = not failed
                self._changed.notify_all()

    def _claim(self) -> tuple[int, int] | None:
        """Return the next visits to read, once their slots are free; None at the end."""
        with self._changed:
            if self._next == len(self.plan.reads):
                return None
            first, last = self.plan.reads[self._next].tolist()
            self._next += 1
            before = self.plan.before[first:last]
            while not self._stopped and self._left[before].any():
                self._changed.wait()
            return None if self._stopped else (first, last)


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


class Filling:
    """Fills batches from tiles that come and go.

    Parameters
    ----------
    tiles
        What reads them.
    image, speed
        uint8 (slot, y, x, band) and (slot, y, x), where they are read to.
    windows
        Of samples, by their place in the part of the epoch that the tiles are read for.
    take
        Gives a batch of so many samples to fill.
    """

    def __init__(
        self,
        tiles: ReadAhead,
        image: NDArray[np.uint8],
        speed: NDArray[np.uint8],
        windows: Callable[[slice], Windows],
        take: Callable[[int], Batch],
    ) -> None:
        self._tiles, self._plan = tiles, tiles.plan
        self._items, self._speed = as_items(image), speed
        self._windows, self._take = windows, take

    def __call__(self, part: tuple[int, int]) -> Batch:
        """Return the batch of samples ``first`` up to ``last``."""
        rows, done = slice(*part), 0
        visits = self._plan.visit[rows]
        try:
            w = self._windows(rows)
            batch = self._take(len(w))
            while done < len(visits):
                # As soon as tiles are there: the last may need the place of the first.
                now = slice(done, done + self._tiles.take(visits[done:]))
                slot = self._plan.slot[visits[now]]
                there = Windows(slot, w.y[now], w.x[now], w.op[now], w.key[now])
                copy_windows(self._items, self._speed, there, batch, now)
                self._tiles.give_back(visits[now])
                done = now.stop
        finally:  # after an error, or others would wait for these places for ever
            self._tiles.give_back(visits[done:])
        put_windows(batch, w)
        return batch
