"""Finished tiles on disk: compressed once, appended row by row, put together at the end.

A spool holds one level of the output. A row of tiles is in it wholly or, after a crash, cut off:
the sizes of its tiles are what the journal notes, once the bytes are on the disk.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numcodecs import Zstd
from numpy.typing import NDArray

from geoprep.speed import NO_DATA

TILE = 512
Compression = Literal["zstd", "deflate"]

LEADER = TRAILER = 4
"""Bytes before a tile (its size) and after it (its last four again), which GDAL reads COGs by."""

Code = Callable[[Any], bytes]

# Level 1 of zstd packs probabilities as tightly as 3, in a third of the time of zlib's 1.
_CODES: dict[str, tuple[Code, Code]] = {
    "zstd": (lambda data: bytes(Zstd(1).encode(data)), lambda data: bytes(Zstd().decode(data))),
    "deflate": (lambda data: zlib.compress(data, 4), zlib.decompress),
}
_COPIED = 1 << 24


class Shape(NamedTuple):
    """Of one level: bands, and pixels along both axes."""

    bands: int
    height: int
    width: int

    @property
    def tile_rows(self) -> int:
        """Rows of tiles."""
        return -(-self.height // TILE)

    @property
    def tile_columns(self) -> int:
        """Tiles in a row."""
        return -(-self.width // TILE)

    def halved(self) -> Shape:
        """Return the next overview's."""
        return Shape(self.bands, -(-self.height // 2), -(-self.width // 2))

    def blank_row(self) -> NDArray[np.uint8]:
        """Return uint8 (band, 512, x), one row of tiles with no data in it."""
        return np.full((self.bands, TILE, self.tile_columns * TILE), NO_DATA, np.uint8)


def frame(tile: bytes) -> bytes:
    """Return a compressed tile between its leader and its trailer."""
    return struct.pack("<I", len(tile)) + tile + tile[-4:].rjust(4, b"\0")


def pyramid(shape: Shape) -> list[Shape]:
    """Return the image and its overviews, down to one that fits a single tile."""
    levels = [shape]
    while max(levels[-1].height, levels[-1].width) > TILE:
        levels.append(levels[-1].halved())
    return levels


class Spool:
    """The tiles of one level, in a file that grows.

    Parameters
    ----------
    path
        Of the file; made, or cut to what is known of it.
    shape
        Of the level.
    compression
        Of the tiles.
    sizes
        Bytes of each compressed tile of every row of tiles that is there already, band by band.
    pool
        Threads that compress.
    """

    def __init__(
        self,
        path: Path,
        shape: Shape,
        compression: Compression,
        pool: Executor,
        sizes: Iterable[list[int]] = (),
    ) -> None:
        self._pool = pool
        self.path = path
        self.shape = shape
        self.sizes = list(sizes)
        self._encode, self._decode = _CODES[compression]
        self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(sum(map(_framed, self.sizes)))
        self._file.seek(0, os.SEEK_END)

    @property
    def rows(self) -> int:
        """Rows of tiles that it holds."""
        return len(self.sizes)

    def append(self, pixels: NDArray[np.uint8]) -> list[int]:
        """Compress and add a row of tiles, uint8 (band, 512, x); return the sizes of its tiles."""
        tiles = (band[:, x : x + TILE] for band in pixels for x in range(0, pixels.shape[2], TILE))
        sizes = []
        for data in self._pool.map(self._pack, tiles):
            if data:
                self._file.write(frame(data))
            sizes.append(len(data))
        self.sizes.append(sizes)
        return sizes

    def _pack(self, tile: NDArray[np.uint8]) -> bytes:
        """Return a tile compressed; nothing, where there is no data in it."""
        tile = np.ascontiguousarray(tile)
        if tile[0, 0] == NO_DATA and (tile == NO_DATA).all():
            return b""
        return self._encode(tile)

    def flush(self) -> None:
        """Wait until what was added is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def read(self, row: int) -> NDArray[np.uint8]:
        """Return a row of tiles, uint8 (band, 512, x)."""
        pixels = self.shape.blank_row()
        self._file.flush()
        at = sum(map(_framed, self.sizes[:row]))
        places = ((b, x) for b in range(len(pixels)) for x in range(0, pixels.shape[2], TILE))
        for (band, x), size in zip(places, self.sizes[row], strict=True):
            if size:
                data = os.pread(self._file.fileno(), size, at + LEADER)
                plain = np.frombuffer(self._decode(data), np.uint8)
                pixels[band, :, x : x + TILE] = plain.reshape(TILE, TILE)
                at += LEADER + size + TRAILER
        return pixels

    def in_order(self) -> list[int]:
        """Return the sizes of all tiles in the order of a TIFF: band by band."""
        bands = range(self.shape.bands)
        return [size for band in bands for row in self.sizes for size in self._of(row, band)]

    def copy_to(self, target: BinaryIO) -> None:
        """Append all tiles, in the order of a TIFF."""
        self._file.flush()
        starts = np.cumsum([0, *map(_framed, self.sizes)])
        for band in range(self.shape.bands):
            for start, row in zip(starts, self.sizes, strict=False):
                before = _framed(row[: band * self.shape.tile_columns])
                self._copy(int(start) + before, _framed(self._of(row, band)), target)

    def _of(self, row: list[int], band: int) -> list[int]:
        return row[band * self.shape.tile_columns : (band + 1) * self.shape.tile_columns]

    def _copy(self, at: int, count: int, target: BinaryIO) -> None:
        while count:
            data = os.pread(self._file.fileno(), min(count, _COPIED), at)
            if not data:
                raise OSError(f"{self.path} is shorter than it was")
            target.write(data)
            at, count = at + len(data), count - len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _framed(sizes: list[int]) -> int:
    return sum(LEADER + size + TRAILER for size in sizes if size)
