"""The windows of an image: positions, weights at every pixel, and the pixels under each row."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.errors import UsageError
from training.model import STRIDE
from training.prediction.images import ImageReader, ReadRows

T = TypeVar("T")
Bytes = NDArray[np.uint8]

_WORTH_ANOTHER_SIDE = 0.97
"""Windows get another side if that saves 3 % of the pixels: each side is compiled separately."""

_LARGEST_STRETCH = 1.25
_WHOLE = 1.3
"""Side of a window that covers an image alone, over the usual side: chips of SpaceNet have 1300
pixels. Of a larger image, windows of that side would leave threads without work at its end."""


@dataclass(frozen=True)
class Axis:
    """Windows along one axis of the model's grid; they fade in and out over the overlap."""

    length: int  # of the image
    side: int  # of every window, a multiple of 32; longer than an image that is smaller
    starts: tuple[int, ...]  # ascending, evenly spread; the last window ends with the image
    overlap: int  # neighbours share at least as many pixels

    @property
    def covered(self) -> int:
        """Pixels under the windows: the length, or one side if the image is smaller."""
        return max(self.length, self.starts[-1] + self.side)

    def finished(self, index: int) -> int:
        """Return the number of leading pixels that no window after this one touches."""
        return self.starts[index + 1] if index + 1 < len(self.starts) else self.length

    def first_touching(self, pixel: int) -> int:
        """Return the first window that ends after a pixel; the number of windows if none does."""
        count = len(self.starts)
        return next((i for i, s in enumerate(self.starts) if s + self.side > pixel), count)

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """Return float32 (window, pixel of it); they sum to one at every pixel of the image.

        A raised cosine over the overlap, so that a window weighs least at its edge, where
        it has least context, divided by the sum over all windows.
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
    """The windows over an image, and the number of windows per batch."""

    rows: Axis
    columns: Axis
    batch: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Windows, rows and columns of a batch: the shape that a model is compiled for."""
        return self.batch, self.rows.side, self.columns.side

    @property
    def window_pixels(self) -> int:
        """Pixels of one window."""
        return self.rows.side * self.columns.side

    @property
    def pixels(self) -> int:
        """Pixels of all windows together."""
        return len(self.rows.starts) * len(self.columns.starts) * self.window_pixels


