"""Which pixels of an image hold imagery: decided once per scene, and kept as one bit per pixel.

1. A value that the user gives marks nodata where all bands have it.
2. Else the mask of the file decides, its alpha band, masks of its bands, transparent colours of
   its palette, or its nodata tags, in this order. Of masks and tags of bands, those of the bands
   that are read count: a pixel is valid where any is. An alpha band that is read is no mask.
3. Else black in all bands is nodata where it is connected, by sides or corners, with the edge of
   the image. Only the whole image can say that: see `edge_black`.
4. In wide dtypes NaN, infinity, or nodata in one band suffices besides.

`geoprep.imagery.decoding` applies 1, 2 and 4 to any window. A mask that is decided is a file of
rows of bits (`numpy.packbits`), for windows of the scene that are read later.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from geoprep.components import connected
from geoprep.errors import StoreError
from geoprep.storage.addresses import is_bucket
from geoprep.storage.output_files import replaced
from geoprep.storage.places import Files
from geoprep.storage.sinks import Bucket

Nodata = float | Literal["none"] | None
"""A value that marks nodata; ``none``: alpha, mask and nodata tag only; None: black too."""
Bits = NDArray[np.uint8]
"""Pixels (y, x) as rows of bits, uint8 (y, bytes)."""

_STRIP_PIXELS: Final = 16 << 20
"""Pixels whose connected components are found at once."""


def edge_black(black: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the black pixels, (y, x), that are connected with the edge of the image."""
    bits = np.packbits(black, axis=1)
    clear_inner(bits, black.shape[1])
    return np.unpackbits(bits, axis=1, count=black.shape[1]).view(np.bool_)


def clear_inner(black: Bits, width: int) -> int:
    """Clear the black pixels of an image that are not connected with its edge; return what is left.

    Memory does not grow with the image: strips take in what is connected with their neighbours,
    down and up the image, until nothing changes.
    """
    rows = max(1, _STRIP_PIXELS // width)
    tops = range(0, len(black), rows)
    outer = np.pad(np.zeros_like(black), ((1, 1), (0, 0)), constant_values=255)  # and rows outside
    changed = True
    while changed:
        changed, left = False, 0
        for top in tops:
            strip = np.unpackbits(black[top : top + rows], axis=1, count=width)
            beside = np.unpackbits(outer[[top, top + len(strip) + 1]], axis=1, count=width)
            connected = _connected(strip, *beside)
            left += int(np.count_nonzero(connected))
            bits = np.packbits(connected, axis=1)
            own = outer[top + 1 : top + len(strip) + 1]
            changed |= len(tops) > 1 and not np.array_equal(bits, own)
            own[...] = bits
        tops = tops[::-1]
    black[...] = outer[1:-1]
    return left


def _connected(
    strip: NDArray[np.uint8], above: NDArray[np.uint8], below: NDArray[np.uint8]
) -> NDArray[np.int8]:
    """Return the pixels of a strip (y, x) that are connected with its sides or with rows beside it.

    Runs of pixels in a row are the nodes of a graph: of few runs it takes a quarter of the time of
    labelling pixels, of noise ten times of it.
    """
    line = strip.shape[1] + 2  # a pixel on each side ends every run
    padded = np.pad(strip, ((0, 0), (1, 1)))
    flat = padded.ravel()
    starts, ends = (np.flatnonzero(flat[1:] != flat[:-1]) + 1).reshape(-1, 2).T
    meets = (starts % line == 1) | (ends % line == line - 1)
    for of_row, beside in ((starts < line, above), (ends > len(flat) - line, below)):
        reached = np.cumsum(np.pad(np.convolve(beside, (1, 1, 1))[1:-1] > 0, 1))
        meets[of_row] |= reached[ends[of_row] % line - 1] > reached[starts[of_row] % line - 1]
    out = np.zeros(len(flat), np.int8)
    if meets.any():
        few = len(starts) < strip.size // 32
        labels = _labels_of_runs(starts, ends, line) if few else _labels(padded)[starts]
        keep = np.bincount(labels, meets)[labels] > 0
        out[starts[keep]], out[ends[keep]] = 1, -1
        np.cumsum(out, out=out)
    return out.reshape(-1, line)[:, 1:-1]


def _labels_of_runs(starts: NDArray[Any], ends: NDArray[Any], line: int) -> NDArray[Any]:
    """Return the connected component of each run; of rows of ``line`` pixels, one after another."""
    # Of the next row, a run touches those that end behind its start and start before its end.
    first = np.searchsorted(ends, starts + line)
    count = np.searchsorted(starts, ends + line, "right") - first
    upper = np.repeat(np.arange(len(starts)), count)
    lower = np.arange(len(upper)) + np.repeat(first - np.cumsum(count) + count, count)
    return connected(np.column_stack([upper, lower]), len(starts))[1]


def _labels(pixels: NDArray[np.uint8]) -> NDArray[Any]:
    """Return the connected component of each pixel, flat."""
    from scipy.ndimage import label

    labels: NDArray[Any] = label(pixels, np.ones((3, 3)))[0].ravel()
    return labels


class StripValidity(NamedTuple):
    """Which pixels of whole rows hold imagery, as far as they show it: compressed rows of bits."""

    usable: bytes = b""  # pixels that are imagery or black; empty: all
    black: bytes = b""  # black ones, on which the whole image decides; empty: none


def strip_validity(
    valid: NDArray[np.uint8] | None, black: NDArray[np.bool_] | None
) -> StripValidity:
    """Return what rows show: ``valid`` (y, x) without undecided ``black`` ones; None: all, none."""
    if valid is None:
        return StripValidity()
    usable = valid if black is None else valid | black
    return StripValidity(
        b"" if usable.all() else _packed(usable),
        b"" if black is None else _packed(black),
    )


def decide(strips: Mapping[int, StripValidity], height: int, width: int) -> tuple[Bits | None, int]:
    """Return the valid pixels of an image (None: all), and how many are nodata as they are black.

    ``strips`` are all rows of the image, by the first of each.
    """
    usable = {top: strip.usable for top, strip in strips.items() if strip.usable}
    undecided = {top: strip.black for top, strip in strips.items() if strip.black}
    bits, left = _joined_bits(usable, height, width, 255), 0
    if undecided:
        black = _joined_bits(undecided, height, width, 0)
        left = clear_inner(black, width)
        bits &= ~black
    return (bits if left or usable else None), left


def _packed(mask: NDArray[Any]) -> bytes:
    return zlib.compress(np.packbits(mask, axis=1).tobytes(), 1)


def _joined_bits(strips: Mapping[int, bytes], height: int, width: int, other: int) -> Bits:
    bits = np.full((height, -(-width // 8)), other, np.uint8)
    for top, strip in strips.items():
        rows = np.frombuffer(zlib.decompress(strip), np.uint8).reshape(-1, bits.shape[1])
        bits[top : top + len(rows)] = rows
    return bits


def write_bits(location: str, bits: Bits) -> None:
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
    """Return a window of the mask of an image of a width, uint8 (y, x), 1 where it is valid."""
    folder, _, name = location.rpartition("/")
    line, first, last = -(-width // 8), cols.start // 8, -(-cols.stop // 8)
    data = Files(folder).read_range(name, rows.start * line, rows.stop * line)
    bits = np.frombuffer(data, np.uint8).reshape(-1, line)[:, first:last]
    return np.unpackbits(bits, axis=1)[:, cols.start - 8 * first : cols.stop - 8 * first]
