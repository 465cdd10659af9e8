"""Threads that read tiles in the order in which the samples of an epoch need them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from loaders.batch import Crops, Ints, Pixels
from loaders.prefetch import SideThreads
from loaders.tiles.shuffle_order import ReadPlan

Read = Callable[[Ints, Pixels, Pixels], None]
"""Reads ascending tiles of one shard, see `StreamTiles.read`."""


class ReadingStoppedError(Exception):
    """The reading ended while a worker thread waited for a tile; the loop does not see it."""


class PlannedReading(SideThreads):
    """Threads that carry out a `ReadPlan`; copies crops of the tiles that have been read.

    It cannot block for ever as long as samples are copied in their order: the slot of the first
    sample that is left is then always free, see :mod:`loaders.tiles.shuffle_order`.
    """

    def __init__(
        self, plan: ReadPlan, samples: Ints, image: Pixels, label: Pixels, read: Read, threads: int
    ) -> None:
        self.threads, self._read = threads, read
        self._plan, self._image, self._label = plan, image, label
        self._order = np.argsort(samples, kind="stable")
        self._sorted = samples[self._order]
        self._changed = threading.Condition()
        self._present = np.zeros(len(plan.tile), np.bool_)
        # Samples left of every visit, and of visit -1, which stands for none.
        self._left = np.append(np.bincount(plan.visit, minlength=len(plan.tile)), 0)
        self._reads = iter(plan.reads.tolist())
        self._stopped = False
        self._failed: dict[int, BaseException] = {}  # by visit

    def run(self) -> None:
        """Read the next tiles, until all are read."""
        while (visits := self._claim()) is not None:
            tiles, slot = self._plan.tile[visits], int(self._plan.slot[visits.start])
            slots = slice(slot, slot + len(tiles))
            failed = {}
            try:
                self._read(tiles, self._image[slots], self._label[slots])
            except BaseException as error:  # raised where one of these tiles is needed
                failed = dict.fromkeys(range(visits.start, visits.stop), error)
            with self._changed:
                self._failed |= failed
                self._present[visits] = not failed
                self._changed.notify_all()

    def stop(self) -> None:
        """Wake up every thread that waits, and end the reading."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def copy(self, crops: Crops, image: Pixels, label: Pixels) -> None:
        """Copy crops, waiting for their tiles; called from worker threads.

        A tile that cannot be read raises StoreError. All samples before it are available,
        in whatever order tiles were read.
        """
        from loaders.copying import copy_crops  # numba is slow to import

        places = self._order[np.searchsorted(self._sorted, crops.sample)]
        visits, done = self._plan.visit[places], 0
        while done < len(visits):
            # As soon as tiles are there: the last may need the slot of the first.
            now = slice(done, done + self._wait(visits[done:]))
            there = crops.rows(now)._replace(tile=self._plan.slot[visits[now]])
            copy_crops(self._image, self._label, there, image[now], label[now])
            with self._changed:
                np.subtract.at(self._left, visits[now], 1)
                self._changed.notify_all()
            done = now.stop

    def _wait(self, visits: Ints) -> int:
        """Wait for the first of some visits; return how many, from the first on, are present."""
        with self._changed:
            while True:
                present = self._present[visits]
                count = len(present) if present.all() else int(np.argmin(present))
                if count:
                    return count
                if (error := self._failed.get(int(visits[0]))) is not None:
                    raise error
                if self._stopped:
                    raise ReadingStoppedError
                self._changed.wait()

    def _claim(self) -> slice | None:
        """Return the next visits to read, once their slots are free; None at the end."""
        with self._changed:
            visits = next((slice(*read) for read in self._reads), None)
            while visits and not self._stopped and self._left[self._plan.before[visits]].any():
                self._changed.wait()
            return None if self._stopped else visits
