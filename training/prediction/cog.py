"""Rows of pixels to a Cloud Optimised GeoTIFF, which an interrupted run can resume.

GDAL's COG driver cannot resume, and would decode and compress every pixel again.

Sources: TIFF 6.0, the BigTIFF note of Aware Systems, and GDAL's page on the COG driver, which
describes the header and the four bytes before and after each tile.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoprep.cpus import usable_cpus
from geoprep.speed import NODATA
from geoprep.storage.local_files import flush
from geoprep.storage.output_files import put
from training.prediction.spool import LEADER, TILE, Compression, Shape, Spool, WriteJournal, framed

_GHOST = (
    b"LAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\n"
    b"BLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n "
)
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 16: 8, 17: 8}
_SUBFILE, _OFFSETS, _COUNTS = 254, 324, 325
_GEOGRAPHY = {33550, 33922, 34264, 34735, 34736, 34737}
_ONCE = {270, 305, 306, 315, 42112} | _GEOGRAPHY
"""Tags of the image that its overviews do not repeat."""

LARGEST_CLASSIC = 4_000_000_000
"""Largest classic TIFF in bytes; larger files are BigTIFF."""


Halve = Callable[[NDArray[np.uint8], NDArray[np.uint8], bool], None]
"""Writes one pixel (y, x) of 2 x 2 of a band, by mode or by average."""


class CogWriter:
    """Takes rows of pixels from top to bottom; compresses and writes them in a thread.

    It holds at most two rows of tiles, and one per overview. Overviews show the average of four
    pixels, those of the bands ``by_mode`` the most frequent value.
    """

    def __init__(
        self,
        journal: WriteJournal,
        shape: Shape,
        compression: Compression,
        by_mode: Collection[int],
        halve: Halve,
    ) -> None:
        self._journal, self._by_mode, self._halve = journal, by_mode, halve
        self._ends = ExitStack()
        packers = self._ends.enter_context(ThreadPoolExecutor(usable_cpus(), "predict-pack"))
        self._pool = self._ends.enter_context(ThreadPoolExecutor(1, "predict-write"))
        self._pending: Future[None] | None = None
        written = journal.rows
        self._spools = [
            Spool(journal.folder / f"level{i}.tiles", s, compression, packers, () if i else written)
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
        """Add rows, uint8 (band, y, x)."""
        image, done, count = self._spools[0].shape, 0, pixels.shape[1]
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
        spool.flush()
        self._journal.add_row(sizes)
        self._add_to_overview(1, len(spool.sizes) - 1, tiles)

    def _add_to_overview(self, level: int, number: int, tiles: NDArray[np.uint8]) -> None:
        """Add a row of tiles of the next finer level by its number, uint8 (band, 512, x)."""
        if level == len(self._spools):
            return
        spool, row, half = self._spools[level], self._rows[level], TILE // 2
        part = row[:, half:] if number % 2 else row[:, :half]
        for band, (fine, coarse) in enumerate(zip(tiles, part, strict=True)):
            known = coarse[:, : min(spool.shape.width, fine.shape[1] // 2)]
            self._halve(fine, known, band in self._by_mode)
        if number % 2 or number + 1 == self._spools[level - 1].shape.tile_rows:
            spool.append(row)
            self._add_to_overview(level + 1, number // 2, row)
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
        put(whole, target)
        flush(target.parent)


@dataclass(frozen=True, slots=True)
class Tag:
    """A field of a directory: its TIFF type, number of values, and their bytes."""

    type: int
    count: int
    value: bytes


Tags = dict[int, Tag]
Sizes = Sequence[Sequence[int]]


def read_tags(data: bytes) -> Tags:
    """Return the tags of a little-endian classic TIFF, without offsets and sizes of its tiles."""
    (directory,) = struct.unpack_from("<I", data, 4)
    (count_of_tags,) = struct.unpack_from("<H", data, directory)
    tags = {}
    for entry in range(directory + 2, directory + 2 + 12 * count_of_tags, 12):
        number, type_, count, offset = struct.unpack_from("<HHII", data, entry)
        size = _SIZES[type_] * count
        start = entry + 8 if size <= 4 else offset
        tags[number] = Tag(type_, count, data[start : start + size])
    return {number: tag for number, tag in tags.items() if number not in (_OFFSETS, _COUNTS)}


def overview_tags(tags: Tags, height: int, width: int) -> Tags:
    """Return the tags of an overview of a size in pixels."""
    kept = {number: tag for number, tag in tags.items() if number not in _ONCE}
    return kept | {_SUBFILE: long(1), 256: long(width), 257: long(height)}


def long(value: int) -> Tag:
    """Return a tag with one 32-bit number."""
    return Tag(4, 1, struct.pack("<I", value))


def header(levels: Sequence[Tags], sizes: Sizes) -> bytes:
    """Return the bytes that precede the tiles, of tags and tile sizes per level, finest first.

    The size of a tile that is nodata everywhere, and omitted, is 0. The tiles must follow
    directly: the coarsest overview first, every tile between its leader and its trailer.
    """
    tiles = sum(map(len, sizes))
    big = sum(map(framed, sizes)) + 20 * tiles + 65536 * len(levels) > LARGEST_CLASSIC
    end = len(_layout(levels, sizes, sizes, big))  # offsets do not change its length
    offsets: list[list[int]] = []
    for level in reversed(sizes):
        starts = list(accumulate((framed([size]) for size in level), initial=end))
        places = zip(starts, level, strict=False)
        offsets.insert(0, [start + LEADER if size else 0 for start, size in places])
        end = starts[-1]
    return _layout(levels, offsets, sizes, big)


def _layout(levels: Sequence[Tags], offsets: Sizes, sizes: Sizes, big: bool) -> bytes:
    """Return the header, the ghost area that declares the layout, and all directories."""
    ghost = b"GDAL_STRUCTURAL_METADATA_SIZE=%06d bytes\n" % len(_GHOST) + _GHOST
    start = (16 if big else 8) + len(ghost)
    start += start % 2
    first = (
        struct.pack("<2sHHHQ", b"II", 43, 8, 0, start)
        if big
        else struct.pack("<2sHI", b"II", 42, start)
    )
    data = (first + ghost).ljust(start, b"\0")
    type_, code = (16, "Q") if big else (4, "I")
    for tags, starts, counts in zip(levels, offsets, sizes, strict=True):
        placed = tags | {
            _OFFSETS: Tag(type_, len(starts), struct.pack(f"<{len(starts)}{code}", *starts)),
            _COUNTS: Tag(4, len(counts), struct.pack(f"<{len(counts)}I", *counts)),
        }
        data += _directory(placed, len(data), big, last=tags is levels[-1])
    return data


def _directory(tags: Tags, start: int, big: bool, last: bool) -> bytes:
    """Return a directory that begins at the byte ``start`` of the file, and its long values."""
    entry, inline, code = (20, 8, "Q") if big else (12, 4, "I")
    head = struct.pack("<Q" if big else "<H", len(tags))
    values_at = start + len(head) + entry * len(tags) + inline
    entries, values = b"", b""
    for number in sorted(tags):
        tag = tags[number]
        entries += struct.pack(f"<HH{code}", number, tag.type, tag.count)
        if len(tag.value) <= inline:
            entries += tag.value.ljust(inline, b"\0")
        else:
            entries += struct.pack(f"<{code}", values_at + len(values))
            values += tag.value + b"\0" * (len(tag.value) % 2)
    following = 0 if last else values_at + len(values)
    return head + entries + struct.pack(f"<{code}", following) + values
