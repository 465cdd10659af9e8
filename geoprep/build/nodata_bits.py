"""A file with one bit per pixel of a scene: 1 where black is nodata, for all shards of the scene.

It is in the working folder of the build, which all workers can reach.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError
from geoprep.storage import Bucket, Files, is_bucket, replaced


def pack_bits(mask: NDArray[np.bool_]) -> bytes:
    """Return a strip of whole rows as compressed bytes."""
    return zlib.compress(np.packbits(mask, axis=1).tobytes(), 1)


def join_bits(strips: Mapping[int, bytes], height: int, width: int) -> NDArray[np.uint8]:
    """Return uint8 (y, bytes), packed by row, from packed strips by their first row."""
    bits = np.zeros((height, -(-width // 8)), np.uint8)
    for top, strip in strips.items():
        rows = np.frombuffer(zlib.decompress(strip), np.uint8).reshape(-1, bits.shape[1])
        bits[top : top + len(rows)] = rows
    return bits


def write_bits(location: str, bits: NDArray[np.uint8]) -> None:
    """Write the file; when this returns, it has all of its bytes."""
    if is_bucket(location):
        folder, _, name = location.rpartition("/")
        Bucket(folder).put(name, bits.tobytes())
    else:
        with replaced(Path(location)) as partial:
            partial.write_bytes(bits.tobytes())


def has_bits(location: str) -> bool:
    """Return whether the file exists."""
    folder, _, name = location.rpartition("/")
    try:
        return bool(Files(folder).size(name))
    except StoreError:
        return False


def read_bits(location: str, width: int, rows: slice, cols: slice) -> NDArray[np.uint8]:
    """Return a window of the bits, uint8 (y, x)."""
    folder, _, name = location.rpartition("/")
    line, first, last = -(-width // 8), cols.start // 8, -(-cols.stop // 8)
    data = Files(folder).read_range(name, rows.start * line, rows.stop * line)
    bits = np.frombuffer(data, np.uint8).reshape(-1, line)[:, first:last]
    return np.unpackbits(bits, axis=1)[:, cols.start - 8 * first : cols.stop - 8 * first]
