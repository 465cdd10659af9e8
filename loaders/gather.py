"""Crops and symmetries at memory speed: a pixel is one item, whatever its number of bands.

NumPy then moves 1, 2, 4 or 8 bytes at a time and releases the lock while it does, so plain threads
scale. A window whose pixels change places within a row is first copied, row by row, into a scratch
that stays in the cache: memory is read forwards, and only the cache is read sideways. Measured
against compiled loops (numba, blocked) this is as fast or faster for 3 and for 8 bands, with
nothing to compile.

Two cases have a way of their own. Items of 3 bytes, which NumPy moves by a call each, are mirrored
band by band, in half the time; transposed that gains nothing, since three bands are three walks
across the rows. And whole tiles are copied with as little Python as can be, since threads wait for
each other in it, and by a ufunc: NumPy's own copy is ``memcpy``, for such lengths ``rep movsb``,
which loses a quarter of its speed on some processors (AMD Zen) where one end begins on a cache line
and the other does not.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.sampling import FLIP_X, FLIP_Y, TRANSPOSE, Windows

_SCRATCH_PAD = 17
"""Extra items in a row of scratch: a power of two as its length would crowd one cache set."""

_RGB = 3
"""Bytes of an item that is mirrored band by band."""

_NOTHING = np.uint8(0)


class _Scratch(threading.local):
    """What each thread keeps: a scratch for every (side, dtype) it has met."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, np.dtype[Any]], NDArray[Any]] = {}


_scratches = _Scratch()


def as_items(image: NDArray[np.uint8]) -> NDArray[Any]:
    """Return uint8 (..., band), C-contiguous, as one item per pixel: shape (...)."""
    bands = image.shape[-1]
    dtype = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}.get(bands, f"V{bands}")
    return image.view(dtype)[..., 0]


def _scratch(side: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return this thread's (side, side) scratch."""
    found = _scratches.found
    key = (side, dtype)
    if key not in found:
        found[key] = np.zeros((side, side + _SCRATCH_PAD), dtype)[:, :side]
    return found[key]


def copy_window(tile: NDArray[Any], y: int, x: int, op: int, out: NDArray[Any]) -> None:
    """Copy a square window of one tile, under a symmetry.

    Parameters
    ----------
    tile
        Items (side, side).
    y, x
        Upper left corner of the window.
    op
        Symmetry 0..7, see `loaders.sampling`.
    out
        Items (crop, crop) of the same dtype; written.
    """
    side = len(out)
    view = tile[y : y + side, x : x + side]
    if not op and view.flags.c_contiguous and out.flags.c_contiguous:
        _copy_bytes(_bytes(view), _bytes(out))
    elif not op & (TRANSPOSE | FLIP_X):
        out[...] = symmetry(view, op)
    else:
        scratch = _scratch(side, tile.dtype)
        scratch[...] = view
        source = symmetry(scratch, op)
        if tile.dtype.itemsize == _RGB and not op & TRANSPOSE:
            _copy_by_band(source, out)
        else:
            out[...] = source


def _bytes(items: NDArray[Any], rows: int = 1) -> NDArray[np.uint8]:
    """Return contiguous items as so many rows of bytes, which are theirs and no copy."""
    flat: NDArray[np.uint8] = items.reshape(rows, -1).view(np.uint8)
    return flat


def _copy_bytes(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> None:
    np.bitwise_or(source, _NOTHING, out=target)


def _copy_by_band(items: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy items of a few bytes, in any order of rows and columns, a byte of each at a time."""
    for band in range(out.dtype.itemsize):
        out.getfield(np.uint8, band)[...] = items.getfield(np.uint8, band)


def gather(tiles: NDArray[Any], windows: Windows, out: NDArray[Any]) -> None:
    """Copy the windows of many tiles.

    Parameters
    ----------
    tiles
        Items (tile, side, side), from `as_items`; or a speed mask as it is.
    windows
        Which, one row per sample.
    out
        Items (n, crop, crop); written.
    """
    whole = out.shape[1:] == tiles.shape[1:] and not windows.op.any()
    if whole and tiles.flags.c_contiguous and out.flags.c_contiguous:
        sources, targets = (_bytes(array, rows=len(array)) for array in (tiles, out))
        for tile, target in zip(windows.tile.tolist(), targets, strict=True):
            _copy_bytes(sources[tile], target)
        return
    rows = zip(*(a.tolist() for a in (windows.tile, windows.y, windows.x, windows.op)), strict=True)
    for i, (tile, y, x, op) in enumerate(rows):
        copy_window(tiles[tile], y, x, op, out[i])


def symmetry(array: NDArray[Any], op: int) -> NDArray[Any]:
    """Return a view of (side, side, ...) under a symmetry 0..7."""
    if op & TRANSPOSE:
        array = array.swapaxes(0, 1)
    if op & FLIP_Y:
        array = array[::-1]
    if op & FLIP_X:
        array = array[:, ::-1]
    return array


def window_affine(
    affine: tuple[float, ...], y: int, x: int, op: int, side: int
) -> tuple[float, float, float, float, float, float]:
    """Return the affine of a window under a symmetry, from that of its tile.

    Parameters
    ----------
    affine
        ``a b c d e f`` of rasterio, pixel corner (column, row) of the tile -> CRS.
    y, x, op
        The window.
    side
        Its side in pixels.

    Returns
    -------
    tuple of float
        ``a b c d e f``, pixel corner of the window as it was handed out -> CRS.
    """
    a, b, c, d, e, f = affine
    # Output corner (j, i) -> window corner: undo the mirror, the turn, the transposition.
    j0, dj = (side, -1) if op & FLIP_X else (0, 1)
    i0, di = (side, -1) if op & FLIP_Y else (0, 1)
    # u = column and v = row in the window as functions of j and i.
    if op & TRANSPOSE:
        uj, ui, u0, vj, vi, v0 = 0, di, i0, dj, 0, j0
    else:
        uj, ui, u0, vj, vi, v0 = dj, 0, j0, 0, di, i0
    u0, v0 = u0 + x, v0 + y
    return (
        a * uj + b * vj,
        a * ui + b * vi,
        a * u0 + b * v0 + c,
        d * uj + e * vj,
        d * ui + e * vi,
        d * u0 + e * v0 + f,
    )
