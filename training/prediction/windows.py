"""Where windows lie along an axis of an image, and how much each counts at every pixel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError

STRIDE = 32
"""Sides of windows are a multiple of this: the encoder halves five times."""

WORTH_FITTING = 0.97
"""Windows leave the usual side where that saves 3 % of the pixels: one side, one compilation."""

_LARGEST_STRETCH = 1.25


@dataclass(frozen=True)
class Axis:
    """Windows along one axis.

    Attributes
    ----------
    length
        Of the image, in pixels of the network's grid.
    side
        Of every window, a multiple of 32; it reaches past an image that is smaller.
    starts
        Where they begin, ascending, spread evenly; the last ends where the image does.
    overlap
        Pixels over which a window fades in and out: neighbours share at least these.
    """

    length: int
    side: int
    starts: tuple[int, ...]
    overlap: int

    @property
    def covered(self) -> int:
        """Pixels that the windows reach over: the length, or more where it is small."""
        return max(self.length, self.starts[-1] + self.side)

    def finished(self, index: int) -> int:
        """Return how many pixels no window after this one touches."""
        return self.starts[index + 1] if index + 1 < len(self.starts) else self.length

    def alone(self, index: int) -> tuple[int, int]:
        """Return the range of a window's pixels that no other one covers, from its own start.

        An empty one begins and ends at the window's side. One that is not ends where the next
        window begins.
        """
        start, after = self.starts[index], index + 1
        low = self.starts[index - 1] + self.side - start if index else 0
        high = self.starts[after] - start if after < len(self.starts) else self.length - start
        return (low, high) if low < high else (self.side, self.side)

    def shared(self) -> list[slice]:
        """Return the ranges of the image's pixels that two windows cover, or more."""
        edges = [0]
        for i, start in enumerate(self.starts):
            low, high = self.alone(i)
            if low < high:
                edges += [start + low, start + high]
        edges.append(self.length)
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [slice(low, high) for low, high in pairs if low < high]

    def first_touching(self, pixel: int) -> int:
        """Return the first window that reaches over a pixel or past it."""
        return next((i for i, s in enumerate(self.starts) if s + self.side > pixel), 0)

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """Return float32 (window, pixel of it): over every pixel of the image they sum to one.

        A raised cosine over the overlap, so that a window counts least where it sees least of its
        surroundings, divided by the sum of all windows there.
        """
        ramp = max(self.overlap, 1)
        inside = np.minimum(np.arange(self.side), np.arange(self.side)[::-1]) + 0.5
        profile = np.sin(np.pi / 2 * np.minimum(inside / ramp, 1.0)) ** 2
        total = np.zeros(self.covered)
        for start in self.starts:
            total[start : start + self.side] += profile
        shares = [profile / total[start : start + self.side] for start in self.starts]
        return np.stack(shares).astype(np.float32)


@dataclass(frozen=True)
class WindowGrid:
    """How an image is cut into windows and batches.

    Attributes
    ----------
    rows, columns
        The windows along y and x.
    batch
        Windows per batch.
    """

    rows: Axis
    columns: Axis
    batch: int

    @classmethod
    def over(cls, height: int, width: int, window: int, overlap: int, batch: int) -> WindowGrid:
        """Return the windows over an image, see `plan_axis`; ``batch`` is of windows that size."""
        rows, columns = plan_axis(height, window, overlap), plan_axis(width, window, overlap)
        # As many pixels per batch, whatever the windows of a small image.
        fitting = max(1, round(batch * window**2 / (rows.side * columns.side)))
        return cls(rows, columns, plan_batch(len(columns.starts), fitting))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Windows, rows and columns of a batch: what a network is compiled for."""
        return self.batch, self.rows.side, self.columns.side

    @property
    def window_pixels(self) -> int:
        """Pixels of one window."""
        return self.rows.side * self.columns.side

    @property
    def pixels(self) -> int:
        """Pixels of all windows together."""
        return len(self.rows.starts) * len(self.columns.starts) * self.window_pixels


def plan_axis(length: int, window: int, overlap: int) -> Axis:
    """Return the windows along an axis.

    An image smaller than the window gets one that just holds it. Otherwise the windows have the
    usual side, unless another one covers the image with noticeably fewer pixels.

    Parameters
    ----------
    length
        Of the image.
    window
        The usual side.
    overlap
        Pixels that neighbours share at least.

    Raises
    ------
    UsageError
        The window is no multiple of 32, or the overlap is more than half of it.
    """
    check_window(window, overlap)
    if length <= window:
        return Axis(length, _rounded_up(length), (0,), overlap)
    count = math.ceil((length - overlap) / (window - overlap))
    options = [(count, window)]
    for n in {count, max(1, count - 1)}:
        side = _rounded_up(math.ceil((length + (n - 1) * overlap) / n))
        if side <= window * _LARGEST_STRETCH and side < length:
            options.append((n, side))
    best = min(options, key=lambda option: option[0] * option[1])
    if best[0] * best[1] > WORTH_FITTING * count * window:
        best = options[0]
    n, side = best
    step = (length - side) / max(n - 1, 1)
    return Axis(length, side, tuple(round(i * step) for i in range(n)), overlap)


def check_window(window: int, overlap: int) -> None:
    """Raise UsageError where windows of this side and overlap cannot be laid."""
    if window < STRIDE or window % STRIDE:
        nearest = max(1, round(window / STRIDE)) * STRIDE
        raise UsageError(f"--window {window} is no multiple of {STRIDE}: use {nearest}")
    if not 0 <= overlap <= window // 2:
        raise UsageError(
            f"--overlap {overlap} must be at least 0 and at most half the window, {window // 2}"
        )


def plan_batch(windows: int, preferred: int) -> int:
    """Return how many windows go through the network at a time, few places in a row left empty.

    Parameters
    ----------
    windows
        In a row: batches do not reach into the next one, so that they are the same whenever a
        row is done again.
    preferred
        The size to stay near, and the largest unless another wastes less than a third of it.
    """
    if windows <= preferred:
        return max(1, windows)

    def waste(size: int) -> float:
        return -windows % size / windows

    sizes = range(max(1, preferred // 2), preferred + max(1, preferred // 4) + 1)
    best = min(sizes, key=lambda size: (waste(size), abs(size - preferred)))
    return best if waste(best) + 0.03 < waste(preferred) else preferred


def mirrored(length: int, until: int) -> NDArray[np.intp]:
    """Return which pixels stand in for those from ``length`` to ``until``, to and fro.

    Examples
    --------
    >>> mirrored(3, 8).tolist()
    [1, 0, 1, 2, 1]
    """
    if length == 1:
        return np.zeros(until - 1, np.intp)
    period = 2 * (length - 1)
    place = np.arange(length, until) % period
    found: NDArray[np.intp] = np.where(place < length, place, period - place)
    return found


def _rounded_up(length: int) -> int:
    return math.ceil(length / STRIDE) * STRIDE
