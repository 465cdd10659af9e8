"""Rows of the model's grid to rows of the image's grid, where the image was resampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from geoprep.compiled import compiled
from training.prediction.images import ImageSource
from training.prediction.window_rows import Bytes, WindowRow
from training.prediction.windows import Doubles, Floats
from training.runners.decoding import Part

Words = NDArray[np.uint16]
Convert = Callable[..., Any]
"""Writes or returns the bands of probabilities; for numba see `road_bytes`."""

_TOP = 65534
"""The probability 1 as it is kept until it is interpolated; one more is not finite."""
_PIECE = 512
"""Rows that are converted at a time."""
_BLOCK_BYTES = 1 << 20
"""Bytes of interpolated probabilities per thread."""


class ImageRows:
    """Interpolates probabilities bilinearly at the centres of the image's pixels.

    Pixels of the model's grid without imagery do not count, and pixels of the image without it are
    nodata. ``convert`` is `road_bytes` or `class_bytes` with its options: the threshold and the
    largest probability are those of interpolated values. ``first`` is the first row of the image,
    for which rows of the model's grid are needed from ``first_needed`` on.
    """

    _join: Callable[..., Any] = staticmethod(np.concatenate)

    def __init__(
        self,
        source: ImageSource,
        bands: int,
        convert: Convert,
        pool: ThreadPoolExecutor,
        first: int,
    ) -> None:
        self._source, self._bands, self._convert, self._pool = source, bands, convert, pool
        self._down, across = (
            (np.arange(count) + 0.5) / scale - 0.5
            for count, scale in zip(source.lengths, source.scales, strict=True)
        )
        _, self._left, self._bottom, self._right = source.extent
        self._across = np.clip(across, 0, source.width - 1)[self._left : self._right]
        self._next, self.lost = first, cast(Any, 0)
        self._seen, self._seen_top = np.empty((0, -(-source.lengths[1] // 8)), np.uint8), first
        self._above: tuple[Any, Any] | None = None

    @property
    def first_needed(self) -> int:
        """The first row of the model's grid that the next row of the image needs."""
        return max(0, int(self._down[min(self._next, len(self._down) - 1)]))

    @property
    def last_needed(self) -> int:
        """The last row of the model's grid that the prediction needs, plus one."""
        return min(int(self._down[self._bottom - 1]) + 2, self._source.height)

    def add(
        self,
        row: WindowRow,
        top: int,
        within: int,
        values: Any,  # noqa: ANN401 - as below
    ) -> Iterator[Any]:
        """Add rows of the model's grid from ``top`` on, of `kept_probabilities` (channel, y, x).

        They begin ``within`` rows below the row of windows. Yield rows of the image, uint8
        (band, y, x).
        """
        values = values.swapaxes(0, 1).swapaxes(1, 2)
        source, bottom = self._source, top + len(values)
        valid = row.valid[within : within + len(values)]
        tail = self._seen[self._next - self._seen_top :][: max(0, row.seen_top - self._next)]
        self._seen, self._seen_top = np.concatenate([tail, row.seen]), row.seen_top - len(tail)
        stop = self._bottom
        if bottom < source.height:
            done = int(np.searchsorted(self._down, bottom - 1))
            stop = min(stop, max(self._next, done))
        while self._next < stop:
            count = min(_PIECE, stop - self._next)
            yield self._piece(top, values, valid, count)
            self._next += count
        if len(values):  # copies, since the memory of these is used again
            self._above = self._join([values[-1:]]), self._join([valid[-1:]])

    def _piece(self, top: int, values: Any, valid: Any, count: int) -> Any:  # noqa: ANN401 - see `device`
        """Return the next rows of the image, uint8 (band, y, x), a block of them per thread."""
        most = max(1, _BLOCK_BYTES // (4 * values.shape[2] * len(self._across)))
        out = np.empty((self._bands, count, len(self._across)), np.uint8)
        block = partial(self._block, top, values, valid, most, out)
        self.lost += sum(self._pool.map(block, range(0, count, most)))
        return out

    def _block(
        self, top: int, values: Words, valid: Bytes, most: int, out: Bytes, first: int
    ) -> int:
        """Convert some rows of ``out``; return the number of pixels that are not finite."""
        out = out[:, first : first + most]
        _, height, width = out.shape
        near, known, down, seen = self._under(top, values, valid, self._next + first, height)
        found = np.empty((height, width, values.shape[2]), np.float32)
        interpolate(near, known, down, self._across, seen, found)
        return int(self._convert(found, (0, height, 0, width), 0, seen, out=out))

    def _under(self, top: int, values: Any, valid: Any, start: int, count: int) -> Any:  # noqa: ANN401 - as above
        """Return what rows of the image from ``start`` on are interpolated from.

        These are the rows under them of ``values`` and ``valid``, the places of the rows among
        these, float64 (row), and where the image itself has imagery, uint8 (row, x).
        """
        down = self._down[start : start + count].clip(0, self._source.height - 1)
        low, high = int(down[0]), min(int(down[-1]) + 2, self._source.height)
        here = slice(max(low - top, 0), high - top)
        near, known = values[here], valid[here]
        if low < top and self._above is not None:
            near, known = (
                self._join([above, below])
                for above, below in zip(self._above, (near, known), strict=True)
            )
        bits = self._seen[start - self._seen_top :][:count]
        seen = np.unpackbits(bits, axis=1, count=self._right)[:, self._left :].copy()
        return near, known, down - low, seen


@compiled
def kept_probabilities(values: Floats, part: Part, left: int, valid: Bytes, out: Words) -> int:
    """Write probabilities as 16-bit numbers, to be interpolated; as `road_bytes` otherwise."""
    top, bottom, first, last = part
    for y in range(top, bottom):
        for x in range(first, last):
            for channel in range(values.shape[2]):
                value = values[y, x, channel]
                kept = min(max(value, np.float32(0)), np.float32(1)) * np.float32(_TOP)
                whole = np.uint16(np.int32(kept + np.float32(0.5)))
                out[channel, y, left + x] = whole if np.isfinite(value) else _TOP + 1
    return 0


@compiled
def interpolate(
    values: Words, valid: Bytes, down: Doubles, across: Doubles, seen: Bytes, out: Floats
) -> None:
    """Interpolate `kept_probabilities` (y, x, channel) at rows and columns of their pixels.

    ``out`` is float32 (row, column, channel), NaN next to values that are not finite. ``seen``
    becomes 0 where no neighbour is ``valid``.
    """
    height, width, channels = values.shape
    line, share = np.empty((width, channels), np.float32), np.empty(width, np.float32)
    for row in range(len(down)):
        top = int(down[row])
        weight = np.float32(down[row] - top)
        bottom = min(top + 1, height - 1)
        for x in range(width):
            upper = np.float32(1) - weight if valid[top, x] else np.float32(0)
            lower = weight if valid[bottom, x] else np.float32(0)
            share[x] = upper + lower
            for channel in range(channels):
                a, b = values[top, x, channel], values[bottom, x, channel]
                line[x, channel] = upper * np.float32(a) + lower * np.float32(b)
                if (a > _TOP and upper > 0) or (b > _TOP and lower > 0):
                    line[x, channel] = np.nan
        for x in range(len(across)):
            left = int(across[x])
            after = np.float32(across[x] - left)
            right = left + (after > 0)
            before = np.float32(1) - after
            total = before * share[left] + after * share[right]
            if total <= 0:
                seen[row, x] = 0
                out[row, x] = 0
                continue
            for channel in range(channels):
                mixed = before * line[left, channel] + after * line[right, channel]
                out[row, x, channel] = mixed / (total * np.float32(_TOP))
