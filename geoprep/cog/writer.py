"""Rows of pixels to a Cloud Optimised GeoTIFF, which an interrupted run can resume.

GDAL's COG driver cannot resume, and would decode and compress every pixel again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from geoprep.cog.spool import TILE, Compression, Shape, Spool
from geoprep.cog.tiff import Tags, header, overview_tags
from geoprep.cpus import usable_cpus

_MAGIC = 8
"""Bytes without which a file is no TIFF."""
Halve = Callable[[NDArray[np.uint8], NDArray[np.uint8], bool], None]
"""Writes one pixel (y, x) of 2 x 2 of a band, by mode or by average."""


class CogWriter:
    """Takes rows of pixels from top to bottom; compresses and writes them in a thread.

    It holds at most two rows of tiles, and one per overview. Overviews show the average of four
    pixels, those of the bands ``by_mode`` the most frequent value.

    Parameters
    ----------
    open_file
        Opens the file that holds the tiles of a level until the end, by its number.
    written
        Sizes of the tiles of rows that an earlier run has written.
    record
        Is called with the sizes of a row of tiles once it is on the disk. None: no resume.
    """

    def __init__(
        self,
        shape: Shape,
        compression: Compression,
        by_mode: Collection[int],
        halve: Halve,
        *,
        open_file: Callable[[int], BinaryIO],
        written: Sequence[list[int]] = (),
        record: Callable[[list[int]], object] | None = None,
    ) -> None:
        self._record, self._by_mode, self._halve = record, by_mode, halve
        self._ends = ExitStack()
        packers = self._ends.enter_context(ThreadPoolExecutor(usable_cpus(), "cog-pack"))
        self._pool = self._ends.enter_context(ThreadPoolExecutor(1, "cog-write"))
        self._pending: Future[None] | None = None
        written = [*written]
        self._spools = [
            Spool(open_file(i), s, compression, packers, () if i else written)
            for i, s in enumerate(shape.pyramid())
        ]
        self._rows = [spool.shape.blank_row() for spool in self._spools]  # those that fill up
        for number in range(len(written)):
            self._add_to_overview(1, number, self._spools[0].read(number))
        self.next_row = min(len(written) * TILE, shape.height)

    def __enter__(self) -> CogWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.close()
        for spool in self._spools:
            spool.close()

    def put(self, pixels: NDArray[np.uint8]) -> None:
        """Add rows, uint8 (band, y, x); or (y, x, band) where bands share tiles."""
        image, done = self._spools[0].shape, 0
        pixels = pixels.reshape(image.planes, -1, image.width, image.samples)
        count = pixels.shape[1]
        while done < count:
            within = self.next_row % TILE
            step = min(TILE - within, count - done)
            self._rows[0][:, within : within + step, : image.width] = pixels[:, done : done + step]
            done += step
            self.next_row += step
            if self.next_row % TILE == 0 or self.next_row == image.height:
                self._wait()
                self._pending = self._pool.submit(self._store, self._rows[0])
                self._rows[0] = image.blank_row()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def _store(self, tiles: NDArray[np.uint8]) -> None:
        spool = self._spools[0]
        sizes = spool.append(tiles)
        if self._record is not None:
            spool.flush()
            self._record(sizes)
        self._add_to_overview(1, len(spool.sizes) - 1, tiles)

    def _add_to_overview(self, level: int, number: int, tiles: NDArray[np.uint8]) -> None:
        """Add a row of tiles of the next finer level by its number."""
        if level == len(self._spools):
            return
        spool, row, half = self._spools[level], self._rows[level], TILE // 2
        part = row[:, half:] if number % 2 else row[:, :half]
        width, samples = min(spool.shape.width, tiles.shape[2] // 2), spool.shape.samples
        for band in range(spool.shape.planes * samples):
            plane, sample = divmod(band, samples)
            fine, coarse = tiles[plane, ..., sample], part[plane, :, :width, sample]
            self._halve(fine, coarse, band in self._by_mode)
        if number % 2 or number + 1 == self._spools[level - 1].shape.tile_rows:
            spool.append(row)
            self._add_to_overview(level + 1, number // 2, row)
            row.fill(spool.shape.fill)

    def finish(self, whole: Path, tags: Tags) -> None:
        """Join all levels in a file, which GDAL can open once all of its bytes are there."""
        self._wait()
        shapes = [spool.shape for spool in self._spools[1:]]
        levels = [tags, *(overview_tags(tags, shape.height, shape.width) for shape in shapes)]
        first = header(levels, [spool.in_order() for spool in self._spools])
        with whole.open("wb") as file:
            file.write(bytes(_MAGIC) + first[_MAGIC:])
            for spool in reversed(self._spools):
                spool.copy_to(file)
            file.flush()
            file.seek(0)
            file.write(first[:_MAGIC])
            file.flush()
            os.fsync(file.fileno())
