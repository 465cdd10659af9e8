"""Compiled loops over pixels: thinning, and removal of the insides of wide areas.

scikit-image's thinning scans the whole raster in every round, and there are as many rounds as the
widest patch is deep. Here only pixels whose neighbours have changed are examined again.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled

_GOING, _QUEUED = 2, 4
"""States of a road pixel while it is thinned: removed after this pass, to be examined again."""


def _passes() -> NDArray[np.uint8]:
    """Return uint8 (256,): the passes in which a pixel is removed, by its neighbours.

    Bit ``i`` of the index is the neighbour ``i`` steps clockwise from the one above. Bit 0 of the
    value: removed in the first pass; bit 1: in the second. Source: Guo and Hall (1989), "Parallel
    thinning with two-subiteration algorithms", the first algorithm.
    """
    code = np.arange(256)
    n, ne, e, se, s, sw, w, nw = ((code >> i & 1).astype(bool) for i in range(8))
    crossings = [~n & (ne | e), ~e & (se | s), ~s & (sw | w), ~w & (nw | n)]
    fours = [nw | n, ne | e, se | s, sw | w], [n | ne, e | se, s | sw, w | nw]
    count = np.minimum(*(np.sum(four, axis=0) for four in fours))
    removable = (np.sum(crossings, axis=0) == 1) & (count >= 2) & (count <= 3)
    first = removable & ~((n | ne | ~se) & e)
    second = removable & ~((s | sw | ~nw) & w)
    passes: NDArray[np.uint8] = (first + 2 * second).astype(np.uint8)
    return passes


PASSES: Final = _passes()


@compiled
def thin(road: NDArray[np.uint8], passes: NDArray[np.uint8]) -> None:
    """Thin roads to one pixel's width, in place, as ``skimage.morphology.thin`` does.

    Parameters
    ----------
    road
        uint8 (y, x), contiguous: 1 on roads, 0 elsewhere, and 0 in all outermost pixels.
    passes
        `PASSES`.
    """
    height, width = road.shape
    flat = road.reshape(-1)
    one, down = np.uintp(1), np.uintp(width)  # unsigned: no negative indices
    recent = np.empty(0, np.uintp)  # neighbours of changes since its last turn in this pass
    changed = np.empty(1024, np.uintp)
    count = 0
    for signed in range(width, height * width - width):
        at = np.uintp(signed)
        if flat[at] != 0 and (
            flat[at - one] == 0
            or flat[at + one] == 0
            or flat[at - down] == 0
            or flat[at + down] == 0
        ):
            if count == len(changed):
                grown = np.empty(2 * count, np.uintp)
                grown[:count] = changed
                changed = grown
            changed[count] = at
            count += 1
    latest = changed[:count].copy()
    second = np.uint8(0)
    while True:
        gone = np.empty(len(latest) + len(recent), np.uintp)
        removed = 0
        for part in (latest, recent):
            for at in part:
                if flat[at] == 1 or flat[at] == _QUEUED:
                    above, below = at - down, at + down
                    code = (
                        np.intp(flat[above] != 0)
                        | np.intp(flat[above + one] != 0) << 1
                        | np.intp(flat[at + one] != 0) << 2
                        | np.intp(flat[below + one] != 0) << 3
                        | np.intp(flat[below] != 0) << 4
                        | np.intp(flat[below - one] != 0) << 5
                        | np.intp(flat[at - one] != 0) << 6
                        | np.intp(flat[above - one] != 0) << 7
                    )
                    if passes[code] >> second & 1:
                        flat[at] = _GOING  # its neighbours still count it in this pass
                        gone[removed] = at
                        removed += 1
        if removed == 0 and len(latest) == 0:
            return
        touched = np.empty(8 * removed, np.uintp)
        count = 0
        for at in latest:
            if flat[at] == _QUEUED:
                flat[at] = 1
        for k in range(removed):
            flat[gone[k]] = 0
        for k in range(removed):
            for row in (gone[k] - down, gone[k], gone[k] + down):
                for at in (row - one, row, row + one):
                    if flat[at] == 1:
                        flat[at] = _QUEUED
                        touched[count] = at
                        count += 1
        recent, latest = latest, touched[:count].copy()
        second = 1 - second


@compiled
def keep_shallow(road: NDArray[np.uint8], depth: int) -> None:
    """Remove, in place, road pixels more than ``depth`` steps away from the background.

    Steps run along rows and columns. There is no background outside the array.

    Parameters
    ----------
    road
        uint8 (y, x): 1 on roads, 0 elsewhere.
    depth
        Largest number of steps that is kept.
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
