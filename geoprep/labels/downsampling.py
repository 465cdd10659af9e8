"""Downsample label bytes by majority."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled
from geoprep.speed import BACKGROUND, NODATA


def majority(
    codes: NDArray[np.uint8],
    ys: NDArray[np.float64],
    xs: NDArray[np.float64],
    out: NDArray[np.uint8],
    *,
    roads: bool,
) -> None:
    """Write the majority of the labelled bytes under every output pixel; nodata if there are none.

    The most frequent class is taken, the first of equally frequent ones. With ``roads`` (bytes are
    speeds) a pixel is road if at least half of the labelled pixels under it are, and gets the most
    frequent of their speeds, the highest of equally frequent ones. An output pixel smaller than the
    input's gets the byte of the pixel that contains its centre. ``ys`` and ``xs`` are the edges of
    output pixels in pixels of ``codes``.
    """
    tops, bottoms = _ranges(ys, codes.shape[0])
    lefts, rights = _ranges(xs, codes.shape[1])
    wanted = out[: len(tops), : len(lefts)]
    if (bottoms - tops == 1).all() and (rights - lefts == 1).all():
        wanted[...] = codes[np.ix_(tops, lefts)]
    else:
        _majority(codes, tops, bottoms, lefts, rights, roads, wanted)


def _ranges(
    edges: NDArray[np.float64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """Return, per pair of edges, the first pixel with its centre between them, and the last + 1."""
    first = np.ceil(edges[:-1] - 0.5).astype(np.int64)
    last = np.ceil(edges[1:] - 0.5).astype(np.int64)
    narrow = last <= first
    first[narrow] = np.floor((edges[:-1] + edges[1:])[narrow] / 2).astype(np.int64)
    first = np.clip(first, 0, length - 1)
    return first, np.clip(np.maximum(last, first + 1), 1, length)


@compiled
def _majority(
    codes: NDArray[np.uint8],
    tops: NDArray[np.int64],
    bottoms: NDArray[np.int64],
    lefts: NDArray[np.int64],
    rights: NDArray[np.int64],
    roads: bool,
    out: NDArray[np.uint8],
) -> None:
    counts = np.zeros(256, np.int64)
    for i in range(len(tops)):
        for j in range(len(lefts)):
            known = background = highest = 0
            best = NODATA
            for y in range(tops[i], bottoms[i]):
                for x in range(lefts[j], rights[j]):
                    code = codes[y, x]
                    if code == NODATA:
                        continue
                    known += 1
                    if roads and code == BACKGROUND:
                        background += 1
                        continue
                    counts[code] += 1
                    times = counts[code]
                    if times > highest or (times == highest and (code > best) == roads):
                        highest, best = times, code
            out[i, j] = BACKGROUND if 2 * background > known else best
            for y in range(tops[i], bottoms[i]):
                for x in range(lefts[j], rights[j]):
                    counts[codes[y, x]] = 0
