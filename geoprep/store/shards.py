"""Writing one shard: compress its chunks, checksum them, index them, rename into place.

The bytes are those of :mod:`geoprep.store.layout`. Chunks are encoded in order, so that the same
pixels give the same bytes whatever wrote them; the file appears under its final name at once or not
at all.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from geoprep.store.layout import CRC_BYTES, MISSING, checksum, compressor, shard_key
from geoprep.store.schema import Codec

PARTIAL_SUFFIX = ".partial"


@dataclass(frozen=True, slots=True)
class ShardFile:
    """What was written: XXH3-128 of the file as hex, and its size in bytes."""

    digest: str
    nbytes: int


def shard_path(store: Path, array: str, shard: int) -> Path:
    """Return the file of a shard of ``650/image`` or ``650/speed``."""
    return store / shard_key(array, shard)


class ShardWriter:
    """Writes one shard tile by tile: nothing larger than a tile is held in memory.

    The file has a temporary name until :meth:`close` renames it. It is not flushed to the disk
    here: the build does that before it counts the shard as done, so that the
    threads that compute never wait for a disk.

    Parameters
    ----------
    path
        Final name of the shard.
    shard_tiles
        Chunks in a full shard. Those never added lie past the end of the array and are marked
        missing.
    codec
        How a chunk is compressed.
    """

    def __init__(self, path: Path, shard_tiles: int, codec: Codec) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
        self._encode = compressor(codec).encode
        self._index = np.full((shard_tiles, 2), MISSING, dtype="<u8")
        self._hash = xxhash.xxh3_128()
        self._count = 0
        self._offset = 0
        self._file = self._partial.open("wb")

    def add(self, tile: NDArray[np.uint8]) -> None:
        """Append the next tile, uint8, C-contiguous."""
        # numcodecs wants a flat buffer; a flat view of a contiguous tile is free.
        body = bytes(self._encode(tile.reshape(-1)))
        self._write(body)
        self._write(checksum(body))
        size = len(body) + CRC_BYTES
        self._index[self._count] = self._offset, size
        self._count += 1
        self._offset += size

    def close(self) -> ShardFile:
        """Write the index, rename the file into place, and say what was written."""
        footer = self._index.tobytes()
        self._write(footer)
        self._write(checksum(footer))
        self._file.close()
        self._partial.replace(self.path)
        nbytes = self._offset + len(footer) + CRC_BYTES
        return ShardFile(self._hash.hexdigest(), nbytes)

    def abort(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(OSError):  # closing flushes, which a full disk refuses again
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)


def digest(data: bytes) -> str:
    """Return the XXH3-128 of a shard's bytes as 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)
