"""The header of a Cloud Optimised GeoTIFF: its directories, written before the tiles.

Sources: TIFF 6.0, the BigTIFF note of Aware Systems, and GDAL's page on the COG driver, which
describes the header and the four bytes before and after each tile.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from geoprep.cog.spool import LEADER, TILE, Compression, Shape, framed

if TYPE_CHECKING:
    from rasterio.io import DatasetWriter

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


@dataclass(frozen=True, slots=True)
class Tag:
    """A field of a directory: its TIFF type, number of values, and their bytes."""

    type: int
    count: int
    value: bytes


Tags = dict[int, Tag]
Sizes = Sequence[Sequence[int]]


def described(
    shape: Shape,
    compression: Compression,
    describe: Callable[[DatasetWriter], None],
    **profile: Any,  # noqa: ANN401 - as rasterio's
) -> Tags:
    """Return the tags of a file without its pixels, as GDAL writes them.

    ``describe`` is called with the empty file; ``profile`` adds to what `rasterio.open` is given.
    """
    from rasterio.io import MemoryFile

    layout = {
        "driver": "GTiff",
        "width": shape.width,
        "height": shape.height,
        "count": shape.planes * shape.samples,
        "dtype": "uint8",
        "tiled": True,
        "blockxsize": TILE,
        "blockysize": TILE,
        "interleave": "pixel" if shape.samples > 1 else "band",
        "predictor": 2 if shape.differences else 1,
        "compress": compression,
        "alpha": "no",
        "bigtiff": "no",
        "sparse_ok": True,
    }
    with MemoryFile() as memory:
        with memory.open(**layout, **profile) as dataset:
            describe(dataset)
        return read_tags(bytes(memory.getbuffer()))


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
