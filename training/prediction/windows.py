"""Where windows lie over an image, how much each counts at every pixel, and what is under them."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.errors import UsageError
from geoprep.storage import open_image
from training.model import STRIDE
from training.prediction.images import Source, bounded_cache, read_rows, rows_at_a_time

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

T = TypeVar("T")
Bytes = NDArray[np.uint8]

WORTH_FITTING = 0.97
"""Windows leave the usual side where that saves 3 % of the pixels: one side, one compilation."""

_LARGEST_STRETCH = 1.25


@dataclass(frozen=True)
class Axis:
    """Windows along one axis.

    Attributes
    ----------
    length
        Of the image, in pixels of the network's grid.
    side
        Of every window, a multiple of 32; it reaches past an image that is smaller.
    starts
        Where they begin, ascending, spread evenly; the last ends where the image does.
    overlap
        Pixels over which a window fades in and out: neighbours share at least these.
    """

    length: int
    side: int
    starts: tuple[int, ...]
    overlap: int

    @property
    def covered(self) -> int:
        """Pixels that the windows reach over: the length, or more where it is small."""
        return max(self.length, self.starts[-1] + self.side)

    def finished(self, index: int) -> int:
        """Return how many pixels no window after this one touches."""
        return self.starts[index + 1] if index + 1 < len(self.starts) else self.length

    def alone(self, index: int) -> tuple[int, int]:
        """Return the range of a window's pixels that no other one covers, from its own start.

        An empty one begins and ends at the window's side. One that is not ends where the next
        window begins.
        """
        start = self.starts[index]
        low = self.starts[index - 1] + self.side - start if index else 0
        high = self.finished(index) - start
        return (low, high) if low < high else (self.side, self.side)

    def shared(self) -> list[slice]:
        """Return the ranges of the image's pixels that two windows cover, or more."""
        edges = [0]
        for i, start in enumerate(self.starts):
            low, high = self.alone(i)
            if low < high:
                edges += [start + low, start + high]
        edges.append(self.length)
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [slice(low, high) for low, high in pairs if low < high]

    def first_touching(self, pixel: int) -> int:
        """Return the first window that reaches over a pixel or past it, their number for none."""
        count = len(self.starts)
        return next((i for i, s in enumerate(self.starts) if s + self.side > pixel), count)

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """Return float32 (window, pixel of it): over every pixel of the image they sum to one.

        A raised cosine over the overlap, so that a window counts least where it sees least of its
        surroundings, divided by the sum of all windows there.
        """
        ramp = max(self.overlap, 1)
        inside = np.minimum(np.arange(self.side), np.arange(self.side)[::-1]) + 0.5
        profile = np.sin(np.pi / 2 * np.minimum(inside / ramp, 1.0)) ** 2
        total = np.zeros(self.covered)
        for start in self.starts:
            total[start : start + self.side] += profile
        shares = [profile / total[start : start + self.side] for start in self.starts]
        return np.stack(shares).astype(np.float32)


