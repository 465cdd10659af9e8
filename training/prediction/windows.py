"""The windows of an image: positions, weights at every pixel, and the pixels under each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.cpus import usable_cpus
from geoprep.errors import UsageError
from geoprep.storage import open_image
from training.model import STRIDE
from training.prediction.images import ImageSource

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

T = TypeVar("T")
Bytes = NDArray[np.uint8]
DecodedRows = dict[int, imagery.ImageWindow]
"""Rows of a whole image, by the number of the first of them."""

_READ_BYTES = 48 << 20
"""Bytes of decoded pixels that are read at a time."""
_MOST_COUNTED = 64_000_000
"""Pixels of an image above which its limits are those of a sample of its rows."""
_KEPT_BYTES = 256 << 20
"""Bytes of decoded pixels that are kept for the prediction when the limits are counted."""
_COUNTED_ROWS = 512
"""Rows that are counted at a time: a row of blocks of most large images."""

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


@lru_cache(maxsize=64)
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

    An image that is smaller than the window, or little larger, gets one window that just covers
    it. Otherwise the windows have the requested side, unless another side covers the image with
    clearly fewer pixels.
    """
    if (whole := _rounded_up(length)) <= window * _WHOLE:
        return Axis(length, whole, (0,), overlap)
    count = math.ceil((length - overlap) / (window - overlap))
    options = [(count, window)]
    for n in {count, max(1, count - 1)}:
        side = _rounded_up(math.ceil((length + (n - 1) * overlap) / n))
        if side <= window * _LARGEST_STRETCH and side < length:
            options.append((n, side))
    best = min(options, key=lambda option: option[0] * option[1])
    if best[0] * best[1] > _WORTH_ANOTHER_SIDE * count * window:
        best = options[0]
    n, side = best
    step = (length - side) / max(n - 1, 1)
    return Axis(length, side, tuple(round(i * step) for i in range(n)), overlap)


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


def read_window_rows(
    source: ImageSource,
    limits: NDArray[np.float64],
    grid: WindowGrid,
    first: int = 0,
    decoded: DecodedRows | None = None,
    mask: Path | None = None,
) -> Iterator[WindowRow]:
    """Yield the pixels under every row of windows; each row of the image is read once.

    ``decoded`` rows, of `write_mask` or `scene_limits`, are taken in place of reading them again;
    ``mask`` is the file of the former.
    """
    tables = imagery.lookup_tables(limits, source.dtype)
    rows, height, width = grid.rows, grid.rows.side, grid.columns.covered
    before: WindowRow | None = None
    with bounded_cache(), open_image(source.address) as dataset:
        read = (
            partial(take_rows, decoded)
            if decoded
            else partial(read_rows, dataset, source, mask=mask)
        )
        for index in range(first, len(rows.starts)):
            top = rows.starts[index]
            image = np.empty((height, width, len(source.bands)), np.uint8)
            valid = np.ones((height, source.width), np.uint8)
            kept = 0
            if before is not None:
                moved = top - rows.starts[index - 1]
                kept = max(0, height - moved)
                image[:kept], valid[:kept] = before.image[moved:], before.valid[moved:]
            _fill(read, source, tables, top + kept, image[kept:], valid[kept:])
            inside = image[: source.height - top, : source.width]
            if inside.shape != image.shape:  # a small image is continued by its mirror image
                beyond = [
                    (0, whole - part) for whole, part in zip(image.shape, inside.shape, strict=True)
                ]
                image[...] = np.pad(inside, beyond, "reflect")
            before = WindowRow(index, image, valid)
            yield before


def _fill(
    read: Callable[[int, int], imagery.ImageWindow],
    source: ImageSource,
    tables: Bytes,
    top: int,
    image: Bytes,
    valid: Bytes,
) -> None:
    """Write rows of the model's grid into ``image`` and ``valid``, from row ``top`` on."""
    scale_y, scale_x = source.scales
    xs = imagery.pixel_edges(0, source.width, 1, scale_x, source.lengths[1])
    step = max(1, int(rows_at_a_time(source) / scale_y))
    end = min(top + len(image), source.height)
    for start in range(top, end, step):
        stop = min(start + step, end)
        ys = imagery.pixel_edges(start, stop - start, 1, scale_y, source.lengths[0])
        first = int(ys[0])
        pixels = read(first, int(np.ceil(ys[-1])))
        part = slice(start - top, stop - top)
        imagery.render(pixels, tables, ys - first, xs, image[part], valid[part])


