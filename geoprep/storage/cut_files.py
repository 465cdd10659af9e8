"""Files whose end is missing, of the formats that GDAL then reads without an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
_NETCDF: Final = b"CDF\1", b"CDF\2"
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
    """Return what an ENVI file or netCDF lacks: GDAL reads its missing pixels as 0."""
    if dataset.driver == "netCDF" and not _has_end_of_netcdf(Path(dataset.files[0])):
        return "its end is missing: it has not all values of its variables"
    header = dataset.tags(ns="ENVI") if dataset.driver == "ENVI" else {}
    if not header or header.get("file_compression", "0") != "0":
        return ""
    pixel = sum(np.dtype(dtype).itemsize for dtype in dataset.dtypes)
    whole = int(header.get("header_offset", 0)) + dataset.width * dataset.height * pixel
    size = Path(dataset.name).stat().st_size
    return f"its end is missing: it has {size:,} bytes of {whole:,}" if size < whole else ""


def _has_end_of_netcdf(file: Path) -> bool:
    """Return whether a file of the classic formats has all values; HDF5 checks the others."""
    from scipy.io import netcdf_file

    with file.open("rb") as opened:
        if opened.read(4) not in _NETCDF:
            return True
    try:
        netcdf_file(file, mmap=True).close()
    except ValueError:
        return False
    return True


def png_chunks(read: Read, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield kind and first byte of the data of the chunks of a PNG that are whole."""
    start, kind = len(_PNG), b"IHDR"
    while start < size and kind.isalpha():
        chunk = read(start, 8)  # length and kind; a checksum of 4 bytes ends it
        kind, data = chunk[4:], start + 8
        start += 12 + int.from_bytes(chunk[:4])
        if start <= size:
            yield kind, data


def _has_end_of_png(read: Read, size: int) -> bool:
    return any(kind == b"IEND" for kind, _ in png_chunks(read, size))


def webp_chunks(read: Read, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield kind and first byte of the data of the chunks of a WebP."""
    start = 12
    while start < size:
        chunk = read(start, 8)
        yield chunk[:4], start + 8
        start += 8 + (int.from_bytes(chunk[4:], "little") + 1) // 2 * 2


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
