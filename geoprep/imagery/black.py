"""Find the black pixels that are nodata in images without alpha, mask and nodata tag.

Black regions that touch the edge of the image, or are large, are nodata; smaller ones are specks:
shadows, roofs or water. The whole image decides, so that all windows and shards agree.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled

LARGE_BLOCK: Final = 4096
"""Connected black pixels (by sides or corners) that are not a speck: 64 x 64, 19 m at 0.3 m."""


def without_specks(valid: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the validity, uint8 (y, x), of a whole image with its black specks valid."""
    if valid.all():
        return valid
    black = np.packbits(valid == 0, axis=1)
    drop_specks(black, valid.shape[1])
    return np.unpackbits(black, axis=1, count=valid.shape[1]) ^ np.uint8(1)


def drop_specks(black: NDArray[np.uint8], width: int) -> int:
    """Clear the specks of a whole image, rows packed by ``numpy.packbits``; return what is left."""
    first = _count_runs(black, width)
    runs = np.empty((first[-1], 2), np.int32)
    _find_runs(black, width, first, runs)
    return int(_clear_specks(black, width, first, runs, LARGE_BLOCK))


@compiled
def _next(row: NDArray[np.uint8], x: int, width: int, wanted: int) -> int:
    """Return the first pixel from x on whose bit is ``wanted``, or the width."""
    skip = 0 if wanted == 1 else 255
    while x < width:
        if x & 7 == 0 and row[x >> 3] == skip:
            x += 8
        elif (row[x >> 3] >> (7 - (x & 7))) & 1 == wanted:
            return x
        else:
            x += 1
    return width


@compiled
def _count_runs(black: NDArray[np.uint8], width: int) -> NDArray[np.int64]:
    """Return the first run of every row and the number of runs, int64 (rows + 1)."""
    first = np.zeros(black.shape[0] + 1, np.int64)
    for y in range(black.shape[0]):
        first[y + 1] = first[y]
        x = _next(black[y], 0, width, 1)
        while x < width:
            first[y + 1] += 1
            x = _next(black[y], _next(black[y], x, width, 0), width, 1)
    return first


@compiled
def _find_runs(
    black: NDArray[np.uint8], width: int, first: NDArray[np.int64], runs: NDArray[np.int32]
) -> None:
    """Write the first pixel of every run, and the last + 1."""
    for y in range(black.shape[0]):
        x = 0
        for i in range(first[y], first[y + 1]):
            start = _next(black[y], x, width, 1)
            x = _next(black[y], start, width, 0)
            runs[i, 0], runs[i, 1] = start, x


@compiled
def _root(parent: NDArray[np.int32], i: int) -> int:
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@compiled
def _clear_specks(
    black: NDArray[np.uint8],
    width: int,
    first: NDArray[np.int64],
    runs: NDArray[np.int32],
    large: int,
) -> int:
    """Connect runs that touch, and clear those whose region is neither large nor at an edge."""
    height = black.shape[0]
    parent = np.arange(runs.shape[0]).astype(np.int32)
    for y in range(1, height):
        i, j = first[y - 1], first[y]
        while i < first[y] and j < first[y + 1]:
            if runs[i, 0] <= runs[j, 1] and runs[j, 0] <= runs[i, 1]:
                a, b = _root(parent, i), _root(parent, j)
                parent[max(a, b)] = min(a, b)
            if runs[i, 1] < runs[j, 1]:
                i += 1
            else:
                j += 1
    size = np.zeros(runs.shape[0], np.int64)
    for y in range(height):
        for i in range(first[y], first[y + 1]):
            outer = y == 0 or y == height - 1 or runs[i, 0] == 0 or runs[i, 1] == width
            size[_root(parent, i)] += large if outer else runs[i, 1] - runs[i, 0]
    kept = 0
    for y in range(height):
        for i in range(first[y], first[y + 1]):
            if size[_root(parent, i)] >= large:
                kept += runs[i, 1] - runs[i, 0]
                continue
            for x in range(runs[i, 0], runs[i, 1]):
                black[y, x >> 3] &= ~np.uint8(128 >> (x & 7))
    return kept
