"""Cut lines that cross themselves so often that buffering them whole would take minutes.

GEOS needs some 30 us for every pair of segments of one line that are close together: a line through
2,000 random points of one chip takes 32 s, one of 10,000 does not finish. Cut into pieces, the same
area takes a tenth of a second.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.compiled import compiled

MOST_PAIRS: Final = 50_000
"""Close pairs of segments that all lines of a scene may have together: two seconds of GEOS."""

_TANGLE: Final = 64
"""Close pairs that every road may have: roundabouts, hairpins, cloverleaves."""

_PIECE_SEGMENTS: Final = 16


def untangled(
    lines: NDArray[np.object_], buffer_m: NDArray[np.float64]
) -> tuple[NDArray[np.object_], NDArray[np.intp], NDArray[np.bool_]]:
    """Return lines, in metres, that can be buffered quickly: tangles are cut into pieces.

    Also the index of the line that each is part of, and whether that was cut.
    """
    xy, line = shapely.get_coordinates(lines, return_index=True)
    first = np.searchsorted(line, np.arange(len(lines) + 1))
    pairs = _near_pairs(xy, first, buffer_m, MOST_PAIRS + 1)
    cut = (pairs > _TANGLE) & (np.cumsum(pairs) > MOST_PAIRS)
    whole = np.flatnonzero(~cut)
    pieces, owner = [lines[whole]], [whole]
    for index in np.flatnonzero(cut).tolist():
        points = xy[first[index] : first[index + 1]]
        starts = range(0, len(points) - 1, _PIECE_SEGMENTS)
        pieces.append(
            np.array([shapely.LineString(points[s : s + _PIECE_SEGMENTS + 1]) for s in starts])
        )
        owner.append(np.full(len(starts), index))
    owners = np.concatenate(owner)
    return np.concatenate(pieces), owners, cut[owners]


@compiled
def _near_pairs(
    xy: NDArray[np.float64], first: NDArray[np.int64], buffer_m: NDArray[np.float64], enough: int
) -> NDArray[np.int64]:
    """Return per line the number of pairs of segments that are close but not consecutive.

    Close: bounding boxes at most twice the buffer apart; consecutive: less than that along the
    line. Counting stops at ``enough``.
    """
    pairs = np.zeros(first.shape[0] - 1, np.int64)
    for line in range(pairs.shape[0]):
        points = xy[first[line] : first[line + 1]]
        near, count = 2 * buffer_m[line], points.shape[0] - 1
        low, high = np.empty((count, 2)), np.empty((count, 2))
        walked = np.zeros(count + 1)
        for i in range(count):
            for k in range(2):
                low[i, k] = min(points[i, k], points[i + 1, k])
                high[i, k] = max(points[i, k], points[i + 1, k]) + near
            step = points[i + 1] - points[i]
            walked[i + 1] = walked[i] + np.hypot(step[0], step[1])
        if walked[count] < 2 * near:
            continue
        x, y = high[:, 0].max() - low[:, 0].min(), high[:, 1].max() - low[:, 1].min()
        along = 0 if x > y else 1
        across = 1 - along
        order = np.argsort(low[:, along])
        for a in range(count):
            i = order[a]
            for b in range(a + 1, count):
                j = order[b]
                if low[j, along] > high[i, along]:
                    break
                if low[j, across] > high[i, across] or low[i, across] > high[j, across]:
                    continue
                if walked[max(i, j)] - walked[min(i, j) + 1] >= 2 * near:
                    pairs[line] += 1
            if pairs[line] >= enough:
                break
    return pairs
