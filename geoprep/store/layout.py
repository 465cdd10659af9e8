"""The byte layout of pixel arrays, shared by the code that writes, verifies and loads them.

A chunk is one tile: ``bytes``, a compressor, ``crc32c``. A shard is Zarr's ``sharding_indexed``
with the index at the end. A missing chunk or shard means that the store is damaged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
from numcodecs.abc import Codec as Compressor
from numpy.typing import NDArray

from geoprep.store.schema import FILL_VALUES, Codec, StoreMeta

MISSING = np.iinfo(np.uint64).max
"""Offset and length in the index of a chunk that is not in the shard."""
CRC_BYTES = 4
ENTRY_BYTES = 16


def _zstd(level: int) -> dict[str, Any]:
    return {"name": "zstd", "configuration": {"level": level, "checksum": False}}


_BLOSC = {"typesize": 1, "cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "blocksize": 0}
_COMPRESSORS = {"lz4": {"name": "blosc", "configuration": _BLOSC}, "zstd": _zstd(1)}
_CRC32C = {"name": "crc32c"}
_LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}

Bytes = NDArray[np.uint8] | bytes
Sides = Sequence[int]
Names = Sequence[str]

# One call encodes one chunk. Threads inside blosc would compete with the threads that call it.
numcodecs.blosc.use_threads = False


@lru_cache
def compressor(codec: Codec) -> Compressor:
    """Return the compressor of chunks, as `PixelLayout.header` describes it."""
    if codec == "lz4":
        return numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE)
    return numcodecs.Zstd(level=1)


def checksum(data: Bytes) -> bytes:
    """Return the CRC-32C of stored bytes: 4 bytes, little-endian."""
    return int(google_crc32c.value(data)).to_bytes(CRC_BYTES, "little")


def without_checksum(data: Bytes) -> Bytes:
    """Return the bytes before a CRC-32C, as a view; ValueError if it does not match."""
    body, stored = data[:-CRC_BYTES], data[-CRC_BYTES:]
    if len(body) == 0 or checksum(body) != bytes(stored):
        raise ValueError("the checksum is invalid")
    return body


def shard_key(array: str, shard: int) -> str:
    """Return the file of a shard of ``650/image`` or ``650/speed``, relative to the store."""
    return f"{array}/c/{shard}" + "/0" * (3 if array.endswith("image") else 2)


def array_header(
    shape: Sides, data_type: str, chunks: Sides, fill: int | str, codecs: list[Any], dims: Names
) -> dict[str, Any]:
    """Return the metadata of an array as Zarr 3 has it."""
    return {
        "shape": [*shape],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*chunks]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": {},
        "dimension_names": [*dims],
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def table_header(shape: Sides, dtype: str, dims: Names) -> dict[str, Any]:
    """Return the metadata of a table, which is one chunk."""
    values = _LITTLE_ENDIAN if dtype != "uint8" else {"name": "bytes"}
    values = {"name": "vlen-utf8", "configuration": {}} if dtype == "str" else values
    codecs = [values, _zstd(3), _CRC32C]
    data_type, fill = ("string", "") if dtype == "str" else (dtype, 0)
    return array_header(shape, data_type, [max(1, n) for n in shape], fill, codecs, dims)


@dataclass(frozen=True, slots=True)
class PixelLayout:
    """Chunks and shards of one pixel array."""

    array: str  # 650/image or 650/speed
    tile_shape: tuple[int, ...]  # (y, x, band) or (y, x)
    shard_tiles: int  # those past the last tile of the array are marked missing
    codec: Codec

    @property
    def fill(self) -> int:
        """Value of nodata pixels: 0 in images, 255 in labels."""
        return FILL_VALUES[self.array.rpartition("/")[2]]

    @property
    def tile_bytes(self) -> int:
        """Bytes per decoded tile."""
        return math.prod(self.tile_shape)

    @property
    def index_bytes(self) -> int:
        """Size in bytes of the index at the end of a shard, checksum included."""
        return self.shard_tiles * ENTRY_BYTES + CRC_BYTES

    def key(self, shard: int) -> str:
        """Return the file of a shard, relative to the store."""
        return shard_key(self.array, shard)

    def place(self, tile: int) -> tuple[int, int]:
        """Return the shard of a tile and the tile's row in the shard's index."""
        return divmod(tile, self.shard_tiles)

    def read_index(self, tail: Bytes) -> NDArray[np.uint64]:
        """Return uint64 (chunk, 2), offset and length or `MISSING`, from the end of a shard."""
        if len(tail) != self.index_bytes:
            raise ValueError("the file is cut short")
        return np.frombuffer(without_checksum(tail), "<u8").reshape(-1, 2)

    def decode(self, chunk: Bytes, out: NDArray[np.uint8]) -> None:
        """Check a chunk against its checksum and decompress it into a C-contiguous tile."""
        body = without_checksum(chunk)
        size = _blosc_size(body) if self.codec == "lz4" else _zstd_size(body)
        if size != out.nbytes:  # the codec would leave the other pixels unchanged
            raise ValueError(f"the chunk holds {size} pixel bytes, not {out.nbytes}")
        compressor(self.codec).decode(body, out.reshape(-1))

    def header(self, tiles: int) -> dict[str, Any]:
        """Return the metadata of the array for a number of tiles."""
        shape, chunks = (tiles, *self.tile_shape), (self.shard_tiles, *self.tile_shape)
        shard = {
            "chunk_shape": [1, *self.tile_shape],
            "codecs": [{"name": "bytes"}, _COMPRESSORS[self.codec], _CRC32C],
            "index_codecs": [_LITTLE_ENDIAN, _CRC32C],
            "index_location": "end",
        }
        codecs = [{"name": "sharding_indexed", "configuration": shard}]
        dims = ("tile", "y", "x", "band")[: len(shape)]
        return array_header(shape, "uint8", chunks, self.fill, codecs, dims)


def pixel_layouts(meta: StoreMeta) -> dict[str, PixelLayout]:
    """Return the layout of every pixel array, by its name, finest level first."""
    layouts = {}
    for name in meta.pixel_arrays():
        level, kind = name.split("/")
        bands = (len(meta.bands),) if kind == "image" else ()
        shape = (int(level), int(level), *bands)
        layouts[name] = PixelLayout(name, shape, meta.shard_tiles, meta.codec)
    return layouts


def _blosc_size(frame: Bytes) -> int:
    """Return the decoded size of a Blosc frame in bytes (c-blosc, README_CHUNK_FORMAT.rst)."""
    return int.from_bytes(frame[4:8], "little")


def _zstd_size(frame: Bytes) -> int:
    """Return the decoded size of a Zstandard frame (RFC 8878, 3.1.1.1); -1 if it is not given."""
    if len(frame) < 5:
        return -1
    flags = int(frame[4])
    kind, single = flags >> 6, flags >> 5 & 1
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    width = (single, 2, 4, 8)[kind]
    return int.from_bytes(frame[at : at + width], "little") + (256 if kind == 1 else 0)
