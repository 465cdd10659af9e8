"""Blend overlapping windows and convert them to bytes, one row of windows at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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

Floats = NDArray[np.float32]


class RowBlender:
    """The prediction under one row of windows.

    It holds as many rows as a window, whatever the height of the image. Pixels of one window only
    are converted to bytes at once. Weighted sums are kept where windows overlap: in rows at the top
    (shared with the windows above) and at the bottom, and in columns between neighbours. ``lost``
    counts pixels where the model's output is not finite; they are nodata.
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
        self._between = np.zeros((rows.side, self._place[-1], info.channels), np.float32)
        self._upper = self._lower = np.zeros((0, columns.length, info.channels), np.float32)
        self._row: WindowRow | None = None
        bands = info.channels + (len(info.class_mph) > 0)
        if info.has_classes:
            bands = 1 + confidence + probabilities * info.channels
        self._bytes = np.full((bands, rows.side, columns.length), NODATA, np.uint8)
        self.lost, self._counting = 0, Lock()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "predict-blend")

    def __enter__(self) -> RowBlender:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def add(self, row: WindowRow, columns: Sequence[int], probabilities: Floats) -> None:
        """Add windows of a row by their indices, float32 (n, y, x, channel)."""
        self._enter(row)
        height = min(self._rows.side, self._rows.length - self._rows.starts[row.number])
        for column, window in zip(columns, probabilities, strict=True):
            self._share(height, partial(self._add_rows, row, column, window))

    def take(self, row: WindowRow) -> NDArray[np.uint8]:
        """Return uint8 (band, y, x), the rows that no further window touches.

        It is valid until the next row of windows is added.
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
        self._upper = np.zeros((top, *shape), np.float32)
        self._upper[: len(carried)] = carried
        self._lower = np.zeros((self._rows.side - bottom, *shape), np.float32)
        self._row = row

    def _share(self, count: int, work: Callable[[int, int], None]) -> None:
        """Call ``work`` with ranges of rows in all threads."""
        cuts = [count * i // self._threads for i in range(self._threads + 1)]
        list(self._pool.map(work, cuts[:-1], cuts[1:]))

    def _add_rows(self, row: WindowRow, column: int, window: Floats, low: int, high: int) -> None:
        """Add the rows from ``low`` to ``high`` of one window."""
        start = self._columns.starts[column]
        width = min(self._columns.side, self._columns.length - start)
        (top, bottom), (left, right) = self._rows.alone(row.number), self._columns.alone(column)
        first, last = max(low, top), min(high, bottom)
        down, across = self._rows.weights[row.number], self._columns.weights[column]
        before, after = self._place[start], self._place[start + right] - right
        for part, above, begin, sums in (
            ((low, min(high, top), 0, width), 0, start, self._upper),
            ((first, last, 0, min(left, width)), 0, before, self._between),
            ((first, last, right, width), 0, after, self._between),
            ((max(low, bottom), high, 0, width), bottom, start, self._lower),
        ):
            if part[0] < part[1] and part[2] < part[3]:
                fade(window, part, above, begin, down, across, sums)
        if first < last and left < right:
            self._to_bytes(window, (first, last, left, right), start, row)

    def _to_bytes(self, values: Floats, part: Part, left: int, row: WindowRow) -> None:
        if self._has_classes:
            lost = class_bytes(values, part, left, row.valid, *self._extra, self._bytes)
        else:
            how = self._mph, self._threshold, self._bytes
            lost = to_bytes(values, part, left, row.valid, *how)
        with self._counting:
            self.lost += lost


def label_bytes(probabilities: Tensor, info: ModelInfo, threshold: float) -> Tensor:
    """Return the speed or class band of probabilities (n, channel, y, x), uint8 (n, y, x)."""
    values = np.ascontiguousarray(probabilities.permute(0, 2, 3, 1).cpu().numpy())
    (_, height, width, channels), mph = values.shape, np.array(info.class_mph, np.float32)
    valid, part = np.ones((height, width), np.uint8), (0, height, 0, width)
    label = np.empty((len(values), channels + 1, height, width), np.uint8)
    for one, out in zip(values, label, strict=True):
        if info.has_classes:
            class_bytes(one, part, 0, valid, False, False, out)
        else:
            to_bytes(one, part, 0, valid, mph, threshold, out)
    return torch.from_numpy(label[:, CLASS_BAND if info.has_classes else SPEED_BAND])


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

    ``values`` are float32 (y, x, channel) with any road last; their ``part`` goes to the same rows
    of ``valid``, uint8 (y, x), 0 without imagery, and ``out``, uint8 (band, y, x), from column
    ``left`` on. The bands: the probability of any road times 255, rounded half up, at most 254;
    with speeds per class that of the most likely class, 1..253, or 0 for background; the other
    channels like the first. 255 in every band without imagery or where a channel is not finite.
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

    As `to_bytes`, of probabilities that add up to 1. The bands: the most probable class, the first
    of equal ones; on request the largest probability minus the second, and that of each class, both
    times 255, rounded half up, at most 254.
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
    """Add a part of a window, float32 (y, x, channel), to the sums, times its weights.

    ``sums`` begin at row ``above`` of the window; the window begins at their column ``left``, which
    may be negative.
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
