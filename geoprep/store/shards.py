"""Write one shard: compressed chunks, their checksums and an index, in one atomic file.

Chunks are encoded in order, so that the same pixels always give the same bytes;
:mod:`geoprep.store.layout` describes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from geoprep.storage.sinks import DiskFile, Upload
from geoprep.store.layout import CRC_BYTES, MISSING, checksum, compressor
from geoprep.store.schema import Codec


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A written shard."""

    digest: str  # XXH3-128, 32 hex digits
    nbytes: int
    tag: str = ""  # ETag, if the store is in a bucket


class ShardWriter:
    """Write one shard tile by tile; chunks beyond the last are marked missing."""

    def __init__(self, out: Path | Upload, shard_tiles: int, codec: Codec) -> None:
        self._encode = compressor(codec).encode
        self._index = np.full((shard_tiles, 2), MISSING, dtype="<u8")
        self._hash = xxhash.xxh3_128()
        self._count = 0
        self._offset = 0
        self._file: Upload = DiskFile(out) if isinstance(out, Path) else out

    def add(self, tile: NDArray[np.uint8]) -> None:
        """Append the next tile, uint8, C-contiguous."""
        # numcodecs needs a flat buffer. Reshaping a contiguous tile copies nothing.
        body = bytes(self._encode(tile.reshape(-1)))
        self._write(body)
        self._write(checksum(body))
        size = len(body) + CRC_BYTES
        self._index[self._count] = self._offset, size
        self._count += 1
        self._offset += size

    def close(self) -> ShardFile:
        """Write the index, give the file its name, and return its digest and size."""
        footer = self._index.tobytes()
        self._write(footer)
        self._write(checksum(footer))
        tag = self._file.close()
        nbytes = self._offset + len(footer) + CRC_BYTES
        return ShardFile(self._hash.hexdigest(), nbytes, tag)

    def abort(self) -> None:
        """Remove the unfinished file."""
        self._file.abort()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)


def digest(data: bytes) -> str:
    """Return the XXH3-128 of a shard's bytes as 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)
