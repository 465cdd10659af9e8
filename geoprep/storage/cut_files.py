"""Files whose end is missing, of the formats that GDAL then reads without an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

Read = Callable[[int, int], bytes]
"""Returns a number of bytes of a file from a position on, fewer at its end."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JP2: Final = b"\0\0\0\x0cjP  \r\n\x87\n"
_SQLITE: Final = b"SQLite form"
_END_OF_CODE_STREAM: Final = b"\xff\xd9"


def missing_end(read: Read, size: int) -> str:
    """Return what a file of ``size`` bytes lacks; "" if nothing, or if GDAL itself reports it.

    The end of a PNG or JPEG 2000 that was filled with zeros is missing too.
    """
    head = read(0, len(_JP2))
    if head.startswith(_PNG) and not _has_end_of_png(read, size):
        return "its end is missing: there is no chunk IEND"
    if head.startswith(_JP2) and not _has_end_of_jp2(read, size):
        return "its end is missing: the code stream has no end marker"
    if head.startswith(_SQLITE):
        page, count = int.from_bytes(read(16, 2)), int.from_bytes(read(28, 4))
        if size < page * count:
            return f"its end is missing: it has {size:,} bytes of {page * count:,}"
    return ""


def missing_pixels(dataset: DatasetReader) -> str:
    """Return what an ENVI file lacks: GDAL reads its missing pixels as 0."""
    header = dataset.tags(ns="ENVI") if dataset.driver == "ENVI" else {}
    if not header or header.get("file_compression", "0") != "0":
        return ""
    pixel = sum(np.dtype(dtype).itemsize for dtype in dataset.dtypes)
    whole = int(header.get("header_offset", 0)) + dataset.width * dataset.height * pixel
    size = Path(dataset.name).stat().st_size
    return f"its end is missing: it has {size:,} bytes of {whole:,}" if size < whole else ""


def _has_end_of_png(read: Read, size: int) -> bool:
    start, kind = len(_PNG), b"IHDR"
    while start < size and kind.isalpha() and kind != b"IEND":
        chunk = read(start, 8)  # length and kind; a checksum of 4 bytes ends it
        kind = chunk[4:]
        start += 12 + int.from_bytes(chunk[:4])
    return kind == b"IEND" and start <= size


def _has_end_of_jp2(read: Read, size: int) -> bool:
    start = 0
    while start < size:
        box = read(start, 16)  # length and kind, and the length if it needs 64 bits
        length = int.from_bytes(box[8:] if box[:4] == b"\0\0\0\1" else box[:4])
        stop = start + length if length else size  # 0: the last box
        if box[4:8] == b"jp2c":
            return stop <= size and read(stop - 2, 2) == _END_OF_CODE_STREAM
        if length < 8:
            return False
        start = stop
    return False
