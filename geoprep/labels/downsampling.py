"""Downsample label bytes by majority."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled
from geoprep.speed import BACKGROUND, NODATA


def majority(
    codes: NDArray[np.uint8],
    ys: NDArray[np.float64],
    xs: NDArray[np.float64],
    out: NDArray[np.uint8],
) -> None:
    """Write the majority of the label bytes under every output pixel.

    A pixel is road if at least half of the labelled pixels under it are. It gets the most frequent
    of their speeds, the higher of two equally frequent ones. It is nodata if none is labelled. An
    output pixel smaller than the input's gets the byte of the pixel that contains its centre.

    Parameters
    ----------
    codes
        uint8 (y, x), label bytes.
    ys, xs
        Edges of output pixels in pixels of ``codes``, from `geoprep.imagery.pixel_edges`.
    out
        uint8 (y, x), at least as large as the output; its upper left is written.
    """
    _reduce(codes, ys, xs, out, _majority)


def _reduce(
    codes: NDArray[np.uint8],
    ys: NDArray[np.float64],
    xs: NDArray[np.float64],
    out: NDArray[np.uint8],
    rule: Callable[..., None],
) -> None:
    """Write what a rule makes of the bytes under every output pixel, or the only one of them."""
    tops, bottoms = _ranges(ys, codes.shape[0])
    lefts, rights = _ranges(xs, codes.shape[1])
    wanted = out[: len(tops), : len(lefts)]
    if (bottoms - tops == 1).all() and (rights - lefts == 1).all():
        if (np.diff(tops) == 1).all() and (np.diff(lefts) == 1).all():  # the same pixels
            wanted[...] = codes[tops[0] : bottoms[-1], lefts[0] : rights[-1]]
        else:
            wanted[...] = codes[np.ix_(tops, lefts)]
    else:
        rule(codes, tops, bottoms, lefts, rights, wanted)


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


def class_majority(
    codes: NDArray[np.uint8],
    ys: NDArray[np.float64],
    xs: NDArray[np.float64],
    out: NDArray[np.uint8],
) -> None:
    """Write the most frequent class under every output pixel, among those that are labelled.

    The first of several equally frequent classes is taken. Parameters are those of `majority`.
    """
    _reduce(codes, ys, xs, out, _class_majority)


@compiled
def _is_uniform(
    codes: NDArray[np.uint8], code: int, top: int, bottom: int, left: int, right: int
) -> bool:
    for y in range(top, bottom):
        for x in range(left, right):
            if codes[y, x] != code:
                return False
    return True


@compiled
def _class_majority(
    codes: NDArray[np.uint8],
    tops: NDArray[np.int64],
    bottoms: NDArray[np.int64],
    lefts: NDArray[np.int64],
    rights: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    counts = np.zeros(256, np.int64)
    for i in range(len(tops)):
        for j in range(len(lefts)):
            first = codes[tops[i], lefts[j]]
            if _is_uniform(codes, first, tops[i], bottoms[i], lefts[j], rights[j]):
                out[i, j] = first
                continue
            highest = 0
            best = NODATA
            for y in range(tops[i], bottoms[i]):
                for x in range(lefts[j], rights[j]):
                    code = codes[y, x]
                    counts[code] += 1
                    times = counts[code]
                    if code != NODATA and (times > highest or (times == highest and code < best)):
                        highest, best = times, code
            out[i, j] = best
            for y in range(tops[i], bottoms[i]):
                for x in range(lefts[j], rights[j]):
                    counts[codes[y, x]] = 0


@compiled
def _majority(
    codes: NDArray[np.uint8],
    tops: NDArray[np.int64],
    bottoms: NDArray[np.int64],
    lefts: NDArray[np.int64],
    rights: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    counts = np.zeros(256, np.int64)
    for i in range(len(tops)):
        for j in range(len(lefts)):
            known = roads = 0
            highest = best = 0
            for y in range(tops[i], bottoms[i]):
                for x in range(lefts[j], rights[j]):
                    code = codes[y, x]
                    if code == NODATA:
                        continue
                    known += 1
                    if code != BACKGROUND:
                        roads += 1
                        counts[code] += 1
                        times = counts[code]
                        if times > highest or (times == highest and code > best):
                            highest, best = times, code
            if known == 0:
                out[i, j] = NODATA
            elif 2 * roads >= known:
                out[i, j] = best
            else:
                out[i, j] = BACKGROUND
            if roads > 0:
                for y in range(tops[i], bottoms[i]):
                    for x in range(lefts[j], rights[j]):
                        counts[codes[y, x]] = 0
