"""Choice of tiles and crops by their labels: coarse pixel counts, and weights of tiles.

A summed-area table over cells of 16 pixels takes less than two per cent of the labels' memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.speed import BIN_COUNT, BIN_TABLE, NODATA
from loaders.batch import Ints, Pixels
from loaders.prefetch import Prefetcher

Result = TypeVar("Result")
Doubles = NDArray[np.float64]

CELL = 16
"""Side of a cell in pixels."""

WeightRule = Literal["road", "speed", "classes"]

_ROUNDS, _CLIPS = 200, 8
"""Adjustments of the factors of bins; repeated clips to the bounds of weights."""

_LEAST = 1e-9
"""Minimum factor of a bin or class: one that cannot be balanced must not become 0 or infinite."""

_FLOOR = 0.1
"""Minimum weight of a tile as a share of the mean: tiles without roads are rare, not absent."""

_CEILING = 5.0
"""Maximum weight by ``speed`` or ``classes`` as a multiple of the mean: otherwise a model would
memorise the only fast road, or pond, of a store.
"""


class TileLabels(Protocol):
    """Tiles, as far as their labels are concerned."""

    side: int
    road_fraction: NDArray[np.float32]
    class_names: tuple[str, ...]

    def __len__(self) -> int: ...

    def label_of(self, tile: int) -> Pixels:
        """Return the label of a tile, uint8 (y, x)."""


def _each(labels: TileLabels, function: Callable[[Pixels], Result]) -> Iterator[Result]:
    """Return the results of a function of every label, computed in two threads."""
    read = range(len(labels))
    return Prefetcher(lambda tile: function(labels.label_of(tile)), read, threads=2, prefetch=8)


@dataclass(frozen=True, slots=True, eq=False)
class PixelCells:
    """Summed-area table of counted pixels over cells, int32 (tile, cells + 1, cells + 1)."""

    sums: NDArray[np.int32]
    side: int

    @classmethod
    def count(cls, labels: TileLabels, value: int | None = None) -> PixelCells:
        """Count the pixels of a class, or (None) of roads, in one pass over all labels."""
        edges = np.arange(0, labels.side, CELL)

        def cell_sums(label: Pixels) -> NDArray[np.int32]:
            # Unsigned, so 0 wraps around: False for 0 and 255.
            counted = (
                (label - np.uint8(1)) < np.uint8(NODATA - 1) if value is None else label == value
            )
            rows = np.add.reduceat(counted, edges, axis=0, dtype=np.int32)
            counts = np.add.reduceat(rows, edges, axis=1, dtype=np.int32)
            return np.cumsum(np.cumsum(counts, axis=0), axis=1)

        sums = np.zeros((len(labels), len(edges) + 1, len(edges) + 1), np.int32)
        for tile, counted in zip(sums, _each(labels, cell_sums), strict=True):
            tile[1:, 1:] = counted
        return cls(sums, labels.side)

    def total(self) -> NDArray[np.int32]:
        """Return the counted pixels of every tile, int32 (tile,)."""
        return self.sums[:, -1, -1]

    def fraction(self, tile: Ints, y: Ints, x: Ints, crop: int) -> Doubles:
        """Return a lower bound of the share in crops: that of the cells wholly inside."""
        top, left = (-(-corner // CELL) for corner in (y, x))
        # The last cell of a tile may be narrower; it is inside a crop that ends with the tile.
        bottom, right = (
            np.where(corner + crop == self.side, self.sums.shape[1] - 1, (corner + crop) // CELL)
            for corner in (y, x)
        )
        bottom, right = np.maximum(bottom, top), np.maximum(right, left)
        sums = self.sums
        pixels = (
            sums[tile, bottom, right]
            - sums[tile, top, right]
            - sums[tile, bottom, left]
            + sums[tile, top, left]
        )
        return pixels / float(crop * crop)


def tile_weights(
    rule: WeightRule | Sequence[float] | Doubles, labels: TileLabels, chosen: Ints | None = None
) -> Doubles:
    """Return the relative frequency of each tile, float64 (tile,).

    Parameters
    ----------
    rule
        ``road``: in proportion to the share of road. ``speed``: such that pixels of all ten-mph
        bins that occur are drawn about equally often. A tile contributes all its roads, so bins
        that always occur together keep their proportion, and no tile is drawn more than about five
        times as often as the mean. ``classes``: the same for the classes of a label. Or one number
        per tile. By all rules a tile has at least a tenth of the mean.
    labels
        The tiles.
    chosen
        int64, the tiles to return weights of; None for all.

    Raises
    ------
    UsageError
        There is no such rule, it is for other labels, or the numbers are not valid weights.
    """
    classes = labels.class_names
    if isinstance(rule, str) and (rule == "classes") != bool(classes):
        fix = "'classes'" if classes else "'road' or 'speed'"
        kind = "classes" if classes else "speeds"
        raise UsageError(f"weights={rule!r} does not fit labels of {kind}: use weights={fix}")
    if not isinstance(rule, str):
        weights = np.asarray(rule, np.float64)
    elif rule == "road":
        weights = _floored(labels.road_fraction.astype(np.float64))
    elif rule == "speed":
        pixels = _pixels(labels, BIN_TABLE, BIN_COUNT + 1)[:, 1:]
        if labels.road_fraction.any() and not pixels.any():
            warnings.warn(
                "weights='speed' draws all tiles equally often: no road of these tiles has a known "
                "speed. Use weights='road'",
                UserWarning,
                stacklevel=3,
            )
        weights = _balanced(pixels)
    elif rule == "classes":
        weights = _balanced(_pixels(labels, np.arange(256), 256)[:, : len(classes)])
    else:
        raise UsageError(
            f"weights={rule!r} is not 'road', 'speed', 'classes' or one number per tile"
        )
    if weights.shape != (len(labels),):
        raise UsageError(f"weights have shape {weights.shape}: give ({len(labels)},)")
    weights = weights if chosen is None else weights[chosen]
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
        raise UsageError("weights must be finite, not negative, and not all zero")
    return weights


def _floored(weights: Doubles) -> Doubles:
    return np.maximum(weights, _FLOOR * weights.mean()) if weights.any() else weights + 1.0


def _pixels(labels: TileLabels, table: NDArray[Any], kinds: int) -> Doubles:
    """Return the pixels of every kind, float64 (tile, kind); ``table`` (256,) has the kinds."""

    def count(label: Pixels) -> Doubles:
        counts = np.bincount(label.ravel(), minlength=256)
        return np.bincount(table, weights=counts, minlength=kinds).astype(np.float64)

    return np.stack(list(_each(labels, count)))


def _balanced(pixels: Doubles) -> Doubles:
    """Return weights of tiles that make all bins, or classes, about equally frequent.

    A tile weighs the sum of its shares of each bin's pixels times a factor of the bin, which is
    raised where the bin is too rare (iterative proportional fitting; Deming and Stephan, 1940).
    """
    pixels = pixels[:, pixels.any(axis=0)]
    shares = pixels / pixels.sum(axis=0)
    factors, least = np.ones(shares.shape[1]), np.inf
    best = _floored(shares.sum(axis=1))
    for _ in range(_ROUNDS if pixels.size else 0):
        weights = shares @ factors
        for _ in range(_CLIPS):  # every clip changes the mean
            weights = np.clip(weights / weights.mean(), _FLOOR, _CEILING)
        met = weights @ pixels / (weights @ pixels).mean()
        if (uneven := np.abs(met - 1).max()) < least:
            best, least = weights, uneven
        factors = np.clip(factors / met, _LEAST, 1 / _LEAST)
        factors /= factors.mean()
    return best


Minimums = tuple[tuple[float, PixelCells], ...]
"""Each minimum share of crops, and the counts that tell whether a crop has it."""


def tiles_with_enough(
    labels: TileLabels, min_road: float, min_share: Mapping[str, float], crop: int | None
) -> tuple[Ints | None, Minimums]:
    """Return the tiles (None for all) that can give enough road, or of each class, and the counts.

    Whole tiles need no counts.
    """
    names = labels.class_names
    if min_road <= 0 and not min_share:
        return None, ()
    if min_road > 0 and names:
        raise UsageError("min_road", "is for labels of speeds: use `min_share` of classes")
    if min_share and not names:
        raise UsageError("min_share", "is for labels of classes: use `min_road`")
    for name, share in min_share.items():
        if name not in names:
            raise UsageError(f"min_share: there is no class {name!r}; use {', '.join(names)}")
        if not 0 < share <= 1:
            raise UsageError(f"min_share of {name}={share} must be above 0 and at most 1")
    rule = f"min_share={dict(min_share)}" if min_share else f"min_road={min_road}"
    kinds: list[Any] = [names.index(name) for name in min_share] or [None]
    shares = [*min_share.values()] or [min_road]
    least: Minimums = ()
    if crop is not None and crop < 2 * CELL:
        option = rule.partition("=")[0]
        raise UsageError(f"{option} needs crops of at least {2 * CELL} pixels, not crop={crop}")
    if crop is not None:
        least = tuple(zip(shares, [PixelCells.count(labels, kind) for kind in kinds], strict=True))
        enough = np.all([cells.total() >= share * crop * crop for share, cells in least], axis=0)
    elif not min_share:
        enough = labels.road_fraction >= min_road
    else:
        pixels = _pixels(labels, np.arange(256), 256)[:, kinds]
        enough = (pixels >= np.array(shares) * labels.side**2).all(axis=1)
    if not enough.any():
        raise UsageError(f"no tile has enough for {rule}: use a smaller value")
    return np.flatnonzero(enough), least
