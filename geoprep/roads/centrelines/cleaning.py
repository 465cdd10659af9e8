"""Which pixels are road: patches, holes and squares taken out of a mask, whatever block it is in.

Patches are found by their runs (stretches of road within a row), which are some hundred times fewer
than pixels. Every step looks only so far, in pixels, so that a block with a margin of that many
pixels (`margin`) gives within it what the whole raster would give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import ImageError
from geoprep.roads.centrelines.kernels import keep_shallow

Mask = NDArray[np.bool_]

_MOST_RUNS: Final = 3_000_000
"""In one block. A dense city has a tenth of it; beyond lies noise, and memory without bound."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is too small or too thick, in pixels.

    Attributes
    ----------
    area, hole
        Pixels that a patch, or a hole, must have to stay.
    depth
        Steps along rows and columns from the nearest background beyond which a pixel is no road.
    """

    area: int
    hole: int
    depth: int

    @property
    def margin(self) -> int:
        """How far the answer for a pixel may depend on others, in pixels."""
        return self.area + self.hole + self.depth


def clean(road: Mask, sizes: Sizes, inner: tuple[bool, bool, bool, bool]) -> None:
    """Take small patches, small holes and the insides of squares out of a mask, in place.

    Parameters
    ----------
    road
        Contiguous.
    inner
        For the top, bottom, left and right side, whether the raster goes on beyond it: what touches
        such a side is never small. A patch at the raster's own border is as large as it looks
        there; a hole at any side is no hole.

    Raises
    ------
    ImageError
        The mask is noise.
    """
    if sizes.area > 1:
        _flip_small(road, True, sizes.area, inner)
    if sizes.hole > 1:
        _flip_small(road, False, sizes.hole, (True, True, True, True))
    hollow(road, sizes.depth)


def hollow(road: Mask, depth: int) -> None:
    """Take out, in place, what lies deeper than ``depth`` steps within the road."""
    if _has_square(road, max(1, depth // 2)):
        keep_shallow(road.view(np.uint8), depth)


def _has_square(road: Mask, side: int) -> bool:
    """Return whether a cell of a grid is all road: cells beyond the edge count as far as they go.

    Around a pixel deeper than 2 sides there always is one.
    """
    down = np.logical_and.reduceat(road, np.arange(0, road.shape[0], side), axis=0)
    return bool(np.logical_and.reduceat(down, np.arange(0, road.shape[1], side), axis=1).any())


def _flip_small(
    mask: Mask, value: bool, least: int, open_sides: tuple[bool, bool, bool, bool]
) -> None:
    """Flip the patches of one value that have fewer than ``least`` pixels and touch no open side.

    Road joins at corners, background does not: as a line of road divides the background.
    """
    runs = _Runs.of(mask if value else ~mask)
    if not len(runs.starts):
        return
    patch = runs.patches(8 if value else 4)
    small = np.bincount(patch, weights=runs.lengths) < least
    small[patch[runs.touching(mask.shape, open_sides)]] = False
    gone = small[patch]
    mask.reshape(-1)[runs.pixels(gone)] = not value


@dataclass(frozen=True, slots=True)
class _Runs:
    """Stretches of True within rows, in reading order.

    ``starts`` and ``stops`` are indices into rows that are one pixel longer than the mask's: the
    pixel that is added is False, so that no run goes on in the next row.
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
            raise ImageError("this is noise, not roads: thousands of specks in every row")
        return cls(edges[::2], edges[1::2], width + 1)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.stops - self.starts

    def patches(self, connectivity: int) -> NDArray[np.int32]:
        """Return the number of the patch that every run is part of."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        corner = int(connectivity == 8)
        below = self.starts + self.stride
        first = np.searchsorted(self.stops, below - corner, "right")
        last = np.searchsorted(self.starts, self.stops + self.stride + corner, "left")
        counts = np.maximum(last - first, 0)
        upper = np.repeat(np.arange(len(counts)), counts)
        lower = ranges(first, counts)
        graph = coo_array(
            (np.ones(len(upper), np.int8), (upper, lower)), shape=(len(counts), len(counts))
        )
        patch: NDArray[np.int32] = connected_components(graph, directed=False)[1]
        return patch

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
        """Return the flat indices into the mask of all pixels of some runs."""
        starts = self.starts[chosen]
        return ranges(starts - starts // self.stride, self.lengths[chosen])


def ranges(first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``first[i], first[i] + 1, ...``, ``counts[i]`` of them, for one i after another.

    Examples
    --------
    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(counts) - counts
    steps: NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(first - before, counts)
    return steps
