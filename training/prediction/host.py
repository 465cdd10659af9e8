"""The pixels of a prediction on the host, where kernels of numba render and blend them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.cog.halving import halve_by_average, halve_by_mode
from geoprep.compiled import compiled
from geoprep.cpus import usable_cpus
from geoprep.imagery.counts import count_source
from geoprep.imagery.resample import rendered
from geoprep.speed import NODATA
from training.checkpoint import ModelInfo
from training.prediction.image_rows import Convert, ImageRows, kept_probabilities
from training.prediction.predict_options import PredictOptions
from training.prediction.window_rows import Bytes, WindowRow
from training.prediction.windows import Floats, WindowGrid
from training.runners.decoding import Part, class_bytes, road_bytes, spread_bytes


class Host:
    """The pixels of rows in the memory of the host, made by kernels of numba.

    `device.Device` has the same methods for tensors on a device.
    """

    blends = "numba"
    decoders = 1  # threads: the model has all processors to itself
    timings: Sequence[tuple[Any, Any]] = ()  # events around the model that are to be read
    count = staticmethod(count_source)
    count_nonzero = staticmethod(np.count_nonzero)
    render = staticmethod(rendered)
    image_rows: Callable[..., ImageRows] = ImageRows
    put = staticmethod(np.asarray)  # values to where the pixels are
    working: Callable[[], AbstractContextManager[Any]] = nullcontext  # around reading
    # Of a writer: what takes the rows of the prediction
    downloads: Callable[..., AbstractContextManager[Any]] = nullcontext

    def filled(self, shape: Sequence[int], value: int) -> Any:  # noqa: ANN401 - see above
        """Return uint8 pixels of one value."""
        return np.full(shape, value, np.uint8)

    @staticmethod
    def halve(fine: Bytes, coarse: Bytes, by_mode: bool) -> None:
        """Write the most frequent of 2 x 2 pixels, or their average; see `Halve`."""
        halve_by_mode(fine, coarse) if by_mode else halve_by_average(fine, coarse, NODATA)

    def mark(self) -> Any:  # noqa: ANN401 - see above
        """Return what tells that the pixels are ready."""
        return None

    def receive(self, row: WindowRow) -> None:
        """Wait for the pixels of a row."""

    def windows(self, row: WindowRow, columns: Sequence[int], grid: WindowGrid, count: int) -> Any:  # noqa: ANN401 - see above
        """Return windows of a row, uint8 (n, band, y, x), and black ones up to ``count``."""
        starts, side = grid.columns.starts, grid.columns.side
        shape = max(count, len(columns)), grid.rows.side, side, row.image.shape[2]
        image = np.empty(shape, np.uint8)
        for window, column in zip(image, columns, strict=False):
            window[...] = row.image[:, starts[column] : starts[column] + side]
        image[len(columns) :] = 0
        return image.transpose(0, 3, 1, 2)

    def to_bytes(
        self, info: ModelInfo, options: PredictOptions, threshold: float, spread: bool
    ) -> Convert:
        """Return what converts probabilities to the bands of a prediction."""
        if info.has_classes:
            confidence, probabilities = options.confidence, options.probabilities
            convert: Convert = partial(
                class_bytes, confidence=confidence, probabilities=probabilities
            )
        else:
            mph = np.array(info.class_mph, np.float32)
            convert = partial(road_bytes, mph=mph, threshold=threshold)
        return partial(spread_bytes, convert=convert) if spread else convert

    def blender(
        self, grid: WindowGrid, channels: int, bands: int, convert: Convert | None
    ) -> AbstractContextManager[Any]:
        """Return what blends windows; without ``convert``, to be interpolated by `image_rows`."""
        shape = grid.rows.side, grid.columns.length
        out: NDArray[Any] = np.empty((bands, *shape), np.uint8)
        if convert is None:
            convert, out = kept_probabilities, np.empty((*shape, channels), np.uint16)
            out = out.transpose(2, 0, 1)
        return RowBlender(grid, channels, out, convert, usable_cpus())


class RowBlender:
    """The prediction under one row of windows.

    It holds as many rows as a window, whatever the height of the image, and weighted sums: of the
    pixels of the current window, and of rows that the windows above and below share. Every pixel is
    converted with the last window that covers it, by ``convert``, into ``out`` (band, y, x), the
    rows of a window: `road_bytes` or `class_bytes` with their options, or `kept_probabilities`.
    ``lost`` counts pixels where the model's output is not finite; they are nodata.
    """

    def __init__(
        self, grid: WindowGrid, channels: int, out: NDArray[Any], convert: Convert, threads: int
    ) -> None:
        self._rows, self._columns = rows, columns = grid.rows, grid.columns
        shape = columns.length, channels
        self._above = self._below = np.zeros((0, *shape), np.float32)
        self._sums = np.zeros((rows.side, columns.side, channels), np.float32)
        self._end = 0  # of the columns with sums
        self._row: WindowRow | None = None
        self._out = out
        self._out[:] = NODATA
        self.lost, self._convert, self._threads = 0, convert, threads
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

    def take(self, row: WindowRow) -> NDArray[Any]:
        """Return the rows of ``out`` (band, y, x) that no further window touches.

        It is valid until the next row of windows is added.
        """
        self._enter(row)
        return self._out[:, : self._rows.finished(row.number) - self._rows.starts[row.number]]

    def _enter(self, row: WindowRow) -> None:
        """Begin a row of windows, with the sums that it shares with the row above."""
        if row is self._row:
            return
        finished = self._rows.finished(row.number) - self._rows.starts[row.number]
        shape = max(0, self._rows.side - finished), *self._below.shape[1:]
        self._above, self._below = self._below, np.zeros(shape, np.float32)
        if not row.valid.all():  # otherwise, every pixel is written
            self._out[:] = NODATA
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
            self._convert(values, part, start, row.valid, out=self._out)
            for values, part in (
                (sums, (low, min(first, bottom), 0, done)),
                (sums, (first, last, 0, min(known, done))),
                (window, (first, last, known, right)),
            )
        )


@compiled
def fade(window: Floats, part: Part, down: Floats, across: Floats, sums: Floats) -> None:
    """Add a part of a window, float32 (y, x, channel), to the sums, times its weights."""
    top, bottom, first, last = part
    channels, begin = window.shape[2], first * window.shape[2]
    weights = np.repeat(across[first:last], channels)
    for y in range(top, bottom):
        # One simple loop over all channels, which the compiler vectorises.
        row, line = window[y].reshape(-1)[begin:], sums[y].reshape(-1)[begin:]
        for i in range(len(weights)):
            line[i] += down[y] * weights[i] * row[i]