def read_rows(
    dataset: DatasetReader, source: ImageSource, top: int, bottom: int, mask: Path | None = None
) -> imagery.ImageWindow:
    """Return whole rows of an image, in its own dtype; ``mask`` is the file of `write_mask`."""
    from rasterio.windows import Window

    width, valid = source.lengths[1], None
    if mask is not None:
        valid = imagery.read_bits(str(mask), width, slice(top, bottom), slice(0, width))
    window = Window(0, top, width, bottom - top)
    return imagery.read_pixels(dataset, source.bands, window, nodata=source.nodata, mask=valid)


def take_rows(decoded: DecodedRows, top: int, bottom: int) -> imagery.ImageWindow:
    """Return rows as `read_rows` does; forget what ends above them."""
    values, masks = [], []
    for start, part in sorted(decoded.items()):
        if start + len(part.values) <= top:
            del decoded[start]
        elif start < bottom:
            rows = slice(max(0, top - start), bottom - start)
            values.append(part.values[rows])
            everywhere = np.ones(values[-1].shape[:2], np.uint8)
            masks.append(everywhere if part.valid is None else part.valid[rows])
    valid = np.concatenate(masks)
    return imagery.ImageWindow(np.concatenate(values), None if valid.all() else valid)


def rows_at_a_time(source: ImageSource) -> int:
    """Return how many rows of the image are decoded at a time, about 48 MB."""
    return max(1, _READ_BYTES // _row_bytes(source))


def _row_bytes(source: ImageSource) -> int:
    """Return the bytes of a decoded row."""
    return source.lengths[1] * (len(source.bands) + 1) * np.dtype(source.dtype).itemsize


def write_mask(source: ImageSource, file: Path, decoded: DecodedRows) -> None:
    """Write the validity of an image that does not state it: black connected with its edge is none.

    All rows are read; those of an image of at most `_KEPT_BYTES` are added to ``decoded``.
    """
    keep = _is_kept(source)

    def show(top: int, rows: imagery.ImageWindow) -> imagery.StripValidity:
        if keep:
            decoded[top] = rows
        return imagery.strip_validity(rows.valid, rows.black)

    bits, _ = imagery.decide(_map_rows(source, show), *source.lengths)
    if bits is None:
        bits = np.full((source.lengths[0], -(-source.lengths[1] // 8)), 255, np.uint8)
    for top, rows in decoded.items():
        valid = np.unpackbits(bits[top : top + len(rows.values)], axis=1, count=source.lengths[1])
        decoded[top] = imagery.decided(rows, valid)
    imagery.write_bits(str(file), bits)


def scene_limits(
    source: ImageSource, decoded: DecodedRows | None = None, mask: Path | None = None
) -> NDArray[np.float64]:
    """Return float64 (band, 2), the percentiles of an image's valid pixels.

    All are read, or so many rows of a large image, evenly spread, that it is not decoded twice.
    Those of an image of at most `_KEPT_BYTES` are added to ``decoded``, or are there already.
    """
    keep = decoded is not None and _is_kept(source)

    def count(top: int, rows: imagery.ImageWindow) -> NDArray[np.int64]:
        if decoded is not None and keep:
            decoded[top] = rows
        return imagery.count_source(rows)

    counts: Any
    if decoded:
        counts = sum(map(imagery.count_source, decoded.values()))
    else:
        counts = sum(_map_rows(source, count, _counted_every(source), mask).values())
    return imagery.percentile_limits(counts)


def _counted_every(source: ImageSource) -> int:
    """Return of how many blocks of rows one is counted."""
    return math.ceil(math.prod(source.lengths) / _MOST_COUNTED)


def _is_kept(source: ImageSource) -> bool:
    """Return whether the decoded rows of an image are kept from the first pass to the second."""
    return _counted_every(source) == 1 and source.lengths[0] * _row_bytes(source) <= _KEPT_BYTES


def _map_rows(
    source: ImageSource,
    function: Callable[[int, imagery.ImageWindow], T],
    every: int = 1,
    mask: Path | None = None,
) -> dict[int, T]:
    """Return the results of a function of blocks of rows, one of ``every``, by the first row."""
    step = min(rows_at_a_time(source), _COUNTED_ROWS)

    def work(top: int) -> tuple[int, T]:
        bottom = min(top + step, source.lengths[0])
        with bounded_cache(), open_image(source.address) as dataset:
            rows = read_rows(dataset, source, top, bottom, mask)
        return top, function(top, rows)

    # Eight threads: each decodes up to 48 MB.
    with ThreadPoolExecutor(min(8, usable_cpus()), "predict-count") as pool:
        return dict(pool.map(work, range(0, source.lengths[0], step * every)))


@contextmanager
def bounded_cache() -> Iterator[None]:
    """Limit GDAL's cache of blocks to 128 MB; by default it takes 5 % of the memory."""
    import rasterio

    with rasterio.Env(GDAL_CACHEMAX=128):
        yield


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
