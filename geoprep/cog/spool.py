"""Tiles of one level of a GeoTIFF, compressed once and appended to a file that grows."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from numcodecs import Zlib, Zstd
from numpy.typing import NDArray

from geoprep.speed import NODATA

TILE = 512
"""Side of the tiles in pixels."""

LEADER = TRAILER = 4
"""Bytes before a tile (its size) and after it (its last four bytes), as GDAL's COGs have them."""

Compression = Literal["zstd", "deflate"]

# Level 1 of zstd packs probabilities as tightly as 3, in a third of the time of zlib's 1.
_CODECS = {"zstd": Zstd(1), "deflate": Zlib(4)}


class Shape(NamedTuple):
    """Size of one level in pixels, and how its tiles hold them."""

    planes: int  # bands in tiles of their own
    height: int
    width: int
    samples: int = 1  # bands of a plane, which share tiles
    fill: int = NODATA  # value of pixels that are omitted
    differences: bool = False  # of neighbours along a row are compressed, in place of values

    @property
    def tile_columns(self) -> int:
        """Number of tiles in a row."""
        return -(-self.width // TILE)

    @property
    def tile_rows(self) -> int:
        """Number of rows of tiles."""
        return -(-self.height // TILE)

    def pyramid(self) -> list[Shape]:
        """Return the shapes of the image and its overviews, down to one that fits a tile."""
        levels = [self]
        while max(levels[-1].height, levels[-1].width) > TILE:
            _, height, width, *_ = levels[-1]
            levels.append(self._replace(height=-(-height // 2), width=-(-width // 2)))
        return levels

    def blank_row(self) -> NDArray[np.uint8]:
        """Return a row of tiles that is nodata everywhere, uint8 (plane, 512, x, sample)."""
        shape = self.planes, TILE, self.tile_columns * TILE, self.samples
        return np.full(shape, self.fill, np.uint8)


class Spool:
    """The tiles of one level, in a file that grows; ``sizes`` per row of tiles, plane by plane."""

    def __init__(
        self,
        file: BinaryIO,
        shape: Shape,
        compression: Compression,
        pool: Executor,
        sizes: Iterable[list[int]] = (),
    ) -> None:
        self._file, self.shape, self.sizes, self._pool = file, shape, list(sizes), pool
        self._codec = _CODECS[compression]
        self._file.truncate(sum(map(framed, self.sizes)))
        self._file.seek(0, os.SEEK_END)

    def append(self, pixels: NDArray[np.uint8]) -> list[int]:
        """Compress and add a row of tiles, uint8 (plane, 512, x, sample); return their sizes."""
        xs = range(0, pixels.shape[2], TILE)
        tiles = (plane[:, x : x + TILE] for plane in pixels for x in xs)
        sizes = []
        for data in self._pool.map(self._pack, tiles):
            if data:
                self._file.write(struct.pack("<I", len(data)) + data + data[-4:].rjust(4, b"\0"))
            sizes.append(len(data))
        self.sizes.append(sizes)
        return sizes

    def _pack(self, tile: NDArray[np.uint8]) -> bytes:
        """Return a compressed tile; empty if it is nodata everywhere."""
        fill = self.shape.fill
        tile = np.ascontiguousarray(tile)
        if (tile[0, 0] == fill).all() and (tile == fill).all():
            return b""
        if self.shape.differences:
            tile = np.diff(tile, axis=1, prepend=np.uint8(0))
        return bytes(self._codec.encode(tile))

    def flush(self) -> None:
        """Flush the file to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def read(self, row: int) -> NDArray[np.uint8]:
        """Return a row of tiles, uint8 (plane, 512, x, sample)."""
        pixels = self.shape.blank_row()
        self._file.flush()
        start = sum(map(framed, self.sizes[:row]))
        places = ((p, x) for p in range(len(pixels)) for x in range(0, pixels.shape[2], TILE))
        for (plane, x), size in zip(places, self.sizes[row], strict=True):
            if size:
                plain = np.frombuffer(
                    self._codec.decode(self._read(start + LEADER, size)), np.uint8
                )
                tile = plain.reshape(TILE, TILE, -1)
                tile = tile.cumsum(1, np.uint8) if self.shape.differences else tile
                pixels[plane, :, x : x + TILE] = tile
                start += framed([size])
        return pixels

    def _read(self, start: int, count: int) -> bytes:
        data = os.pread(self._file.fileno(), count, start)
        if len(data) < count:
            raise OSError(f"{self._file.name} has been truncated by another program")
        return data

    def in_order(self) -> list[int]:
        """Return the sizes of all tiles in the order of a TIFF: plane by plane."""
        planes = range(self.shape.planes)
        return [size for plane in planes for row in self.sizes for size in self._plane(row, plane)]

    def copy_to(self, target: BinaryIO) -> None:
        """Append all tiles to a file, in the order of a TIFF."""
        self._file.flush()
        starts = np.cumsum([0, *map(framed, self.sizes)])
        for plane in range(self.shape.planes):
            for start, row in zip(starts, self.sizes, strict=False):
                before = framed(row[: plane * self.shape.tile_columns])
                target.write(self._read(int(start) + before, framed(self._plane(row, plane))))

    def _plane(self, row: list[int], plane: int) -> list[int]:
        return row[plane * self.shape.tile_columns : (plane + 1) * self.shape.tile_columns]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def framed(sizes: Iterable[int]) -> int:
    """Return the bytes that tiles of these sizes take in a file, with leaders and trailers."""
    return sum(LEADER + size + TRAILER for size in sizes if size)
