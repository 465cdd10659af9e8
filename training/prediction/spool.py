"""Unfinished predictions: tiles of every level in files that grow, and a journal to resume from.

Tiles are compressed once, appended to one file per level, and joined at the end. The journal
records the sizes of a row of tiles once its bytes are on the disk; the rest is cut off by a resume.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TextIO

import numpy as np
from numcodecs import Zlib, Zstd
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.speed import NODATA
from geoprep.storage.local_files import LockHeldError, hold_lock, json_lines

FORMAT = 1
TILE = 512
"""Side of the tiles in pixels."""

LEADER = TRAILER = 4
"""Bytes before a tile (its size) and after it (its last four bytes), as GDAL's COGs have them."""

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

    @property
    def tile_rows(self) -> int:
        """Number of rows of tiles."""
        return -(-self.height // TILE)

    def pyramid(self) -> list[Shape]:
        """Return the shapes of the image and its overviews, down to one that fits a tile."""
        levels = [self]
        while max(levels[-1].height, levels[-1].width) > TILE:
            _, height, width = levels[-1]
            levels.append(Shape(self.bands, -(-height // 2), -(-width // 2)))
        return levels

    def blank_row(self) -> NDArray[np.uint8]:
        """Return a row of tiles that is nodata everywhere, uint8 (band, 512, x)."""
        return np.full((self.bands, TILE, self.tile_columns * TILE), NODATA, np.uint8)


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
        start = sum(map(framed, self.sizes[:row]))
        places = ((b, x) for b in range(len(pixels)) for x in range(0, pixels.shape[2], TILE))
        for (band, x), size in zip(places, self.sizes[row], strict=True):
            if size:
                plain = np.frombuffer(
                    self._codec.decode(self._read(start + LEADER, size)), np.uint8
                )
                pixels[band, :, x : x + TILE] = plain.reshape(TILE, TILE)
                start += framed([size])
        return pixels

    def _read(self, start: int, count: int) -> bytes:
        data = os.pread(self._file.fileno(), count, start)
        if len(data) < count:
            raise OSError(f"{self.path} has been truncated by another program")
        return data

    def in_order(self) -> list[int]:
        """Return the sizes of all tiles in the order of a TIFF: band by band."""
        bands = range(self.shape.bands)
        return [size for band in bands for row in self.sizes for size in self._band(row, band)]

    def copy_to(self, target: BinaryIO) -> None:
        """Append all tiles to a file, in the order of a TIFF."""
        self._file.flush()
        starts = np.cumsum([0, *map(framed, self.sizes)])
        for band in range(self.shape.bands):
            for start, row in zip(starts, self.sizes, strict=False):
                before = framed(row[: band * self.shape.tile_columns])
                target.write(self._read(int(start) + before, framed(self._band(row, band))))

    def _band(self, row: list[int], band: int) -> list[int]:
        return row[band * self.shape.tile_columns : (band + 1) * self.shape.tile_columns]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def framed(sizes: Iterable[int]) -> int:
    """Return the bytes that tiles of these sizes take in a file, with leaders and trailers."""
    return sum(LEADER + size + TRAILER for size in sizes if size)


class BusyError(UsageError):
    """Another process writes the same file."""


class WriteJournal:
    """A hidden folder next to an unfinished file, with its journal and its tiles.

    Work with another ``identity`` is discarded. ``settled`` has decisions of the first run that
    later runs keep, ``rows`` the sizes of the tiles in every row of tiles that is on the disk.
    """

    def __init__(self, target: Path, identity: dict[str, Any]) -> None:
        self.folder = folder_of(target)
        self.settled: dict[str, Any] = {}
        self.rows: list[list[int]] = []
        self.discarded = False  # whether there was work with another identity
        self._identity = {"format": FORMAT, **identity}
        self._path = self.folder / "journal.jsonl"

    def __enter__(self) -> WriteJournal:
        self._lock = locked(self.folder)
        self._resume()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._lock.close()

    @property
    def continued(self) -> bool:
        """Whether this run resumes an earlier one."""
        return bool(self.settled)

    def settle(self, **decisions: Any) -> None:  # noqa: ANN401 - plain JSON values
        """Record decisions that later runs keep."""
        self.settled = decisions
        self._write({**self._identity, "settled": decisions})

    def add_row(self, sizes: list[int]) -> None:
        """Record that a row of tiles is on the disk."""
        self.rows.append(sizes)
        self._write({"row": sizes})

    def remove(self) -> None:
        """Delete the folder, when the file is complete or cannot be written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, *entries: dict[str, Any]) -> None:
        self._file.writelines(json.dumps(entry) + "\n" for entry in entries)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _resume(self) -> None:
        """Read the journal of an earlier run; discard it if its identity differs."""
        head, *rest = [*json_lines(self._path)] or [{}]
        settled = head.pop("settled", {})
        if head == self._identity:
            self.settled, self.rows = settled, [entry["row"] for entry in rest]
        self.discarded = bool(settled) and not self.settled
        # Rewritten, since a crash may have cut off the last line.
        self._file: TextIO = self._path.open("w")
        if self.settled:
            self._write({**head, "settled": settled}, *rest)


def remove_leftover(target: Path) -> None:
    """Delete the folder of a complete file, left by a run that was killed while it deleted it."""
    folder = folder_of(target)
    if folder.is_dir():
        with suppress(BusyError), locked(folder):
            shutil.rmtree(folder, ignore_errors=True)


def locked(folder: Path) -> TextIO:
    """Make a folder and return its lock, held until closed; BusyError if another holds it."""
    try:
        return hold_lock(folder / "lock")
    except LockHeldError as owner:
        raise BusyError(
            f"{folder}: {owner} predicts this image. Wait for it, or choose another folder as `out`"
        ) from owner


def folder_of(target: Path) -> Path:
    """Return the folder of the journal and the tiles of a file."""
    return target.with_name(f".{target.name}.partial")
