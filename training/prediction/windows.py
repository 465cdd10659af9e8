"""The windows of an image: positions, weights at every pixel, and the pixels under each row."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.imagery.resample import pixel_edges
from geoprep.imagery.rescale import lookup_tables
from training.model.unet import STRIDE
from training.prediction.area import Polygons, mask_of
from training.prediction.images import ImageReader, ReadRows

T = TypeVar("T")
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_WORTH_ANOTHER_SIDE = 0.97
"""Windows get another side if that saves 3 % of the pixels: each side is compiled separately."""

_LARGEST_STRETCH = 1.25
_BESIDE = 2
"""Pixels around an area that count: those that are interpolated in it, and one more."""
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
    def weights(self) -> Floats:
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
    needed: NDArray[np.bool_] | None = field(
        default=None, compare=False
    )  # (row, column) for an area

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
        return self.pixels_before(len(self.rows.starts), 0)

    def pixels_before(self, row: int, column: int) -> int:
        """Return the pixels of all windows before one, row by row."""
        count = row * len(self.columns.starts) + column
        if self.needed is not None:
            count = int(np.count_nonzero(self.needed.ravel()[:count]))
        return count * self.window_pixels

    def parts(self, row: int) -> list[tuple[int, int]]:
        """Return the columns under the windows of a row, from the first to the last one."""
        length, side = self.columns.length, self.columns.side
        if self.needed is None:
            return [(0, length)]
        parts: list[tuple[int, int]] = []
        for number in np.flatnonzero(self.needed[row]):
            start = self.columns.starts[number]
            if parts and start <= parts[-1][1]:
                start = parts.pop()[0]
            parts.append((start, min(self.columns.starts[number] + side, length)))
        return parts

    def around(self, area: Polygons, scales: tuple[float, float]) -> WindowGrid:
        """Return the grid with the windows that an area needs, in pixels of the image."""
        (y, x), side = scales, (self.rows.side, self.columns.side)
        tops, lefts = (np.array(starts) for starts in (self.rows.starts, self.columns.starts))
        top, left = np.meshgrid(tops - _BESIDE, lefts - _BESIDE, indexing="ij")
        more = 2 * _BESIDE
        boxes = shapely.box(
            left * x, top * y, (left + side[1] + more) * x, (top + side[0] + more) * y
        )
        found = shapely.STRtree(boxes.ravel()).query(
            np.array(area, object), predicate="intersects"
        )[1]
        needed = np.zeros(boxes.size, bool)
        needed[found] = True
        return replace(self, needed=needed.reshape(boxes.shape))


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
    image: Any  # uint8 (y, x, band), 0 without imagery; mirrored beyond the edge of a smaller image
    valid: Any  # uint8 (y, x), 0 without imagery; the same rows, the columns of the image only
    # Bits (y, x) of the image itself, from row `seen_top` on, 0 without imagery; if it is resampled
    seen: Bytes = np.empty((0, 0), np.uint8)
    seen_top: int = 0
    full: Sequence[int] = ()  # the windows that have imagery
    ready: Any = None  # on a device: the event that the pixels are there


def read_window_rows(
    reader: ImageReader,
    limits: Doubles,
    grid: WindowGrid,
    place: Any,  # noqa: ANN401 - a `Host` or a `Device`
    first: int = 0,
    stop: int | None = None,
) -> Iterator[WindowRow]:
    """Yield the pixels under rows of windows, at a place; each row of the image is read once.

    Of an image with an area, only what its windows need is read, and the rest is not valid.
    """
    source = reader.source
    tables = lookup_tables(limits, source.scene.dtype)
    rows, height, width = grid.rows, grid.rows.side, grid.columns.covered
    before: WindowRow | None = None
    starts, side = grid.columns.starts, grid.columns.side
    with reader.opened(place.decoders) as read, place.working():
        for index in range(first, len(rows.starts) if stop is None else stop):
            top, parts = rows.starts[index], grid.parts(index)
            image = place.filled((height, width, len(source.scene.bands)), 0)
            valid = place.filled((height, source.width), int(source.area is None))
            kept = 0
            if before is not None and parts == grid.parts(index - 1):
                moved = top - rows.starts[index - 1]
                kept = max(0, height - moved)
                image[:kept], valid[:kept] = before.image[moved:], before.valid[moved:]
            seen_top, fresh_top = (int(row * source.scales[0]) for row in (top, top + kept))
            rest = image[kept:], valid[kept:]
            seen = [_fill(read, reader, tables, top + kept, parts, *rest, place)]
            if before is not None:
                kept_rows = slice(seen_top - before.seen_top, fresh_top - before.seen_top)
                seen.insert(0, before.seen[kept_rows])
            inside = image[: source.height - top, : source.width]
            if inside.shape != image.shape:  # a small image is continued by its mirror image
                down, across = (
                    place.put(
                        length - 1 - abs(np.arange(side) % max(2 * length - 2, 1) - length + 1)
                    )
                    for side, length in zip(image.shape[:2], inside.shape[:2], strict=True)
                )
                image = inside[down][:, across]
            full = [i for i, x in enumerate(starts) if valid[:, x : x + side].any()]
            bits = np.concatenate(seen)
            before = WindowRow(index, image, valid, bits, seen_top, full, place.mark())
            yield before


def _fill(
    read: ReadRows,
    reader: ImageReader,
    tables: Bytes,
    top: int,
    parts: Sequence[tuple[int, int]],
    image: Any,  # noqa: ANN401 - see `Host`
    valid: Any,  # noqa: ANN401
    place: Any,  # noqa: ANN401
) -> Bytes:
    """Write rows of the model's grid into ``image`` and ``valid``, from row ``top`` on.

    ``parts`` are their first and last columns. Return the bits ``seen`` of the rows of the image
    under them, see `WindowRow`.
    """
    source = reader.source
    scale_y, scale_x = source.scales
    beside = _BESIDE if source.on_image else 0
    step = max(1, int(reader.rows_at_a_time / scale_y))
    end, seen, seen_top = min(top + len(image), source.height), [], int(top * scale_y)
    for start in range(top, end, step):
        stop = min(start + step, end)
        ys = pixel_edges(start, stop - start, 1, scale_y, source.lengths[0])
        first = int(ys[0])
        last, rows = int(np.ceil(ys[-1])), slice(start - top, stop - top)
        here = np.zeros((last - first, source.lengths[1] if source.on_image else 0), np.uint8)
        for left, right in parts:
            xs = pixel_edges(left, right - left, 1, scale_x, source.lengths[1])
            near, far = int(xs[0]), int(np.ceil(xs[-1]))
            pixels = read(first, last, near, far)
            fresh, known = place.render(pixels, tables, ys - first, xs - near)
            if source.limits is not None:
                reader.values += (fresh != 0).sum()
                reader.ends += ((fresh == 1) | (fresh == 255)).sum()
            if source.on_image:
                here[:, near:far] = 1 if pixels.valid is None else pixels.valid
            if source.area is not None:
                window = start, left, stop - start, right - left
                known &= place.put(mask_of(source.area, source.scales, window, beside))
                if source.on_image:
                    window = first, near, last - first, far - near
                    here[:, near:far] &= mask_of(source.area, (1.0, 1.0), window)
            image[rows, left:right], valid[rows, left:right] = fresh, known
        if source.on_image:
            # Two parts may share a row of the image.
            seen.append(np.packbits(here[seen_top - first :] != 0, axis=1))
            seen_top = last
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
