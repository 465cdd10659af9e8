"""Rows of pixels to tiles, overviews and, at the end, one Cloud Optimised GeoTIFF.

Tiles are compressed once, appended to one file per level, and joined at the end. The journal
records the sizes of a row of tiles once its bytes are on the disk; the rest is cut off by a resume.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from numcodecs import Zlib, Zstd
from numpy.typing import NDArray

from geoprep.compiled import compiled
from geoprep.cpus import usable_cpus
from geoprep.speed import NODATA
from geoprep.storage import flush
from training.prediction.cog.directory import LEADER, TILE, Tags, framed, header, overview_tags
from training.prediction.cog.write_journal import WriteJournal

Compression = Literal["zstd", "deflate"]

# Level 1 of zstd packs probabilities as tightly as 3, in a third of the time of zlib's 1.
_CODECS = {"zstd": Zstd(1), "deflate": Zlib(4)}


class Shape(NamedTuple):
    """Bands, height and width of one level in pixels."""

    bands: int
    height: int
    width: int

    @property
    def tile_columns(self) -> int:
        """Number of tiles in a row."""
        return -(-self.width // TILE)

    def blank_row(self) -> NDArray[np.uint8]:
        """Return a row of tiles that is nodata everywhere, uint8 (band, 512, x)."""
        return np.full((self.bands, TILE, self.tile_columns * TILE), NODATA, np.uint8)


def pyramid(shape: Shape) -> list[Shape]:
    """Return the shapes of the image and its overviews, down to one that fits a tile."""
    levels = [shape]
    while max(levels[-1].height, levels[-1].width) > TILE:
        bands, height, width = levels[-1]
        levels.append(Shape(bands, -(-height // 2), -(-width // 2)))
    return levels


class Spool:
    """The tiles of one level, in a file that grows; ``sizes`` per row of tiles, band by band."""

    def __init__(
        self,
        path: Path,
        shape: Shape,
        compression: Compression,
        pool: Executor,
        sizes: Iterable[list[int]] = (),
    ) -> None:
        self.path, self.shape, self.sizes, self._pool = path, shape, list(sizes), pool
        self._codec = _CODECS[compression]
        self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(sum(map(framed, self.sizes)))
        self._file.seek(0, os.SEEK_END)

    def append(self, pixels: NDArray[np.uint8]) -> list[int]:
        """Compress and add a row of tiles, uint8 (band, 512, x); return the sizes of its tiles."""
        tiles = (band[:, x : x + TILE] for band in pixels for x in range(0, pixels.shape[2], TILE))
        sizes = []
        for data in self._pool.map(self._pack, tiles):
            if data:
                self._file.write(struct.pack("<I", len(data)) + data + data[-4:].rjust(4, b"\0"))
            sizes.append(len(data))
        self.sizes.append(sizes)
        return sizes

    def _pack(self, tile: NDArray[np.uint8]) -> bytes:
        """Return a compressed tile; empty if it is nodata everywhere."""
        tile = np.ascontiguousarray(tile)
        if tile[0, 0] == NODATA and (tile == NODATA).all():
            return b""
        return bytes(self._codec.encode(tile))

    def flush(self) -> None:
        """Flush the file to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def read(self, row: int) -> NDArray[np.uint8]:
        """Return a row of tiles, uint8 (band, 512, x)."""
        pixels = self.shape.blank_row()
        self._file.flush()
        at = sum(map(framed, self.sizes[:row]))
        places = ((b, x) for b in range(len(pixels)) for x in range(0, pixels.shape[2], TILE))
        for (band, x), size in zip(places, self.sizes[row], strict=True):
            if size:
                plain = np.frombuffer(self._codec.decode(self._read(at + LEADER, size)), np.uint8)
                pixels[band, :, x : x + TILE] = plain.reshape(TILE, TILE)
                at += framed([size])
        return pixels

    def _read(self, at: int, count: int) -> bytes:
        data = os.pread(self._file.fileno(), count, at)
        if len(data) < count:
            raise OSError(f"{self.path} has been truncated by another program")
        return data

    def in_order(self) -> list[int]:
        """Return the sizes of all tiles in the order of a TIFF: band by band."""
        bands = range(self.shape.bands)
        return [size for band in bands for row in self.sizes for size in self._of(row, band)]

    def copy_to(self, target: BinaryIO) -> None:
        """Append all tiles to a file, in the order of a TIFF."""
        self._file.flush()
        starts = np.cumsum([0, *map(framed, self.sizes)])
        for band in range(self.shape.bands):
            for start, row in zip(starts, self.sizes, strict=False):
                before = framed(row[: band * self.shape.tile_columns])
                target.write(self._read(int(start) + before, framed(self._of(row, band))))

    def _of(self, row: list[int], band: int) -> list[int]:
        return row[band * self.shape.tile_columns : (band + 1) * self.shape.tile_columns]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CogWriter:
    """Takes rows of pixels from top to bottom; compresses and writes them in a thread.

    It holds at most two rows of tiles, and one per overview. Overviews of the speed band
    average roads only, those of the class band show the most frequent class.
    """

    def __init__(
        self,
        journal: WriteJournal,
        shape: Shape,
        compression: Compression,
        speed_band: int | None,
        class_band: int | None = None,
    ) -> None:
        self._journal, self._shape, self._speed_band = journal, shape, speed_band
        self._class_band = class_band
        self._ends = ExitStack()
        packers = self._ends.enter_context(ThreadPoolExecutor(usable_cpus(), "predict-pack"))
        self._pool = self._ends.enter_context(ThreadPoolExecutor(1, "predict-write"))
        self._pending: Future[None] | None = None
        rows = journal.rows
        self._spools = [
            Spool(journal.folder / f"level{i}.tiles", s, compression, packers, () if i else rows)
            for i, s in enumerate(pyramid(shape))
        ]
        self._rows = [spool.shape.blank_row() for spool in self._spools]
        self._top_halves = [True] * len(self._spools)
        for row in range(len(rows)):
            self._add_to_overview(1, self._spools[0].read(row), self._is_last(row))
        self.next_row = min(len(rows) * TILE, shape.height)

    def __enter__(self) -> CogWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.close()
        for spool in self._spools:
            spool.close()

    def put(self, pixels: NDArray[np.uint8]) -> None:
        """Add rows, uint8 (band, y, x)."""
        done, count = 0, pixels.shape[1]
        while done < count:
            within = self.next_row % TILE
            step = min(TILE - within, count - done)
            row = self._rows[0][:, within : within + step, : self._shape.width]
            row[...] = pixels[:, done : done + step]
            done += step
            self.next_row += step
            if self.next_row % TILE == 0 or self.next_row == self._shape.height:
                self._wait()
                self._pending = self._pool.submit(self._store, self._rows[0])
                self._rows[0] = self._spools[0].shape.blank_row()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def _store(self, row: NDArray[np.uint8]) -> None:
        spool = self._spools[0]
        sizes = spool.append(row)
        spool.flush()
        self._journal.add_row(sizes)
        self._add_to_overview(1, row, self._is_last(len(spool.sizes) - 1))

    def _is_last(self, row: int) -> bool:
        return (row + 1) * TILE >= self._shape.height

    def _add_to_overview(self, level: int, tiles: NDArray[np.uint8], last: bool) -> None:
        """Add a row of tiles of the next finer level, uint8 (band, 512, x)."""
        if level == len(self._spools):
            return
        spool, row, half = self._spools[level], self._rows[level], TILE // 2
        part = row[:, :half] if self._top_halves[level] else row[:, half:]
        for band, (fine, coarse) in enumerate(zip(tiles, part, strict=True)):
            width = min(spool.shape.width, fine.shape[1] // 2)
            if band == self._class_band:
                halve_classes(fine, coarse[:, :width])
            else:
                halve(fine, band == self._speed_band, coarse[:, :width])
        self._top_halves[level] = not self._top_halves[level]
        if self._top_halves[level] or last:
            spool.append(row)
            self._add_to_overview(level + 1, row, last)
            row.fill(NODATA)

    def finish(self, target: Path, tags: Tags) -> None:
        """Join all levels in one file, which is renamed when it is complete."""
        self._wait()
        shapes = [spool.shape for spool in self._spools[1:]]
        levels = [tags, *(overview_tags(tags, shape.height, shape.width) for shape in shapes)]
        whole = self._journal.folder / "whole.tif"
        with whole.open("wb") as file:
            file.write(header(levels, [spool.in_order() for spool in self._spools]))
            for spool in reversed(self._spools):
                spool.copy_to(file)
        flush(whole)
        whole.replace(target)
        flush(target.parent)


@compiled
def halve_classes(fine: NDArray[np.uint8], coarse: NDArray[np.uint8]) -> None:
    """Write the most frequent class of 2 x 2 pixels without nodata, the first of equals."""
    for y in range(coarse.shape[0]):
        for x in range(coarse.shape[1]):
            best, most = 255, 0
            for i in range(4):
                value = fine[2 * y + i // 2, 2 * x + i % 2]
                count = 0
                for j in range(4):
                    count += fine[2 * y + j // 2, 2 * x + j % 2] == value
                if value != 255 and (count > most or (count == most and value < best)):
                    best, most = value, count
            coarse[y, x] = best


@compiled
def halve(fine: NDArray[np.uint8], roads_only: bool, coarse: NDArray[np.uint8]) -> None:
    """Average blocks of 2 x 2 pixels without nodata (255); of roads only, to show narrow ones."""
    # float32 and no branches, so that the compiler can vectorise: 3.5 times as fast.
    none, one, zero = np.float32(255), np.float32(1), np.float32(0)
    least = one if roads_only else zero
    for y in range(coarse.shape[0]):
        upper, lower, out = fine[2 * y], fine[2 * y + 1], coarse[y]
        for x in range(coarse.shape[1]):
            a, b = np.float32(upper[2 * x]), np.float32(upper[2 * x + 1])
            c, d = np.float32(lower[2 * x]), np.float32(lower[2 * x + 1])
            takes_a = one if (a >= least) & (a != none) else zero
            takes_b = one if (b >= least) & (b != none) else zero
            takes_c = one if (c >= least) & (c != none) else zero
            takes_d = one if (d >= least) & (d != none) else zero
            count = takes_a + takes_b + takes_c + takes_d
            total = a * takes_a + b * takes_b + c * takes_c + d * takes_d
            mean = total / max(count, one) + np.float32(0.5)
            nothing = none if min(min(a, b), min(c, d)) == none else zero
            out[x] = np.uint8(np.int32(mean if count > zero else nothing))
