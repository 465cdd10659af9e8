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
    alone, it becomes bytes at once; sums are kept only of what windows share: rows at the top that
    the windows above reached, rows at the bottom that those below will, and columns between.

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
        self._channels = channels
        self._shared = columns.shared()
        widths = [part.stop - part.start for part in self._shared]
        self._offsets = np.cumsum([0, *widths]).tolist()
        self._between = np.zeros((rows.side, sum(widths), channels), np.float32)
        self._upper = np.zeros((0, columns.length, channels), np.float32)
        self._lower = self._upper
        self._row = -1
        bands = channels + (len(class_mph) > 0)
        self._bytes = np.full((bands, rows.side, columns.length), NO_DATA, np.uint8)
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
        """Rows of the map in memory."""
        return self._bytes.shape[1]

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
        self._enter(row)
        for column, window in zip(columns, probabilities, strict=True):

            def part(low: int, high: int, column: int = column, window=window) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - bound early
                self._add_rows(row, column, window, valid, low, high)

            self._share(self._height(row), part)

    def _enter(self, row: int) -> None:
        """Make room for a row of windows; what the one above left of its sums comes to the top."""
        if row == self._row:
            return
        top, bottom = self._rows.alone(row)
        carried = self._lower
        shape = self._columns.length, self._channels
        self._upper = np.zeros((top, *shape), np.float32)
        self._upper[: len(carried)] = carried
        self._lower = np.zeros((self._rows.side - bottom, *shape), np.float32)
        self._row = row

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
        for (low_row, high_row, low_column, high_column), above, begin, sums in (
            ((low, min(high, top), 0, width), 0, start, self._upper),
            ((first, last, 0, min(left, width)), 0, self._place(start), self._between),
            ((first, last, right, width), 0, self._place(start + right) - right, self._between),
            ((max(low, bottom), high, 0, width), bottom, start, self._lower),
        ):
            part = low_row, high_row, low_column, high_column
            if low_row < high_row and low_column < high_column:
                fade(window, part, above, begin, down, across, sums)
        if first < last and left < right:
            self._to_bytes(window, (first, last, left, right), start, valid)

    def _place(self, column: int) -> int:
        """Return where a column of the image, if windows share it, lies among those between."""
        for part, offset in zip(self._shared, self._offsets, strict=False):
            if part.start <= column < part.stop:
                return int(offset + column - part.start)
        return 0

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
        self._enter(row)
        top, _ = self._rows.alone(row)

        def finish(low: int, high: int) -> None:
            if low < top:
                part = low, min(high, top), 0, self._columns.length
                self._to_bytes(self._upper, part, 0, valid)
            if max(low, top) < high:
                for x, first, last in zip(
                    self._shared, self._offsets, self._offsets[1:], strict=False
                ):
                    part = max(low, top), high, first, last
                    self._to_bytes(self._between, part, x.start - first, valid)

        self._share(count, finish)
        return self._bytes[:, :count]

    def drop(self, row: int, count: int) -> None:
        """Let go of the first rows; keep the sums of those that the next windows share."""
        self._enter(row)
        top, bottom = self._rows.alone(row)
        if top == bottom:  # no row that is not shared: the sums at the top are all there are
            self._lower = self._upper[count:]
        self._between.fill(0)
        self._bytes.fill(NO_DATA)
