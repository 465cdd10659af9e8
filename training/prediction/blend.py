"""Windows faded into each other, one row of them in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from geoprep.speed import NO_DATA
from training.prediction.pixels import Part, fade, to_bytes
from training.prediction.windows import Axis


class Strip:
    """The map under one row of windows.

    Holds as many rows as a window has and no more, whatever the image's height. Where a window is
    alone, it becomes bytes at once; sums are kept only of what windows share.

    Parameters
    ----------
    rows, columns
        The windows along both axes.
    channels
        Of the network.
    class_mph
        Speed of each class channel; empty for no speed band.
    threshold
        Least probability of any road for a speed.
    threads
        How many share the work.
    """

    def __init__(
        self,
        rows: Axis,
        columns: Axis,
        channels: int,
        class_mph: Sequence[float],
        threshold: float,
        threads: int,
    ) -> None:
        self._rows, self._columns = rows, columns
        self._mph = np.array(class_mph, np.float32)
        self._threshold = threshold
        self._sums = np.zeros((rows.side, columns.length, channels), np.float32)
        bands = channels + (len(class_mph) > 0)
        self._bytes = np.full((bands, rows.side, columns.length), NO_DATA, np.uint8)
        self._shared = columns.shared()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "predict-blend")

    def __enter__(self) -> Strip:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()

    @property
    def rows_held(self) -> int:
        """Rows of sums in memory."""
        return len(self._sums)

    def add(
        self,
        row: int,
        columns: Sequence[int],
        probabilities: NDArray[np.float32],
        valid: NDArray[np.uint8],
    ) -> None:
        """Add windows of one row.

        Parameters
        ----------
        row
            Index of the row of windows.
        columns
            Index of each window in it.
        probabilities
            float32 (n, y, x, channel).
        valid
            uint8 (y, x) of the whole row of windows, 0 where there is no imagery.
        """
        for column, window in zip(columns, probabilities, strict=True):

            def part(low: int, high: int, column: int = column, window=window) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - bound early
                self._add_rows(row, column, window, valid, low, high)

            self._share(self._height(row), part)

    def _height(self, row: int) -> int:
        return min(self._rows.side, self._rows.length - self._rows.starts[row])

    def _share(self, count: int, work: Callable[[int, int], None]) -> None:
        """Call ``work`` with ranges of rows, in all threads."""
        cuts = [count * i // self._threads for i in range(self._threads + 1)]
        list(self._pool.map(work, cuts[:-1], cuts[1:]))

    def _add_rows(
        self,
        row: int,
        column: int,
        window: NDArray[np.float32],
        valid: NDArray[np.uint8],
        low: int,
        high: int,
    ) -> None:
        """Add rows ``low`` to ``high`` of one window."""
        start = self._columns.starts[column]
        width = min(self._columns.side, self._columns.length - start)
        (top, bottom), (left, right) = self._rows.alone(row), self._columns.alone(column)
        first, last = max(low, top), min(high, bottom)
        down, across = self._rows.weights[row], self._columns.weights[column]
        for part in (
            (low, min(high, top), 0, width),
            (first, last, 0, min(left, width)),
            (first, last, right, width),
            (max(low, bottom), high, 0, width),
        ):
            if part[0] < part[1] and part[2] < part[3]:
                fade(window, part, start, down, across, self._sums)
        if first < last and left < right:
            self._to_bytes(window, (first, last, left, right), start, valid)

    def _to_bytes(
        self, values: NDArray[np.float32], part: Part, left: int, valid: NDArray[np.uint8]
    ) -> None:
        to_bytes(values, part, left, valid, self._mph, self._threshold, self._bytes)

    def take(self, row: int, count: int, valid: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return uint8 (band, count, x), the first rows of the map here; valid until `drop`.

        Parameters
        ----------
        row
            Index of the row of windows, all of which were added.
        count
            How many rows.
        valid
            As in `add`.
        """
        top, bottom = self._rows.alone(row)

        def finish(low: int, high: int) -> None:
            for first, last in ((low, min(high, top)), (max(low, bottom), high)):
                if first < last:
                    part = first, last, 0, self._columns.length
                    self._to_bytes(self._sums, part, 0, valid)
            first, last = max(low, top), min(high, bottom)
            for x in self._shared if first < last else []:
                self._to_bytes(self._sums, (first, last, x.start, x.stop), 0, valid)

        self._share(count, finish)
        return self._bytes[:, :count]

    def drop(self, row: int, count: int) -> None:
        """Move all rows up by ``count``, and begin the freed ones anew."""
        sums, freed = self._sums, self._rows.side - count
        top, bottom = self._rows.alone(row)
        sums[:freed] = sums[count:]
        sums[freed : max(freed, top)] = 0
        sums[max(freed, bottom) :] = 0
        for x in self._shared:  # elsewhere there is nothing to clear
            sums[max(freed, top) : max(freed, bottom), x] = 0
        self._bytes.fill(NO_DATA)
