"""Threads that read tiles ahead, into memory that is used again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loaders.ahead import Beside
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
        self._plan = plan
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
            if self._next == len(self._plan.reads):
                return None
            first, last = self._plan.reads[self._next].tolist()
            self._next += 1
            before = self._plan.before[first:last]
            while not self._stopped and self._left[before].any():
                self._changed.wait()
            return None if self._stopped else (first, last)
