"""Images that viewers rotate or invert and GDAL does not: EXIF orientation, white as 0."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from geoprep.storage.cut_files import Read, png_chunks, webp_chunks

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

UPRIGHT: Final = 1
_ORIENTATION: Final = 274
_MOST_TAGS: Final = 1000
_ORDERS: Final[dict[bytes, Literal["little", "big"]]] = {b"II": "little", b"MM": "big"}


def other_display(dataset: DatasetReader, read: Read | None, size: int) -> str:
    """Return how viewers show an open image differently, and the correcting command, or "".

    ``read`` and ``size`` are of its file; None: only what GDAL says is known.
    """
    inverted = dataset.tags(ns="IMAGE_STRUCTURE").get("MINISWHITE") == "YES"
    if inverted and dataset.colorinterp[0].name != "palette":  # of one bit, which GDAL turns over
        most = np.iinfo(dataset.dtypes[0]).max
        return (
            "shows its smallest value white: invert it with `gdal_translate -co "
            f"PHOTOMETRIC=MINISBLACK -scale 0 {most} {most} 0 IN OUT`"
        )
    if not dataset.transform.is_identity:
        return ""
    stated = dataset.tags().get("EXIF_Orientation", "")
    turned = int(stated) if stated.isdecimal() else 0
    turned = turned or (_stored_orientation(read, size) if read else UPRIGHT)
    if turned <= UPRIGHT:
        return ""
    return (
        f"is stored turned (EXIF orientation {turned}), other files upright: turn its pixels with "
        "`mogrify -auto-orient FILE`"
    )


def _stored_orientation(read: Read, size: int) -> int:
    """Return the orientation tag of a TIFF, or of the EXIF part of a PNG or WebP."""
    head = read(0, 12)
    start: int | None = 0
    if head.startswith(b"\x89PNG"):
        start = next((at for kind, at in png_chunks(read, size) if kind == b"eXIf"), None)
    elif head[8:] == b"WEBP":
        start = next((at for kind, at in webp_chunks(read, size) if kind == b"EXIF"), None)
    if start is None:
        return UPRIGHT
    start += 6 if read(start, 4) == b"Exif" else 0
    order = _ORDERS.get(read(start, 2))
    if order is None:
        return UPRIGHT

    def number(at: int, length: int) -> int:
        return int.from_bytes(read(start + at, length), order)

    big = number(2, 2) == 43
    first = number(8, 8) if big else number(4, 4)
    counted, entry, value = (8, 20, 12) if big else (2, 12, 8)  # lengths, and place of a value
    entries = range(first + counted, size, entry)
    for at in islice(entries, min(number(first, counted), _MOST_TAGS)):
        if number(at, 2) == _ORIENTATION:
            return number(at + value, 2)
    return UPRIGHT
