"""The image under one row of windows after the other, on the network's grid, as bytes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.storage import open_image
from training.prediction.images import Source, bounded_cache, read_rows, rows_at_a_time
from training.prediction.windows import Axis, mirrored

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

T = TypeVar("T")


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
    image: NDArray[np.uint8]
    valid: NDArray[np.uint8]


def read_window_rows(
    source: Source, limits: NDArray[np.float64], rows: Axis, columns: Axis, first: int = 0
) -> Iterator[WindowRow]:
    """Yield the pixels under every row of windows; each row of the image is read once.

    Parameters
    ----------
    source
        As `training.prediction.images.inspect` returns it.
    limits
        float64 (band, 2), source values that become black and white.
    rows, columns
        The windows.
    first
        Row of windows to begin with.

    Raises
    ------
    ImageError
        The image is damaged.
    """
    tables = imagery.lookup_tables(limits, source.dtype)
    height, width = rows.side, columns.covered
    before: WindowRow | None = None
    with bounded_cache(), open_image(source.address) as dataset:
        for index in range(first, len(rows.starts)):
            top = rows.starts[index]
            image = np.empty((height, width, len(source.bands)), np.uint8)
            row = WindowRow(index, image, np.ones((height, source.width), np.uint8))
            kept = 0
            if before is not None:
                moved = top - rows.starts[index - 1]
                kept = max(0, height - moved)
                row.image[:kept] = before.image[moved:]
                row.valid[:kept] = before.valid[moved:]
            end = min(top + height, source.height)
            _fill(dataset, source, tables, (top + kept, end), top, row)
            _mirror(row.image, (end - top, source.width))
            yield row
            before = row


def _fill(
    dataset: DatasetReader,
    source: Source,
    tables: NDArray[np.uint8],
    wanted: tuple[int, int],
    top: int,
    row: WindowRow,
) -> None:
    """Write rows of the network's grid into a row of windows that begins at row ``top``."""
    scale_y, scale_x = source.scales
    xs = imagery.pixel_edges(0, source.width, 1, scale_x, source.lengths[1])
    step = max(1, int(rows_at_a_time(source) / scale_y))
    for start in range(*wanted, step):
        stop = min(start + step, wanted[1])
        ys = imagery.pixel_edges(start, stop - start, 1, scale_y, source.lengths[0])
        first = int(ys[0])
        pixels = read_rows(dataset, source.bands, first, int(np.ceil(ys[-1])))
        part = slice(start - top, stop - top)
        imagery.render(pixels, tables, ys - first, xs, row.image[part], row.valid[part])


def _mirror(image: NDArray[np.uint8], size: tuple[int, int]) -> None:
    """Fill what lies beyond the image's last row and column with its mirror image."""
    height, width = size
    if width < image.shape[1]:
        image[:height, width:] = image[:height, mirrored(width, image.shape[1])]
    if height < image.shape[0]:
        image[height:] = image[mirrored(height, image.shape[0])]


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
