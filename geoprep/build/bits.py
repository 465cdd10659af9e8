"""A bit per pixel of a scene in a file: where black is nodata, for all shards of the scene."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def create_bits(path: Path, height: int, width: int) -> None:
    """Make a file of zeros; it takes no room on the disk until some are written."""
    with path.open("wb") as file:
        file.truncate(height * _row_bytes(width))


def open_bits(path: str | Path, width: int, mode: str = "r") -> NDArray[np.uint8]:
    """Return uint8 (y, bytes) as ``numpy.packbits`` makes them row by row, mapped."""
    bits: NDArray[np.uint8] = np.memmap(path, np.uint8, mode)  # type: ignore[call-overload]  # a mode is a text
    return bits.reshape(-1, _row_bytes(width))


def write_bits(path: str | Path, top: int, mask: NDArray[np.bool_]) -> None:
    """Write whole rows, bool (y, x)."""
    rows = np.packbits(mask, axis=1)
    with Path(path).open("r+b") as file:
        file.seek(top * rows.shape[1])
        file.write(rows.tobytes())


def read_bits(path: str | Path, width: int, rows: slice, cols: slice) -> NDArray[np.uint8]:
    """Return a window, uint8 (y, x)."""
    first, last = cols.start // 8, -(-cols.stop // 8)
    window = np.unpackbits(open_bits(path, width)[rows, first:last], axis=1)
    return window[:, cols.start - 8 * first : cols.stop - 8 * first]


def _row_bytes(width: int) -> int:
    return -(-width // 8)