def window_grid(height: int, width: int, window: int, overlap: int, batch: int) -> WindowGrid:
    """Return the windows over an image; smaller windows get more per batch."""
    rows, columns = plan_axis(height, window, overlap), plan_axis(width, window, overlap)
    count = len(columns.starts)
    most = min(count, max(1, round(batch * window**2 / (rows.side * columns.side))))
    # A batch never continues in the next row, so that a row that is repeated has the same batches.
    # Of the sizes down to half of the largest, one leaves fewest places empty at the end of a row.
    sizes = range(most, most // 2, -1)
    return WindowGrid(rows, columns, min(sizes, key=lambda size: -count % size))


def plan_axis(length: int, window: int, overlap: int) -> Axis:
    """Return the windows along an axis.

    1. An image that is smaller than the window, or little larger: one that just covers it.
    2. Otherwise windows of the requested side,
    3. unless another side, for as many windows or one less, covers it with clearly fewer pixels.
    """
    if (covering := _rounded_up(length)) <= window * _WHOLE:  # 1
        return Axis(length, covering, (0,), overlap)
    count = math.ceil((length - overlap) / (window - overlap))
    usual = best = (count, window)  # 2
    for fewer in {count, count - 1}:  # 3; the order of the set decides between equal ones
        side = _rounded_up(math.ceil((length + (fewer - 1) * overlap) / fewer))
        if side <= window * _LARGEST_STRETCH and side < length:
            best = min(best, (fewer, side), key=math.prod)
    if math.prod(best) > _WORTH_ANOTHER_SIDE * math.prod(usual):
        best = usual
    count, side = best
    step = (length - side) / max(count - 1, 1)
    return Axis(length, side, tuple(round(i * step) for i in range(count)), overlap)


def check_window(window: int, overlap: int) -> None:
    """Raise UsageError if the side or the overlap of the windows is invalid."""
    if window < STRIDE or window % STRIDE:
        nearest = max(1, round(window / STRIDE)) * STRIDE
        raise UsageError(f"`window` {window} is not a multiple of {STRIDE}: use {nearest}")
    if not 0 <= overlap <= window // 2:
        raise UsageError(
            f"`overlap` {overlap} is out of range: use 0 to half the window, {window // 2}"
        )


def _rounded_up(length: int) -> int:
    return math.ceil(length / STRIDE) * STRIDE


class WindowRow(NamedTuple):
    """The pixels under one row of windows."""

    number: int  # from the top
    image: Bytes  # (y, x, band), 0 without imagery; mirrored beyond the edge of a smaller image
    valid: Bytes  # (y, x), 0 without imagery; the same rows, the columns of the image only
    # Bits (y, x) of the image itself, from row `seen_top` on, 0 without imagery; if it is resampled
    seen: Bytes = np.empty((0, 0), np.uint8)
    seen_top: int = 0


def read_window_rows(
    reader: ImageReader, limits: NDArray[np.float64], grid: WindowGrid, first: int = 0
) -> Iterator[WindowRow]:
    """Yield the pixels under every row of windows; each row of the image is read once."""
    source = reader.source
    tables = imagery.lookup_tables(limits, source.dtype)
    rows, height, width = grid.rows, grid.rows.side, grid.columns.covered
    before: WindowRow | None = None
    with reader.opened() as read:
        for index in range(first, len(rows.starts)):
            top = rows.starts[index]
            image = np.empty((height, width, len(source.bands)), np.uint8)
            valid = np.ones((height, source.width), np.uint8)
            kept = 0
            if before is not None:
                moved = top - rows.starts[index - 1]
                kept = max(0, height - moved)
                image[:kept], valid[:kept] = before.image[moved:], before.valid[moved:]
            seen_top, fresh_top = (int(row * source.scales[0]) for row in (top, top + kept))
            seen = [_fill(read, reader, tables, top + kept, image[kept:], valid[kept:])]
            if before is not None:
                kept_rows = slice(seen_top - before.seen_top, fresh_top - before.seen_top)
                seen.insert(0, before.seen[kept_rows])
            if source.limits is not None:
                fresh = image[kept:]
                reader.values += int(np.count_nonzero(fresh))
                reader.ends += int(np.count_nonzero((fresh == 1) | (fresh == 255)))
            inside = image[: source.height - top, : source.width]
            if inside.shape != image.shape:  # a small image is continued by its mirror image
                sizes = zip(image.shape, inside.shape, strict=True)
                beyond = [(0, side - covered) for side, covered in sizes]
                image[...] = np.pad(inside, beyond, "reflect")
            before = WindowRow(index, image, valid, np.concatenate(seen), seen_top)
            yield before


def _fill(
    read: ReadRows,
    reader: ImageReader,
    tables: Bytes,
    top: int,
    image: Bytes,
    valid: Bytes,
) -> Bytes:
    """Write rows of the model's grid into ``image`` and ``valid``, from row ``top`` on.

    Return the bits ``seen`` of the rows of the image under them, see `WindowRow`.
    """
    source = reader.source
    scale_y, scale_x = source.scales
    xs = imagery.pixel_edges(0, source.width, 1, scale_x, source.lengths[1])
    step = max(1, int(reader.rows_at_a_time / scale_y))
    end, seen, seen_top = min(top + len(image), source.height), [], int(top * scale_y)
    for start in range(top, end, step):
        stop = min(start + step, end)
        ys = imagery.pixel_edges(start, stop - start, 1, scale_y, source.lengths[0])
        first = int(ys[0])
        pixels = read(first, int(np.ceil(ys[-1])))
        part = slice(start - top, stop - top)
        imagery.render(pixels, tables, ys - first, xs, image[part], valid[part])
        if source.on_image:
            fresh = slice(seen_top - first, None)  # where two parts share a row of the image
            here = (
                np.ones(pixels.values.shape[:2], np.uint8) if pixels.valid is None else pixels.valid
            )
            seen.append(np.packbits(here[fresh] != 0, axis=1))
            seen_top = int(np.ceil(ys[-1]))
    return np.concatenate(seen) if seen else np.empty((0, -(-source.lengths[1] // 8)), np.uint8)


def prefetched(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield the items of a generator; a thread computes the next one meanwhile.

    The generator runs in that thread from beginning to end, since GDAL's datasets must not
    change threads. Close the returned generator (`contextlib.closing`): it closes ``items`` as
    well.
    """
    with ThreadPoolExecutor(1, "predict-read") as pool:
        try:
            coming = pool.submit(next, items, None)
            while (item := coming.result()) is not None:
                coming = pool.submit(next, items, None)
                yield item
        finally:
            pool.submit(getattr(items, "close", lambda: None))
