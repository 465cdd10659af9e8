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
from collections.abc import Mapping, Sequence
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
Ints = NDArray[np.int64]

_STRIP_PIXELS: Final = 64 << 20
"""Pixels whose connected components are found at once."""


def edge_black(black: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the black pixels, (y, x), that are connected with the edge of the image."""
    bits = np.packbits(black, axis=1)
    clear_inner(bits, black.shape[1])
    return np.unpackbits(bits, axis=1, count=black.shape[1]).view(np.bool_)


def clear_inner(black: Bits, width: int) -> int:
    """Clear the black pixels of an image that are not connected with its edge; return what is left.

    Runs of black in rows are joined to components within strips, and those across strips.
    (Labels of single pixels, as SciPy and scikit-image make them, take 18 times as long.)
    """
    rows, line = max(1, _STRIP_PIXELS // width), width + 1
    strips = [black[top : top + rows] for top in range(0, len(black), rows)]
    firsts, links = [1], []  # of the nodes of a graph, in which 0 is the edge of the image
    upper = lower = _NO_RUNS
    for strip in strips:
        runs = _runs(strip, width)
        start, end, node = runs.start, runs.end, runs.component + firsts[-1]
        last = (len(strip) - 1) * line
        outer = (start % line == 0) | (end % line == width)
        outer |= (strip is strips[0]) & (start < line) | (strip is strips[-1]) & (start >= last)
        links.append((node[outer], np.zeros_like(node[outer])))
        lower = _Runs(start[start < line], end[start < line], node[start < line])
        above, below = _touching(upper, lower.start, lower.end)
        links.append((upper.component[above], lower.component[below]))
        bottom = start >= last
        upper = _Runs(start[bottom] - last, end[bottom] - last, node[bottom])
        firsts.append(firsts[-1] + runs.components)
    joined = _joined(links, firsts[-1])
    left = 0
    for strip, first in zip(strips, firsts, strict=False):
        if len(strips) > 1:  # those of all strips would take memory that grows with the image
            runs = _runs(strip, width)
        length, inner = runs.end - runs.start, joined[runs.component + first] != joined[0]
        left += int(length[~inner].sum())
        start, length = runs.start[inner], length[inner]
        before = np.cumsum(length) - length  # pixels of earlier runs
        pixels = np.repeat(start - start // line - before, length) + np.arange(length.sum())
        image = np.unpackbits(strip, axis=1, count=width)
        image.ravel()[pixels] = 0
        strip[...] = np.packbits(image, axis=1)
    return left


class _Runs(NamedTuple):
    """Runs of black within rows, in order; rows follow each other with one pixel between them."""

    start: Ints
    end: Ints  # pixel after the last one
    component: Ints  # number of the connected component

    @property
    def components(self) -> int:
        """Number of connected components."""
        return int(self.component.max(initial=-1)) + 1


_NO_RUNS: Final = _Runs(*np.zeros((3, 0), np.int64))


def _runs(black: Bits, width: int) -> _Runs:
    padded = np.zeros((len(black), width + 1), np.uint8)
    padded[:, :width] = np.unpackbits(black, axis=1, count=width)
    flat = padded.ravel()
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    if flat[0]:
        changes = np.append(0, changes)
    runs = _Runs(changes[::2], changes[1::2], changes[::2])
    links = _touching(runs, runs.start - width - 1, runs.end - width - 1)
    return runs._replace(component=_joined([links], len(runs.start)))


def _touching(above: _Runs, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the indexes of runs above others, and of those others, by sides or corners."""
    first = np.searchsorted(above.end, start)
    count = np.maximum(np.searchsorted(above.start, end, side="right") - first, 0)
    before = np.cumsum(count) - count
    return np.repeat(first - before, count) + np.arange(count.sum()), np.repeat(
        np.arange(len(start)), count
    )


def _joined(links: Sequence[tuple[Ints, Ints]], nodes: int) -> Ints:
    """Return the number of the connected component of every node of a graph."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    one, other = (np.concatenate(ends) for ends in zip(*links, strict=True))
    graph = coo_array((np.ones(len(one), np.bool_), (one, other)), shape=(nodes, nodes))
    component: Ints = connected_components(graph, directed=False)[1].astype(np.int64)
    return component


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
