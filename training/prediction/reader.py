"""The image under one row of windows after the other, on the network's grid, as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.storage import open_image
from training.prediction.source import Source, bounded_cache, read_rows, rows_at_a_time
from training.prediction.windows import Axis

if TYPE_CHECKING:
    from rasterio.io import DatasetReader


class Band(NamedTuple):
    """The pixels under one row of windows.

    Attributes
    ----------
    row
        Index of the row of windows.
    image
        uint8 (y, x, band), as wide and high as the windows reach; 0 where there is no imagery.
        Beyond a small image's edge it is mirrored.
    valid
        uint8 (y, x), the same rows, only the columns of the image.
    """

    row: int
    image: NDArray[np.uint8]
    valid: NDArray[np.uint8]


def read_bands(
    source: Source, limits: NDArray[np.float64], rows: Axis, columns: Axis, first: int = 0
) -> Iterator[Band]:
    """Yield the pixels under every row of windows; each row of the image is read once.

    Parameters
    ----------
    source
        The image.
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
    shape = rows.side, columns.covered, len(source.bands)
    before: Band | None = None
    with bounded_cache(), open_image(source.address) as dataset:
        for row in range(first, len(rows.starts)):
            top = rows.starts[row]
            band = Band(row, np.empty(shape, np.uint8), np.ones((shape[0], source.width), np.uint8))
            kept = 0
            if before is not None:
                moved = top - rows.starts[row - 1]
                kept = max(0, shape[0] - moved)
                band.image[:kept] = before.image[moved:]
                band.valid[:kept] = before.valid[moved:]
            end = min(top + shape[0], source.height)
            _fill(dataset, source, tables, (top + kept, end), top, band)
            _mirror(band.image, (end - top, source.width))
            yield band
            before = band


def _fill(
    dataset: DatasetReader,
    source: Source,
    tables: NDArray[np.uint8],
    wanted: tuple[int, int],
    top: int,
    band: Band,
) -> None:
    """Write rows of the network's grid into a band that begins at row ``top``."""
    scale_y, scale_x = source.scales
    xs = imagery.pixel_edges(0, source.width, 1, scale_x, source.lengths[1])
    step = max(1, int(rows_at_a_time(source) / scale_y))
    for start in range(*wanted, step):
        stop = min(start + step, wanted[1])
        ys = imagery.pixel_edges(start, stop - start, 1, scale_y, source.lengths[0])
        first = int(ys[0])
        pixels = read_rows(dataset, source.bands, first, int(np.ceil(ys[-1])))
        part = slice(start - top, stop - top)
        imagery.render(pixels, tables, ys - first, xs, band.image[part], band.valid[part])


def _mirror(image: NDArray[np.uint8], size: tuple[int, int]) -> None:
    """Fill what lies beyond the image's last row and column with its mirror image."""
    height, width = size
    if width < image.shape[1]:
        image[:height, width:] = image[:height, mirrored(width, image.shape[1])]
    if height < image.shape[0]:
        image[height:] = image[mirrored(height, image.shape[0])]


def mirrored(length: int, until: int) -> NDArray[np.intp]:
    """Return which pixels stand in for those from ``length`` to ``until``, to and fro.

    Examples
    --------
    >>> mirrored(3, 8).tolist()
    [1, 0, 1, 2, 1]
    """
    if length == 1:
        return np.zeros(until - 1, np.intp)
    period = 2 * (length - 1)
    place = np.arange(length, until) % period
    found: NDArray[np.intp] = np.where(place < length, place, period - place)
    return found
