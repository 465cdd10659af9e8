"""Read the pixels under each row of windows, from top to bottom, resampled and as bytes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.storage import open_image
from training.prediction.images import ImageSource
from training.prediction.windows import WindowGrid

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

T = TypeVar("T")
Bytes = NDArray[np.uint8]

_READ_BYTES = 48 << 20
"""Bytes of decoded pixels that are read at a time."""


class WindowRow(NamedTuple):
    """The pixels under one row of windows."""

    number: int  # from the top
    image: Bytes  # (y, x, band), 0 without imagery; mirrored beyond the edge of a smaller image
    valid: Bytes  # (y, x), 0 without imagery; the same rows, the columns of the image only


def read_window_rows(
    source: ImageSource, limits: NDArray[np.float64], grid: WindowGrid, first: int = 0
) -> Iterator[WindowRow]:
    """Yield the pixels under every row of windows; each row of the image is read once."""
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
            inside = image[: source.height - top, : source.width]
            if inside.shape != image.shape:  # a small image is continued by its mirror image
                beyond = [
                    (0, whole - part) for whole, part in zip(image.shape, inside.shape, strict=True)
                ]
                image[...] = np.pad(inside, beyond, "reflect")
            before = WindowRow(index, image, valid)
            yield before


def _fill(
    dataset: DatasetReader,
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
        pixels = read_rows(dataset, source.bands, first, int(np.ceil(ys[-1])))
        part = slice(start - top, stop - top)
        imagery.render(pixels, tables, ys - first, xs, image[part], valid[part])


def read_rows(
    dataset: DatasetReader, bands: tuple[int, ...], top: int, bottom: int
) -> imagery.ImageWindow:
    """Return whole rows of an image, in its own dtype."""
    from rasterio.windows import Window

    return imagery.read_pixels(dataset, bands, Window(0, top, dataset.width, bottom - top))


def rows_at_a_time(source: ImageSource) -> int:
    """Return how many rows of the image are decoded at a time, about 48 MB."""
    width = source.lengths[1] * (len(source.bands) + 1) * np.dtype(source.dtype).itemsize
    return max(1, _READ_BYTES // width)


def scene_limits(source: ImageSource) -> NDArray[np.float64]:
    """Return float64 (band, 2), the percentiles of an image's valid pixels; reads it once."""
    counts: Any = 0
    step = rows_at_a_time(source)
    with bounded_cache(), open_image(source.address) as dataset:
        for top in range(0, source.lengths[0], step):
            bottom = min(top + step, source.lengths[0])
            counts = counts + imagery.count_source(read_rows(dataset, source.bands, top, bottom))
    return imagery.percentile_limits(counts)


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
