"""The header of a Cloud Optimised GeoTIFF: tags from GDAL, laid out for tiles that follow.

Sources: TIFF 6.0, the BigTIFF note of Aware Systems, and GDAL's page on the COG driver, which
describes the header and the four bytes before and after each tile.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

TILE = 512
LEADER = TRAILER = 4
"""Bytes before a tile (its size) and after it (its last four bytes), as GDAL's COGs have them."""

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

    kind: int
    count: int
    value: bytes


Tags = dict[int, Tag]


def read_tags(data: bytes) -> Tags:
    """Return the tags of a little-endian classic TIFF, without offsets and sizes of its tiles."""
    (at,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, at)
    tags = {}
    for i in range(entries):
        start = at + 2 + 12 * i
        number, kind, count, offset = struct.unpack_from("<HHII", data, start)
        size = _SIZES[kind] * count
        where = start + 8 if size <= 4 else offset
        tags[number] = Tag(kind, count, data[where : where + size])
    return {number: tag for number, tag in tags.items() if number not in (_OFFSETS, _COUNTS)}


def overview_tags(tags: Tags, height: int, width: int) -> Tags:
    """Return the tags of an overview of a size in pixels."""
    kept = {number: tag for number, tag in tags.items() if number not in _ONCE}
    return kept | {_SUBFILE: long(1), 256: long(width), 257: long(height)}


def long(value: int) -> Tag:
    """Return a tag with one 32-bit number."""
    return Tag(4, 1, struct.pack("<I", value))


def header(levels: Sequence[Tags], sizes: Sequence[Sequence[int]]) -> bytes:
    """Return the bytes that precede the tiles, of tags and tile sizes per level, finest first.

    The size of a tile that is nodata everywhere, and omitted, is 0. The tiles must follow
    directly: the coarsest overview first, every tile between its leader and its trailer.
    """
    tiles = sum(map(len, sizes))
    big = sum(map(framed, sizes)) + 20 * tiles + 65536 * len(levels) > LARGEST_CLASSIC
    at = len(_layout(levels, sizes, sizes, big))  # offsets do not change its length
    offsets: list[list[int]] = []
    for level in reversed(sizes):
        starts = list(accumulate((framed([size]) for size in level), initial=at))
        places = zip(starts, level, strict=False)
        offsets.insert(0, [start + LEADER if size else 0 for start, size in places])
        at = starts[-1]
    return _layout(levels, offsets, sizes, big)


def framed(sizes: Iterable[int]) -> int:
    """Return the bytes that tiles of these sizes take in a file, with leaders and trailers."""
    return sum(LEADER + size + TRAILER for size in sizes if size)


def _layout(
    levels: Sequence[Tags],
    offsets: Sequence[Sequence[int]],
    sizes: Sequence[Sequence[int]],
    big: bool,
) -> bytes:
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
    kind, code = (16, "Q") if big else (4, "I")
    for tags, at, size in zip(levels, offsets, sizes, strict=True):
        placed = tags | {
            _OFFSETS: Tag(kind, len(at), struct.pack(f"<{len(at)}{code}", *at)),
            _COUNTS: Tag(4, len(size), struct.pack(f"<{len(size)}I", *size)),
        }
        data += _directory(placed, len(data), big, last=tags is levels[-1])
    return data


def _directory(tags: Tags, at: int, big: bool, last: bool) -> bytes:
    """Return a directory that begins at the byte ``at`` of the file, and its long values."""
    entry, inline, code = (20, 8, "Q") if big else (12, 4, "I")
    head = struct.pack("<Q" if big else "<H", len(tags))
    values_at = at + len(head) + entry * len(tags) + inline
    entries, values = b"", b""
    for number in sorted(tags):
        tag = tags[number]
        entries += struct.pack(f"<HH{code}", number, tag.kind, tag.count)
        if len(tag.value) <= inline:
            entries += tag.value.ljust(inline, b"\0")
        else:
            entries += struct.pack(f"<{code}", values_at + len(values))
            values += tag.value + b"\0" * (len(tag.value) % 2)
    following = 0 if last else values_at + len(values)
    return head + entries + struct.pack(f"<{code}", following) + values