@dataclass(frozen=True)
class WindowGrid:
    """How an image is cut into windows and batches.

    Attributes
    ----------
    rows, columns
        The windows along y and x.
    batch
        Windows per batch.
    """

    rows: Axis
    columns: Axis
    batch: int

    @classmethod
    def over(cls, height: int, width: int, window: int, overlap: int, batch: int) -> WindowGrid:
        """Return the windows over an image, see `plan_axis`; ``batch`` is of windows that size."""
        rows, columns = plan_axis(height, window, overlap), plan_axis(width, window, overlap)
        # As many pixels per batch, whatever the windows of a small image.
        fitting = max(1, round(batch * window**2 / (rows.side * columns.side)))
        return cls(rows, columns, plan_batch(len(columns.starts), fitting))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Windows, rows and columns of a batch: what a network is compiled for."""
        return self.batch, self.rows.side, self.columns.side

    @property
    def window_pixels(self) -> int:
        """Pixels of one window."""
        return self.rows.side * self.columns.side

    @property
    def pixels(self) -> int:
        """Pixels of all windows together."""
        return len(self.rows.starts) * len(self.columns.starts) * self.window_pixels


def plan_axis(length: int, window: int, overlap: int) -> Axis:
    """Return the windows along an axis.

    An image smaller than the window gets one that just holds it. Otherwise the windows have the
    usual side, unless another one covers the image with noticeably fewer pixels.

    Parameters
    ----------
    length
        Of the image.
    window
        The usual side.
    overlap
        Pixels that neighbours share at least.

    Raises
    ------
    UsageError
        The window is no multiple of 32, or the overlap is more than half of it.
    """
    check_window(window, overlap)
    if length <= window:
        return Axis(length, _rounded_up(length), (0,), overlap)
    count = math.ceil((length - overlap) / (window - overlap))
    options = [(count, window)]
    for n in {count, max(1, count - 1)}:
        side = _rounded_up(math.ceil((length + (n - 1) * overlap) / n))
        if side <= window * _LARGEST_STRETCH and side < length:
            options.append((n, side))
    best = min(options, key=lambda option: option[0] * option[1])
    if best[0] * best[1] > WORTH_FITTING * count * window:
        best = options[0]
    n, side = best
    step = (length - side) / max(n - 1, 1)
    return Axis(length, side, tuple(round(i * step) for i in range(n)), overlap)


def check_window(window: int, overlap: int) -> None:
    """Raise UsageError where windows of this side and overlap cannot be laid."""
    if window < STRIDE or window % STRIDE:
        nearest = max(1, round(window / STRIDE)) * STRIDE
        raise UsageError(f"--window {window} is no multiple of {STRIDE}: use {nearest}")
    if not 0 <= overlap <= window // 2:
        raise UsageError(
            f"--overlap {overlap} must be at least 0 and at most half the window, {window // 2}"
        )


def plan_batch(windows: int, preferred: int) -> int:
    """Return how many windows go through the network at a time, few places in a row left empty.

    Parameters
    ----------
    windows
        In a row: batches do not reach into the next one, so that they are the same whenever a
        row is done again.
    preferred
        The size to stay near, and the largest unless another wastes less than a third of it.
    """
    if windows <= preferred:
        return max(1, windows)

    def waste(size: int) -> float:
        return -windows % size / windows

    sizes = range(max(1, preferred // 2), preferred + max(1, preferred // 4) + 1)
    best = min(sizes, key=lambda size: (waste(size), abs(size - preferred)))
    return best if waste(best) + 0.03 < waste(preferred) else preferred


def _rounded_up(length: int) -> int:
    return math.ceil(length / STRIDE) * STRIDE


class WindowRow(NamedTuple):
    """The pixels under one row of windows.

    Attributes
    ----------
    number
        Of the row of windows, from the top.
    image
        uint8 (y, x, band), as wide and high as the windows reach; 0 where there is no imagery.
        Beyond a small image's edge it is mirrored.
    valid
        uint8 (y, x), the same rows, only the columns of the image.
    """

    number: int
    image: Bytes
    valid: Bytes


def read_window_rows(
    source: Source, limits: NDArray[np.float64], grid: WindowGrid, first: int = 0
) -> Iterator[WindowRow]:
    """Yield the pixels under every row of windows; each row of the image is read once.

    Parameters
    ----------
    source
        As `training.prediction.images.inspect` returns it.
    limits
        float64 (band, 2), source values that become black and white.
    grid
        The windows.
    first
        Row of windows to begin with.

    Raises
    ------
    ImageError
        The image is damaged.
    """
    tables = imagery.lookup_tables(limits, source.dtype)
    rows, height, width = grid.rows, grid.rows.side, grid.columns.covered
    before: WindowRow | None = None
    with bounded_cache(), open_image(source.address) as dataset:
        for index in range(first, len(rows.starts)):
            top = rows.starts[index]
            image = np.empty((height, width, len(source.bands)), np.uint8)
            valid = np.ones((height, source.width), np.uint8)
            kept = 0
            if before is not None:
                moved = top - rows.starts[index - 1]
                kept = max(0, height - moved)
                image[:kept], valid[:kept] = before.image[moved:], before.valid[moved:]
            _fill(dataset, source, tables, top + kept, image[kept:], valid[kept:])
            there = image[: source.height - top, : source.width]
            if there.shape != image.shape:  # a small image: its mirror image
                beyond = [
                    (0, whole - part) for whole, part in zip(image.shape, there.shape, strict=True)
                ]
                image[...] = np.pad(there, beyond, "reflect")
            before = WindowRow(index, image, valid)
            yield before


def _fill(
    dataset: DatasetReader, source: Source, tables: Bytes, top: int, image: Bytes, valid: Bytes
) -> None:
    """Write rows of the network's grid from row ``top`` on, as many as there are."""
    scale_y, scale_x = source.scales
    xs = imagery.pixel_edges(0, source.width, 1, scale_x, source.lengths[1])
    step = max(1, int(rows_at_a_time(source) / scale_y))
    end = min(top + len(image), source.height)
    for start in range(top, end, step):
        stop = min(start + step, end)
        ys = imagery.pixel_edges(start, stop - start, 1, scale_y, source.lengths[0])
        first = int(ys[0])
        pixels = read_rows(dataset, source.bands, first, int(np.ceil(ys[-1])))
        part = slice(start - top, stop - top)
        imagery.render(pixels, tables, ys - first, xs, image[part], valid[part])


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield items of a generator, the next of which is made in a thread meanwhile.

    The generator runs in that thread from beginning to end, so its files stay there. Close what
    this returns (`contextlib.closing`): then the thread has ended and the generator is closed.
    """
    with ThreadPoolExecutor(1, "predict-read") as pool:
        try:
            coming = pool.submit(next, items, None)
            while (item := coming.result()) is not None:
                coming = pool.submit(next, items, None)
                yield item
        finally:
            pool.submit(getattr(items, "close", lambda: None))
