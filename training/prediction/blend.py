"""Blend overlapping windows and convert them to bytes, one row of windows at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geoprep.compiled import compiled
from geoprep.speed import MAX_MPH, NODATA
from training.checkpoint import ModelInfo
from training.prediction.windows import WindowGrid, WindowRow

Part = tuple[int, int, int, int]
"""A rectangle: first row, last row, first column, last column; the last ones are excluded."""

ROAD_BAND, SPEED_BAND = 0, 1
"""Indices of the bands in a prediction; the speed bins follow. Without speeds only the first."""

CLASS_BAND = 0
"""Index of the class band in a prediction of classes."""

_USUAL = 8
"""Channels of most models of roads: seven bins of speed, and any road."""

Floats = NDArray[np.float32]


class RowBlender:
    """The prediction under one row of windows.

    It holds as many rows as a window, whatever the height of the image, and weighted sums: of the
    pixels of the current window, and of rows that the windows above and below share. Every pixel is
    converted to bytes with the last window that covers it. ``lost`` counts pixels where the model's
    output is not finite; they are nodata.
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
        bins: bool = True,
    ) -> None:
        self._rows, self._columns = rows, columns = grid.rows, grid.columns
        shape = columns.length, info.channels
        self._above = self._below = np.zeros((0, *shape), np.float32)
        self._sums = np.zeros((rows.side, columns.side, info.channels), np.float32)
        self._end = 0  # of the columns with sums
        self._row: WindowRow | None = None
        mph = np.array(info.class_mph, np.float32)
        bands = (info.channels if bins else 1) + (len(mph) > 0)
        self._convert: Callable[..., int] = partial(to_bytes, class_mph=mph, threshold=threshold)
        if info.has_classes:
            bands = 1 + confidence + probabilities * info.channels
            self._convert = partial(class_bytes, confidence=confidence, probabilities=probabilities)
        self._bytes = np.full((bands, rows.side, columns.length), NODATA, np.uint8)
        self.lost, self._threads = 0, threads
        self._pool = ThreadPoolExecutor(threads, "predict-blend")

    def __enter__(self) -> RowBlender:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def add(self, row: WindowRow, columns: Sequence[int], probabilities: Floats) -> None:
        """Add windows of a row by their indices, float32 (n, y, x, channel), from left to right."""
        self._enter(row)
        height = min(self._rows.side, self._rows.length - self._rows.starts[row.number])
        cuts = [height * i // self._threads for i in range(self._threads + 1)]
        for column, window in zip(columns, probabilities, strict=True):
            add = partial(self._add_rows, row, column, window)
            self.lost += sum(self._pool.map(add, cuts[:-1], cuts[1:]))
            self._end = self._columns.starts[column] + self._columns.side

    def take(self, row: WindowRow) -> NDArray[np.uint8]:
        """Return uint8 (band, y, x), the rows that no further window touches.

        It is valid until the next row of windows is added.
        """
        self._enter(row)
        return self._bytes[:, : self._rows.finished(row.number) - self._rows.starts[row.number]]

    def _enter(self, row: WindowRow) -> None:
        """Begin a row of windows, with the sums that it shares with the row above."""
        if row is self._row:
            return
        finished = self._rows.finished(row.number) - self._rows.starts[row.number]
        shape = max(0, self._rows.side - finished), *self._below.shape[1:]
        self._above, self._below = self._below, np.zeros(shape, np.float32)
        if not row.valid.all():  # otherwise, every pixel is written
            self._bytes[:] = NODATA
        self._row, self._end = row, 0

    def _add_rows(self, row: WindowRow, column: int, window: Floats, low: int, high: int) -> int:
        """Add the rows from ``low`` to ``high`` of a window; return how many pixels are lost."""
        rows, columns = self._rows, self._columns
        start, sums = columns.starts[column], self._sums
        width = min(columns.side, columns.length - start)
        known = max(0, self._end - start)  # columns of the window before
        done = columns.finished(column) - start
        bottom = rows.finished(row.number) - rows.starts[row.number]
        # No other window touches what is between these rows and columns.
        first = min(max(len(self._above), low), high)
        last, right = min(max(bottom, first), high), max(known, done)
        weights = rows.weights[row.number], columns.weights[column]
        for top, end, x, to in (
            (low, first, 0, width),
            (first, last, 0, known),
            (first, last, right, width),
            (last, high, 0, width),
        ):
            before = max(0, min(to, known) - x)
            part, above = sums[top:end], self._above[top:end, start + x : start + to]
            part[:, x : x + before] = part[:, columns.side - known :][:, x : x + before]
            part[:, x + before : to] = 0
            part[: len(above), x + before : to] = above[:, before:]
            fade(window, (top, end, x, to), *weights, sums)
        top = max(low, bottom)
        if top < high:
            self._below[top - bottom : high - bottom, start : start + done] = sums[top:high, :done]
        return sum(
            self._convert(values, part, start, row.valid, out=self._bytes)
            for values, part in (
                (sums, (low, min(first, bottom), 0, done)),
                (sums, (first, last, 0, min(known, done))),
                (window, (first, last, known, right)),
            )
        )


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
    channels like the first, if ``out`` has bands for them. 255 in every band without imagery or
    where a channel is not finite.
    """
    top, bottom, first, last = part
    channels, classes, width = values.shape[2], class_mph.shape[0], last - first
    begin, bins, lost = left + first, 1 + (classes > 0), 0
    scaled = np.empty(width * channels if out.shape[0] > bins else 0, np.uint8)
    for y in range(top, bottom):
        # Several simple loops, which the compiler vectorises: five times as fast as one loop.
        row = values[y].reshape(-1)[first * channels : last * channels]
        bits, largest = row.view(np.uint32), np.uint32(0)
        for i in range(width * channels):
            largest = max(largest, bits[i] & np.uint32(0x7FFFFFFF))
        lines = out[:, y, begin : begin + width]
        for x in range(width):
            lines[0, x] = _scaled(row[x * channels + channels - 1])
        for i in range(len(scaled)):
            scaled[i] = _scaled(row[i])
        if len(scaled):
            _deinterleave(scaled, channels, lines[bins:])
        if classes > 0:
            for x in range(width):
                lines[1, x] = 0
            for x in range(width):
                if row[x * channels + channels - 1] >= threshold:
                    lines[1, x] = _speed(row, x * channels, class_mph)
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
                    lines[k, x] = 255
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
def _scaled(value: np.float32) -> np.uint8:
    """Return a probability times 255, rounded half up, 0 to 254."""
    value = value * np.float32(255) + np.float32(0.5)
    return np.uint8(np.int32(min(max(value, np.float32(0)), np.float32(254))))


@compiled
def _deinterleave(values: NDArray[np.uint8], channels: int, planes: NDArray[np.uint8]) -> None:
    """Copy the channels of (pixel, channel) except the last one to (channel, pixel)."""
    if channels == _USUAL:  # a constant, with which the compiler vectorises: four times as fast
        for x in range(planes.shape[1]):
            for k in range(_USUAL - 1):
                planes[k, x] = values[x * _USUAL + k]
    else:
        for k in range(channels - 1):
            for x in range(planes.shape[1]):
                planes[k, x] = values[x * channels + k]


@compiled
def _speed(row: NDArray[np.float32], first: int, class_mph: NDArray[np.float32]) -> int:
    """Return the speed of the most likely class of the pixel that begins at ``first``, 1..253."""
    best = 0
    for k in range(1, class_mph.shape[0]):
        if row[first + k] > row[first + best]:
            best = k
    return int(min(max(class_mph[best] + 0.5, 1.0), MAX_MPH))


@compiled
def fade(
    window: NDArray[np.float32],
    part: Part,
    down: NDArray[np.float32],
    across: NDArray[np.float32],
    sums: NDArray[np.float32],
) -> None:
    """Add a part of a window, float32 (y, x, channel), to the sums, times its weights."""
    top, bottom, first, last = part
    channels, begin = window.shape[2], first * window.shape[2]
    weights = np.repeat(across[first:last], channels)
    for y in range(top, bottom):
        # One simple loop over all channels, which the compiler vectorises.
        row, line = window[y].reshape(-1)[begin:], sums[y].reshape(-1)[begin:]
        for i in range(len(weights)):
            line[i] += down[y] * weights[i] * row[i]
