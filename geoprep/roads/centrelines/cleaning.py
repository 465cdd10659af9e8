"""Clean-up of a road mask: small patches, small holes and the insides of wide areas are removed.

Patches are found by their runs (stretches of road within a row), which are some hundred times fewer
than pixels. Every step looks a limited number of pixels far, so a block with a margin of that many
pixels (`CleaningLimits.margin`) has the same result inside as the whole raster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import ImageError
from geoprep.roads.centrelines.kernels import keep_shallow
from geoprep.roads.chains import ranges
from geoprep.roads.graph import connected

Mask = NDArray[np.bool_]

_MOST_RUNS: Final = 3_000_000
"""Runs per block. A dense city has a tenth of it; noise has more, and would exhaust memory."""


@dataclass(frozen=True, slots=True)
class CleaningLimits:
    """Sizes in pixels below or above which parts of a mask are removed."""

    area: int  # minimum number of pixels of a patch, and of a hole
    hole: int
    depth: int  # largest number of steps along rows and columns from a road pixel to the background

    @property
    def margin(self) -> int:
        """Number of pixels around a block that its result may depend on."""
        return self.area + self.hole + self.depth


def clean(road: Mask, limits: CleaningLimits, continues: tuple[bool, bool, bool, bool]) -> None:
    """Remove small patches, small holes and the insides of wide areas from a mask, in place."""
    if limits.area > 1:
        _flip_small(road, True, limits.area, continues)
    if limits.hole > 1:
        _flip_small(road, False, limits.hole, (True, True, True, True))
    hollow(road, limits.depth)


def hollow(road: Mask, depth: int) -> None:
    """Remove, in place, pixels more than ``depth`` steps inside the road."""
    if _has_square(road, max(1, depth // 2)):
        keep_shallow(road.view(np.uint8), depth)


def _has_square(road: Mask, side: int) -> bool:
    """Return whether a cell of a grid is all road; cells at the edge may be smaller.

    Around a pixel deeper than two sides there always is one.
    """
    down = np.logical_and.reduceat(road, np.arange(0, road.shape[0], side), axis=0)
    return bool(np.logical_and.reduceat(down, np.arange(0, road.shape[1], side), axis=1).any())


def _flip_small(
    mask: Mask, value: bool, least: int, open_sides: tuple[bool, bool, bool, bool]
) -> None:
    """Flip the patches of one value that have fewer than ``least`` pixels and touch no open side.

    Road is connected across corners, background is not: a line of road separates the background.
    """
    runs = _Runs.of(mask if value else ~mask)
    if not len(runs.starts):
        return
    patch = runs.patches(8 if value else 4)
    small = np.bincount(patch, weights=runs.lengths) < least
    small[patch[runs.touching(mask.shape, open_sides)]] = False
    removed = small[patch]
    mask.reshape(-1)[runs.pixels(removed)] = not value


@dataclass(frozen=True, slots=True)
class _Runs:
    """Stretches of True within rows, in reading order.

    ``starts`` and ``stops`` are flat indices into rows that are one pixel longer than the mask's.
    The extra pixel is False, so that no run continues in the next row.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    stride: int

    @classmethod
    def of(cls, mask: Mask) -> _Runs:
        height, width = mask.shape
        padded = np.zeros(height * (width + 1) + 1, np.bool_)
        padded[1:].reshape(height, width + 1)[:, :width] = mask
        edges = np.flatnonzero(padded[1:] != padded[:-1])
        if len(edges) > 2 * _MOST_RUNS:
            raise ImageError("the mask is noise: it has thousands of specks in every row")
        return cls(edges[::2], edges[1::2], width + 1)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.stops - self.starts

    def patches(self, connectivity: int) -> NDArray[np.int32]:
        """Return the number of the patch that every run belongs to, for 4 or 8 neighbours."""
        corner = int(connectivity == 8)
        below = self.starts + self.stride
        first = np.searchsorted(self.stops, below - corner, "right")
        last = np.searchsorted(self.starts, self.stops + self.stride + corner, "left")
        counts = np.maximum(last - first, 0)
        upper = np.repeat(np.arange(len(counts)), counts)
        return connected(np.stack([upper, ranges(first, counts)]).T, len(counts))[1]

    def touching(
        self, shape: tuple[int, int], sides: tuple[bool, bool, bool, bool]
    ) -> NDArray[np.bool_]:
        """Return which runs touch one of the chosen sides: top, bottom, left, right."""
        row, col = np.divmod(self.starts, self.stride)
        stop = col + self.lengths
        touch = (row == 0, row == shape[0] - 1, col == 0, stop == shape[1])
        chosen = [met for met, side in zip(touch, sides, strict=True) if side]
        return np.logical_or.reduce(chosen) if chosen else np.zeros(len(row), np.bool_)

    def pixels(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the flat indices into the mask of all pixels of the chosen runs."""
        starts = self.starts[chosen]
        return ranges(starts - starts // self.stride, self.lengths[chosen])
