"""The windows of an image: positions, and weights at every pixel."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.errors import UsageError
from training.model.unet import STRIDE
from training.prediction.area import Polygons

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_WORTH_ANOTHER_SIDE = 0.97
"""Windows get another side if that saves 3 % of the pixels: each side is compiled separately."""

_LARGEST_STRETCH = 1.25
BESIDE = 2
"""Pixels around an area that count: those that are interpolated in it, and one more."""
_WHOLE = 1.3
"""Side of a window that covers an image alone, over the usual side: chips of SpaceNet have 1300
pixels. Of a larger image, windows of that side would leave threads without work at its end."""


@dataclass(frozen=True)
class Axis:
    """Windows along one axis of the model's grid; they fade in and out over the overlap."""

    length: int  # of the image
    side: int  # of every window, a multiple of 32; longer than an image that is smaller
    starts: tuple[int, ...]  # ascending, evenly spread; the last window ends with the image
    overlap: int  # neighbours share at least as many pixels

    @property
    def covered(self) -> int:
        """Pixels under the windows: the length, or one side if the image is smaller."""
        return max(self.length, self.starts[-1] + self.side)

    def finished(self, index: int) -> int:
        """Return the number of leading pixels that no window after this one touches."""
        return self.starts[index + 1] if index + 1 < len(self.starts) else self.length

    def first_touching(self, pixel: int) -> int:
        """Return the first window that ends after a pixel; the number of windows if none does."""
        count = len(self.starts)
        return next((i for i, s in enumerate(self.starts) if s + self.side > pixel), count)

    @cached_property
    def weights(self) -> Floats:
        """Return float32 (window, pixel of it); they sum to one at every pixel of the image.

        A raised cosine over the overlap, so that a window weighs least at its edge, where
        it has least context, divided by the sum over all windows.
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
    """The windows over an image, and the number of windows per batch."""

    rows: Axis
    columns: Axis
    batch: int
    needed: NDArray[np.bool_] | None = field(
        default=None, compare=False
    )  # (row, column) for an area

    @property
    def shape(self) -> tuple[int, int, int]:
        """Windows, rows and columns of a batch: the shape that a model is compiled for."""
        return self.batch, self.rows.side, self.columns.side

    @property
    def window_pixels(self) -> int:
        """Pixels of one window."""
        return self.rows.side * self.columns.side

    @property
    def pixels(self) -> int:
        """Pixels of all windows together."""
        return self.pixels_before(len(self.rows.starts), 0)

    def pixels_before(self, row: int, column: int) -> int:
        """Return the pixels of all windows before one, row by row."""
        count = row * len(self.columns.starts) + column
        if self.needed is not None:
            count = int(np.count_nonzero(self.needed.ravel()[:count]))
        return count * self.window_pixels

    def parts(self, row: int) -> list[tuple[int, int]]:
        """Return the columns under the windows of a row, from the first to the last one."""
        length, side = self.columns.length, self.columns.side
        if self.needed is None:
            return [(0, length)]
        parts: list[tuple[int, int]] = []
        for number in np.flatnonzero(self.needed[row]):
            start = self.columns.starts[number]
            if parts and start <= parts[-1][1]:
                start = parts.pop()[0]
            parts.append((start, min(self.columns.starts[number] + side, length)))
        return parts

    def around(self, area: Polygons, scales: tuple[float, float]) -> WindowGrid:
        """Return the grid with the windows that an area needs, in pixels of the image."""
        (y, x), side = scales, (self.rows.side, self.columns.side)
        tops, lefts = (np.array(starts) for starts in (self.rows.starts, self.columns.starts))
        top, left = np.meshgrid(tops - BESIDE, lefts - BESIDE, indexing="ij")
        more = 2 * BESIDE
        boxes = shapely.box(
            left * x, top * y, (left + side[1] + more) * x, (top + side[0] + more) * y
        )
        found = shapely.STRtree(boxes.ravel()).query(
            np.array(area, object), predicate="intersects"
        )[1]
        needed = np.zeros(boxes.size, bool)
        needed[found] = True
        return replace(self, needed=needed.reshape(boxes.shape))


def window_grid(height: int, width: int, window: int, overlap: int, batch: int) -> WindowGrid:
    """Return the windows over an image; smaller windows get more per batch."""
    rows, columns = plan_axis(height, window, overlap), plan_axis(width, window, overlap)
    count = len(columns.starts)
    most = min(count, max(1, round(batch * window**2 / (rows.side * columns.side))))
    # A batch never continues in the next row, so that a row that is repeated has the same batches.
    # Of the sizes down to half of the largest, one leaves fewest places empty at the end of a row.
    sizes = range(most, most // 2, -1)
    return WindowGrid(rows, columns, min(sizes, key=lambda size: -count % size))


def plan_axis(length: int, window: int, overlap: int) -> Axis:
    """Return the windows along an axis.

    1. An image that is smaller than the window, or little larger: one that just covers it.
    2. Otherwise windows of the requested side,
    3. unless another side, for as many windows or one less, covers it with clearly fewer pixels.
    """
    if (covering := _rounded_up(length)) <= window * _WHOLE:  # 1
        return Axis(length, covering, (0,), overlap)
    count = math.ceil((length - overlap) / (window - overlap))
    usual = best = (count, window)  # 2
    for fewer in {count, count - 1}:  # 3; the order of the set decides between equal ones
        side = _rounded_up(math.ceil((length + (fewer - 1) * overlap) / fewer))
        if side <= window * _LARGEST_STRETCH and side < length:
            best = min(best, (fewer, side), key=math.prod)
    if math.prod(best) > _WORTH_ANOTHER_SIDE * math.prod(usual):
        best = usual
    count, side = best
    step = (length - side) / max(count - 1, 1)
    return Axis(length, side, tuple(round(i * step) for i in range(count)), overlap)


def check_window(window: int, overlap: int) -> None:
    """Raise UsageError if the side or the overlap of the windows is invalid."""
    if window < STRIDE or window % STRIDE:
        nearest = max(1, round(window / STRIDE)) * STRIDE
        raise UsageError("window", f"{window} is not a multiple of {STRIDE}: use {nearest}")
    if not 0 <= overlap <= window // 2:
        raise UsageError(
            "overlap", f"{overlap} is out of range: use 0 to half the window, {window // 2}"
        )


def _rounded_up(length: int) -> int:
    return math.ceil(length / STRIDE) * STRIDE
