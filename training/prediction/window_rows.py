"""The pixels under each row of windows: bytes of the model's grid, read from the image once."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from geoprep.cpus import usable_cpus
from geoprep.imagery.resample import pixel_edges
from geoprep.imagery.rescale import lookup_tables
from geoprep.imagery.rows import SceneRows
from training.prediction.area import mask_of
from training.prediction.images import ImageSource
from training.prediction.windows import BESIDE, Doubles, WindowGrid

T = TypeVar("T")
Bytes = NDArray[np.uint8]


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


class WindowRows:
    """Reads the pixels under rows of windows to a place, a `Host` or a `Device`.

    Each row of the image is read once. Of an image with an area, only what its windows need is
    read, and the rest is not valid.
    """

    def __init__(
        self,
        source: ImageSource,
        pixels: SceneRows,
        limits: Doubles,
        grid: WindowGrid,
        place: Any,  # noqa: ANN401 - as above
    ) -> None:
        self.source, self.grid, self.place, self._pixels = source, grid, place, pixels
        self._limits, self._tables = limits, lookup_tables(limits, source.scene.dtype)
        self.values = self.ends = 0  # stretched by limits that are known, and to 1 or 255 of these

    def again(self, grid: WindowGrid, place: Any) -> WindowRows:  # noqa: ANN401 - as above
        """Return what reads rows of other windows of the image, perhaps to another place."""
        return WindowRows(self.source, self._pixels.again(), self._limits, grid, place)

    def read(self, first: int = 0, stop: int | None = None) -> Iterator[WindowRow]:
        """Yield the rows of windows from ``first`` to before ``stop``."""
        source, grid, place = self.source, self.grid, self.place
        rows, height, width = grid.rows, grid.rows.side, grid.columns.covered
        before: WindowRow | None = None
        starts, side = grid.columns.starts, grid.columns.side
        threads = ThreadPoolExecutor(min(place.decoders, usable_cpus()), "predict-decode")
        with threads as pool, self._pixels, place.working():
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
                if place.decoders > 1:
                    self._pixels.decode_ahead(pool, fresh_top)
                seen = [self._fill(top + kept, parts, image[kept:], valid[kept:])]
                if before is not None:
                    kept_rows = slice(seen_top - before.seen_top, fresh_top - before.seen_top)
                    seen.insert(0, before.seen[kept_rows])
                image = self._mirrored(image, image[: source.height - top, : source.width])
                full = [i for i, x in enumerate(starts) if valid[:, x : x + side].any()]
                bits = np.concatenate(seen)
                before = WindowRow(index, image, valid, bits, seen_top, full, place.mark())
                yield before

    def _mirrored(self, image: Any, inside: Any) -> Any:  # noqa: ANN401 - as above
        """Return the pixels of a row of windows, beyond those of a small image its mirror image."""
        if inside.shape == image.shape:
            return image
        down, across = (
            self.place.put(length - 1 - abs(np.arange(side) % max(2 * length - 2, 1) - length + 1))
            for side, length in zip(image.shape[:2], inside.shape[:2], strict=True)
        )
        return inside[down][:, across]

    def _fill(
        self,
        top: int,
        parts: Sequence[tuple[int, int]],
        image: Any,  # noqa: ANN401 - as above
        valid: Any,  # noqa: ANN401
    ) -> Bytes:
        """Write rows of the model's grid into ``image`` and ``valid``, from row ``top`` on.

        ``parts`` are their first and last columns. Return the bits ``seen`` of the rows of the
        image under them, see `WindowRow`.
        """
        source, place = self.source, self.place
        scale_y, scale_x = source.scales
        beside = BESIDE if source.on_image else 0
        step = source.grid_rows_at_a_time
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
                pixels = self._pixels.pixels(slice(first, last), slice(near, far))
                fresh, known = place.render(pixels, self._tables, ys - first, xs - near)
                if source.limits is not None:
                    self.values += place.count_nonzero(fresh)
                    self.ends += sum(place.count_nonzero(fresh == value) for value in (1, 255))
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
