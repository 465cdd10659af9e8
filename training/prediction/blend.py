"""Blend overlapping windows and convert them to bytes, one row of windows at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled
from geoprep.speed import MAX_MPH, NODATA
from training.checkpoint import ModelInfo
from training.prediction.window_rows import WindowRow
from training.prediction.windows import WindowGrid

Part = tuple[int, int, int, int]
"""A rectangle: first row, last row, first column, last column; the last ones are excluded."""

ROAD_BAND, SPEED_BAND = 0, 1
"""Indices of the bands in a prediction; the speed bins follow. Without speeds only the first."""

CLASS_BAND = 0
"""Index of the class band in a prediction of classes."""

Array: TypeAlias = Any
"""An array of NumPy; of torch in a blender on an accelerator."""


class RowBlender:
    """The prediction under one row of windows.

    It holds as many rows as a window, whatever the height of the image. Pixels of one window only
    are converted to bytes at once. Weighted sums are kept where windows overlap: in rows at the top
    (shared with the windows above) and at the bottom, and in columns between neighbours.

    Parameters
    ----------
    grid
        The windows.
    info
        What the model was trained for: number of channels, speed per bin (the first channels).
    threshold
        Minimum probability of a road, for the speed band.
    threads
        Number of threads.
    confidence, probabilities
        Whether a prediction of classes has these bands, see `class_bytes`.

    Attributes
    ----------
    lost
        Number of pixels where the model's output is not finite; they are nodata.
    """

    def __init__(
        self,
        grid: WindowGrid,
        info: ModelInfo,
        threshold: float,
        threads: int,
        *,
        confidence: bool = False,
        probabilities: bool = False,
    ) -> None:
        self._has_classes, self._extra = info.has_classes, (confidence, probabilities)
        self._rows, self._columns = rows, columns = grid.rows, grid.columns
        self._channels = info.channels
        self._mph = np.array(info.class_mph, np.float32)
        self._threshold = threshold
        self._shared = columns.shared()
        is_shared = np.zeros(columns.covered + 1, np.intp)
        for part in self._shared:
            is_shared[part] = 1
        self._place = (
            np.cumsum(is_shared) - is_shared
        ).tolist()  # index of a column among the shared ones
        self._down: Array = rows.weights
        self._across: Array = columns.weights
        self._between = self._zeros(rows.side, self._place[-1], info.channels)
        self._upper = self._lower = self._zeros(0, columns.length, info.channels)
        self._row: WindowRow | None = None
        bands = info.channels + (len(info.class_mph) > 0)
        if info.has_classes:
            bands = 1 + confidence + probabilities * info.channels
        self._bytes = self._blank(bands, rows.side, columns.length)
        self.lost, self._counting = 0, Lock()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "predict-blend")

    def __enter__(self) -> RowBlender:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def add(self, row: WindowRow, columns: Sequence[int], probabilities: Array) -> None:
        """Add some windows of a row.

        Parameters
        ----------
        row
            The row of windows.
        columns
            Index of each window in the row.
        probabilities
            float32 (n, y, x, channel).
        """
        self._enter(row)
        height = min(self._rows.side, self._rows.length - self._rows.starts[row.number])
        for column, window in zip(columns, probabilities, strict=True):
            self._share(height, partial(self._add_rows, row, column, window))

    def deliver(
        self, row: WindowRow, skipped: int, put: Callable[[NDArray[np.uint8]], None]
    ) -> None:
        """Call ``put`` with the rows of `take`, except for the first ``skipped`` ones."""
        put(self.take(row)[:, skipped:])

    def finish(self) -> int:
        """Wait until all rows are delivered; return ``lost``."""
        return self.lost

    def take(self, row: WindowRow) -> Array:
        """Return uint8 (band, y, x), the rows that no further window touches.

        The array is valid until the next row of windows is added.

        Parameters
        ----------
        row
            The row of windows, all of which were added.
        """
        self._enter(row)
        top, _ = self._rows.alone(row.number)

        def finish(low: int, high: int) -> None:
            if low < top:
                part = low, min(high, top), 0, self._columns.length
                self._to_bytes(self._upper, part, 0, row)
            if max(low, top) < high:
                for x in self._shared:
                    first, last = self._place[x.start], self._place[x.stop]
                    part = max(low, top), high, first, last
                    self._to_bytes(self._between, part, x.start - first, row)

        count = self._rows.finished(row.number) - self._rows.starts[row.number]
        self._share(count, finish)
        return self._bytes[:, :count]

    def _enter(self, row: WindowRow) -> None:
        """Begin a row of windows, with the sums that it shares with the row above."""
        if row is self._row:
            return
        before, carried = self._row, self._lower
        if before is not None:
            top, bottom = self._rows.alone(before.number)
            if top == bottom:  # all rows are shared: the upper sums hold everything
                done = self._rows.starts[row.number] - self._rows.starts[before.number]
                carried = self._upper[done:]
            self._between[:] = 0
            if not row.valid.all():  # otherwise, every pixel is written
                self._bytes[:] = NODATA
        top, bottom = self._rows.alone(row.number)
        shape = self._columns.length, self._channels
        self._upper = self._zeros(top, *shape)
        self._upper[: len(carried)] = carried
        self._lower = self._zeros(self._rows.side - bottom, *shape)
        self._row = row

    def _zeros(self, *shape: int) -> Array:
        return np.zeros(shape, np.float32)

    def _blank(self, *shape: int) -> Array:
        return np.full(shape, NODATA, np.uint8)

    def _share(self, count: int, work: Callable[[int, int], None]) -> None:
        """Call ``work`` with ranges of rows in all threads."""
        cuts = [count * i // self._threads for i in range(self._threads + 1)]
        list(self._pool.map(work, cuts[:-1], cuts[1:]))

    def _add_rows(self, row: WindowRow, column: int, window: Array, low: int, high: int) -> None:
        """Add the rows from ``low`` to ``high`` of one window."""
        start = self._columns.starts[column]
        width = min(self._columns.side, self._columns.length - start)
        (top, bottom), (left, right) = self._rows.alone(row.number), self._columns.alone(column)
        first, last = max(low, top), min(high, bottom)
        down, across = self._down[row.number], self._across[column]
        before, after = self._place[start], self._place[start + right] - right
        for part, above, begin, sums in (
            ((low, min(high, top), 0, width), 0, start, self._upper),
            ((first, last, 0, min(left, width)), 0, before, self._between),
            ((first, last, right, width), 0, after, self._between),
            ((max(low, bottom), high, 0, width), bottom, start, self._lower),
        ):
            if part[0] < part[1] and part[2] < part[3]:
                self._fade(window, part, above, begin, down, across, sums)
        if first < last and left < right:
            self._to_bytes(window, (first, last, left, right), start, row)

    def _fade(
        self,
        window: Array,
        part: Part,
        above: int,
        left: int,
        down: Array,
        across: Array,
        sums: Array,
    ) -> None:
        fade(window, part, above, left, down, across, sums)

    def _to_bytes(self, values: Array, part: Part, left: int, row: WindowRow) -> None:
        if self._has_classes:
            lost = class_bytes(values, part, left, row.valid, *self._extra, self._bytes)
        else:
            how = self._mph, self._threshold, self._bytes
            lost = to_bytes(values, part, left, row.valid, *how)
        with self._counting:
            self.lost += lost


@compiled
def to_bytes(
    values: NDArray[np.float32],
    part: Part,
    left: int,
    valid: NDArray[np.uint8],
    class_mph: NDArray[np.float32],
    threshold: float,
    out: NDArray[np.uint8],
) -> int:
    """Write probabilities and speeds as bytes; return the number of pixels that are not finite.

    Speeds are those of `training.evaluation.decode.speed_byte`. Arrays are whole and contiguous, so
    that the compiler can vectorise.

    Parameters
    ----------
    values
        float32 (y, x, channel), probabilities; the last channel is any road.
    part
        The part of ``values`` to write.
    left
        Column of ``valid`` and ``out`` where ``values`` begin; the rows are the same.
    valid
        uint8 (y, x), 0 where there is no imagery.
    class_mph
        float32 (class), the speeds of the first channels in mph; empty for no speed band.
    threshold
        Minimum probability of a road, for the speed band.
    out
        uint8 (band, y, x), written: the probability of any road times 255, rounded half up, at most
        254; the speed of the most likely class, 1..253, or 0 for background; the other channels
        like the first. 255 in every band without imagery or where a channel is not finite.
    """
    top, bottom, first, last = part
    channels, classes, width = values.shape[2], class_mph.shape[0], last - first
    begin, bins, lost = left + first, 1 + (classes > 0), 0
    scaled = np.empty(width * channels, np.uint8)
    for y in range(top, bottom):
        # Several simple loops, which the compiler vectorises: five times as fast as one loop.
        row = values[y].reshape(-1)[first * channels : last * channels]
        bits, largest = row.view(np.uint32), np.uint32(0)
        for i in range(width * channels):
            value = row[i] * np.float32(255) + np.float32(0.5)
            scaled[i] = np.uint8(np.int32(min(max(value, np.float32(0)), np.float32(254))))
            largest = max(largest, bits[i] & np.uint32(0x7FFFFFFF))
        for k in range(channels):
            line = out[bins + k if k < channels - 1 else 0, y, begin : begin + width]
            for x in range(width):
                line[x] = scaled[x * channels + k]
        if classes > 0:
            line = out[1, y, begin : begin + width]
            line[:] = 0
            for x in range(width):
                if row[x * channels + channels - 1] >= threshold:
                    line[x] = _speed(row[x * channels : x * channels + classes], class_mph)
        finite = largest < np.uint32(0x7F800000)  # the exponent of infinity and NaN
        seen, hidden = valid[y, begin : begin + width], False
        for x in range(width):
            hidden |= seen[x] == 0
        if finite and not hidden:
            continue
        for x in range(width):
            known = seen[x] != 0
            if known and not finite:
                total = np.float32(0)
                for k in range(channels):
                    total += row[x * channels + k]
                if not np.isfinite(total):
                    known = False
                    lost += 1
            if not known:
                for k in range(out.shape[0]):
                    out[k, y, begin + x] = 255
    return lost


@compiled
def class_bytes(
    values: NDArray[np.float32],
    part: Part,
    left: int,
    valid: NDArray[np.uint8],
    confidence: bool,
    probabilities: bool,
    out: NDArray[np.uint8],
) -> int:
    """Write the most probable classes as bytes; return the number of pixels that are not finite.

    Parameters
    ----------
    values
        float32 (y, x, class), probabilities that add up to 1.
    part, left, valid
        As for `to_bytes`.
    confidence
        Whether the next band is the largest probability minus the second, times 255, rounded half
        up, at most 254.
    probabilities
        Whether the probability of each class follows, coded in the same way.
    out
        uint8 (band, y, x), written: the most probable class, the first of equal ones. 255 in every
        band without imagery or where a probability is not finite.
    """
    top, bottom, first, last = part
    channels, begin, lost = values.shape[2], left + first, 0
    for y in range(top, bottom):
        for x in range(last - first):
            best, second, at = np.float32(-1), np.float32(-1), 0
            total = np.float32(0)
            for k in range(channels):
                value = values[y, first + x, k]
                total += value
                if value > best:
                    best, second, at = value, best, k
                elif value > second:
                    second = value
            known = valid[y, begin + x] != 0
            if known and not np.isfinite(total):
                known = False
                lost += 1
            if not known:
                for k in range(out.shape[0]):
                    out[k, y, begin + x] = 255
                continue
            out[0, y, begin + x] = at
            if confidence:
                out[1, y, begin + x] = _scaled(best - max(second, np.float32(0)))
            if probabilities:
                for k in range(channels):
                    out[1 + confidence + k, y, begin + x] = _scaled(values[y, first + x, k])
    return lost


@compiled
def _scaled(value: np.float32) -> int:
    """Return a probability times 255, rounded half up, 0 to 254."""
    return int(min(max(value * np.float32(255) + np.float32(0.5), np.float32(0)), np.float32(254)))


@compiled
def _speed(row: NDArray[np.float32], class_mph: NDArray[np.float32]) -> int:
    """Return the speed of the most likely class of one pixel, 1..253."""
    speed, likeliest = 0, np.float32(-1)
    for k in range(class_mph.shape[0]):
        if row[k] > likeliest:
            likeliest = row[k]
            speed = int(min(max(class_mph[k] + 0.5, 1.0), MAX_MPH))
    return speed


@compiled
def fade(
    window: NDArray[np.float32],
    part: Part,
    above: int,
    left: int,
    down: NDArray[np.float32],
    across: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    """Add a part of a window to the sums, multiplied by its weights.

    Parameters
    ----------
    window
        float32 (y, x, channel).
    part
        The part of the window to add.
    above
        Row of the window where ``sums`` begin.
    left
        Column of ``sums`` where the window begins; may be negative.
    down, across
        float32 (y) and (x), weights of the window's rows and columns.
    sums
        float32 (y, x, channel).
    """
    top, bottom, first, last = part
    channels, width = window.shape[2], last - first
    weights = np.empty(width * channels, np.float32)
    for x in range(width):
        for k in range(channels):
            weights[x * channels + k] = across[first + x]
    for y in range(top, bottom):
        # One simple loop over all channels, which the compiler vectorises.
        row = window[y].reshape(-1)[first * channels : last * channels]
        line = sums[y - above].reshape(-1)
        line = line[(left + first) * channels : (left + last) * channels]
        for i in range(width * channels):
            line[i] += down[y] * weights[i] * row[i]
