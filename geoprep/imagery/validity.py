"""Which pixels of an image hold imagery: decided once per scene, and kept as one bit per pixel.

1. A value that the user gives marks nodata where all bands have it.
2. Else the alpha band decides, the mask of the file, transparent colours of its palette, or its
   nodata tags, in this order.
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

from geoprep.errors import StoreError
from geoprep.storage import Bucket, Files, is_bucket, replaced

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

    Components are found within strips, and joined across them: memory does not grow with the image.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows = max(1, _STRIP_PIXELS // width)
    strips = [black[top : top + rows] for top in range(0, len(black), rows)]
    links: list[NDArray[np.int64]] = []  # between the nodes of a graph: 0 not black, 1 the edge
    firsts, above = [2], np.ones(width, np.int64)
    for strip in strips:
        labels, count = _components(strip, width)
        node = np.append(0, np.arange(firsts[-1], firsts[-1] + count))
        links.append(_touching(above, node[labels[0]]))
        links += [np.stack([node[labels[:, side]], np.ones(len(strip), int)]) for side in (0, -1)]
        above = node[labels[-1]]
        firsts.append(firsts[-1] + count)
    links.append(_touching(above, np.ones(width, np.int64)))
    one, other = np.concatenate(links, axis=1)
    black_ends = (one > 0) & (other > 0)
    ends = one[black_ends], other[black_ends]
    graph = coo_array((np.ones(len(ends[0]), np.bool_), ends), shape=(firsts[-1], firsts[-1]))
    joined = connected_components(graph, directed=False)[1]
    left = 0
    for strip, first, end in zip(strips, firsts, firsts[1:], strict=False):
        if len(strips) > 1:  # else they are those of the only strip
            labels, _ = _components(strip, width)
        outer = np.append(False, joined[first:end] == joined[1])[labels]
        left += int(np.count_nonzero(outer))
        strip[...] = np.packbits(outer, axis=1)
    return left


def _components(black: Bits, width: int) -> tuple[NDArray[np.int32], int]:
    """Return the number of the connected component of every pixel (0: none), and how many."""
    from scipy.ndimage import label

    labels: tuple[NDArray[np.int32], int] = label(
        np.unpackbits(black, axis=1, count=width), np.ones((3, 3))
    )
    return labels


def _touching(upper: NDArray[np.int64], lower: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pairs (2, n) of nodes of two rows that touch by sides or corners."""
    around = np.pad(upper, 1)
    return np.concatenate(
        [np.stack([around[shift : shift + len(lower)], lower]) for shift in range(3)], axis=1
    )


class StripValidity(NamedTuple):
    """Which pixels of whole rows hold imagery, as far as they show it: compressed rows of bits."""

    usable: bytes = b""  # pixels that are imagery or black; empty: all
    black: bytes = b""  # black ones, on which the whole image decides; empty: none
    black_pixels: int = 0


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
        0 if black is None else int(np.count_nonzero(black)),
    )


def decide(strips: Mapping[int, StripValidity], height: int, width: int) -> tuple[Bits | None, int]:
    """Return the valid pixels of an image (None: all), and how many are nodata as they are black.

    ``strips`` are all rows of the image, by the first of each.
    """
    usable = {top: one.usable for top, one in strips.items() if one.usable}
    undecided = {top: one.black for top, one in strips.items() if one.black}
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
