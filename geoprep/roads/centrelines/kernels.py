"""Compiled loops over pixels: thinning, removal of the insides of wide areas, mosaics.

scikit-image's thinning scans the whole raster in every round, and there are as many rounds as the
widest patch is deep. Here 64 pixels are examined at once, and again only after neighbours changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled


def thinned(road: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return roads thinned to one pixel's width, as `skimage.morphology.thin` does.

    There is no road outside the array. Source: Guo and Hall (1989), "Parallel thinning with
    two-subiteration algorithms", the first algorithm.
    """
    height, width = road.shape
    packed = np.packbits(road, axis=1, bitorder="little")
    words = np.zeros((height + 2, (width + 63) // 64 + 2), "<u8")  # a rim without roads
    places = words.view(np.uint8)[1:-1, 8 : 8 + packed.shape[1]]
    places[:] = packed
    _thin(words)
    lines = np.unpackbits(places, axis=1, count=width, bitorder="little")
    return lines.view(np.bool_)


@compiled
def _thin(words: NDArray[np.uint64]) -> None:
    """Thin roads in place: `thinned` for 64 pixels of a row at a time."""
    width = words.shape[1]
    flat = words.reshape(-1)
    one, last = np.uint64(1), np.uint64(63)
    changed = np.flatnonzero(flat)  # with neighbours of changes in this pass, and in the one before
    before = changed[:0]
    is_listed = np.zeros(len(flat), np.bool_)
    second = False
    while True:
        place = np.empty(len(changed) + len(before), np.int64)
        gone = np.empty(len(place), np.uint64)
        count = 0
        for part in (changed, before):
            for at in part:
                here, above, below = flat[at], flat[at - width], flat[at + width]
                if here == 0:
                    continue
                w = here << one | flat[at - 1] >> last
                e = here >> one | flat[at + 1] << last
                nw = above << one | flat[at - width - 1] >> last
                ne = above >> one | flat[at - width + 1] << last
                sw = below << one | flat[at + width - 1] >> last
                se = below >> one | flat[at + width + 1] << last
                n, s = above, below
                # Exactly one of these begins a stretch of road around the pixel.
                a, b, c, d = ~n & (ne | e), ~e & (se | s), ~s & (sw | w), ~w & (nw | n)
                crossing = (a ^ b ^ c ^ d) & ~(a & b | c & d)
                # Of two ways to pair the neighbours, the lesser number of pairs is 2 or 3.
                a, b, c, d = nw | n, ne | e, se | s, sw | w
                some, every = (a | b) & (c | d) | a & b | c & d, a & b & c & d
                a, b, c, d = n | ne, e | se, s | sw, w | nw
                some &= (a | b) & (c | d) | a & b | c & d
                every &= a & b & c & d
                kept = (s | sw | ~nw) & w if second else (n | ne | ~se) & e
                removed = here & crossing & some & ~every & ~kept
                if removed != 0:
                    place[count], gone[count] = at, removed
                    count += 1
        if count == 0 and len(changed) == 0:
            return
        touched = np.empty(9 * count, np.int64)
        listed = 0
        for k in range(count):
            flat[place[k]] &= ~gone[k]
            left = -1 if gone[k] & one else 0
            right = 1 if gone[k] >> last else 0
            for row in (-width, 0, width):
                for near in range(place[k] + row + left, place[k] + row + right + 1):
                    if not is_listed[near] and flat[near] != 0:
                        is_listed[near] = True
                        touched[listed] = near
                        listed += 1
        before, changed = changed, touched[:listed].copy()
        is_listed[changed] = False
        second = not second


@compiled
def keep_shallow(road: NDArray[np.uint8], depth: int) -> None:
    """Remove, in place, road pixels more than ``depth`` steps away from the background.

    Steps run along rows and columns. There is no background outside the array.
    """
    height, width = road.shape
    far = np.uint16(min(depth + 1, 65535))
    steps = np.empty((height, width), np.uint16)
    for y in range(height):
        for x in range(width):
            least = far if road[y, x] != 0 else np.uint16(0)
            if least != 0:
                if y > 0 and steps[y - 1, x] < least:
                    least = min(least, np.uint16(steps[y - 1, x] + 1))
                if x > 0 and steps[y, x - 1] < least:
                    least = min(least, np.uint16(steps[y, x - 1] + 1))
            steps[y, x] = least
    for y in range(height - 1, -1, -1):
        for x in range(width - 1, -1, -1):
            least = steps[y, x]
            if least != 0:
                if y + 1 < height and steps[y + 1, x] < least:
                    least = min(least, np.uint16(steps[y + 1, x] + 1))
                if x + 1 < width and steps[y, x + 1] < least:
                    least = min(least, np.uint16(steps[y, x + 1] + 1))
                steps[y, x] = least
                if least > depth:
                    road[y, x] = 0


@compiled
def put_deepest(
    values: NDArray[Any],
    out: NDArray[Any],
    depth: NDArray[Any],
    at: tuple[int, int],
    start: tuple[int, int],
    size: tuple[int, int],
    rim: int,
    nodata: float,
) -> None:
    """Put the pixels of a raster into a window where they are deeper than those already there.

    The depth of a pixel is its distance to the raster's border, at most the rim. Pixels without
    data have -1: they count less than pixels with data, more than those outside, which have -2 and
    less.
    """
    height, width = values.shape
    for i in range(height):
        row = start[0] + i
        down, line = min(row, size[0] - 1 - row, rim), values[i]
        deep = depth[at[0] + i, at[1] : at[1] + width]
        found = out[at[0] + i, at[1] : at[1] + width]
        # No branches, so that the compiler can vectorise: three times as fast.
        for j in range(width):
            column, value = start[1] + j, line[j]
            inside = min(down, column, size[1] - 1 - column)
            known = inside if (value == value) & (value != nodata) else -1
            mine = inside - 1 if inside < 0 else known
            deeper = mine > deep[j]
            deep[j] = mine if deeper else deep[j]
            found[j] = value if deeper else found[j]
