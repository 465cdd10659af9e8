"""Ground that images of different splits share, and images with the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.build.given_splits import tile_outlines
from geoprep.build.planned_scene import PlannedScene
from geoprep.build.splits import TEST, TRAIN, UNUSED, VAL
from geoprep.store import SPLIT_NAMES

_INSET: Final = 1.0
"""Pixels cut off every side before outlines are compared: neighbours may share a row of pixels."""


def first_equal(digests: Sequence[int]) -> list[int]:
    """Return for every image the index of the first one with the same digest; 0: not known."""
    firsts: dict[int, int] = {}
    return [firsts.setdefault(digest, i) if digest else i for i, digest in enumerate(digests)]


@dataclass(frozen=True, slots=True)
class SharedGround:
    """Tiles that show ground of another split in another image."""

    scene: NDArray[np.int64]
    tile: NDArray[np.int64]  # index among the tiles of its scene
    weaker: NDArray[np.bool_]  # whether the other split counts more: test over val over train
    example: tuple[tuple[int, int], tuple[int, int]]  # scene and split of two that overlap

    def without(self, splits: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the splits with the weaker tiles unused."""
        kept = list(splits)
        for index in np.unique(self.scene[self.weaker]).tolist():
            of_scene = np.array(splits[index])
            of_scene[self.tile[self.weaker & (self.scene == index)]] = UNUSED
            kept[index] = tuple(of_scene.tolist())
        return kept

    def note(self, scenes: Sequence[PlannedScene], *, removed: bool) -> str:
        """Return a line for the user."""
        if removed:
            return (
                f"{int(self.weaker.sum()):,} tiles are unused since an overlapping image shows "
                "their ground in another split"
            )
        names = [f"{scenes[i].id} ({SPLIT_NAMES[split]})" for i, split in self.example]
        return (
            f"{len(np.unique(self.scene)):,} images overlap images of another split "
            f"({len(self.scene):,} tiles, such as {' and '.join(names)}), so scores of held-out "
            "data may be too high. Use `split_by` block, and `split_overlap` unused to leave such "
            "tiles out"
        )


def shared_ground(
    scenes: Sequence[PlannedScene], splits: Sequence[tuple[int, ...]], tile: int
) -> SharedGround | None:
    """Return the tiles that show ground of another split in another image; None if there are none.

    Outlines are compared in longitude and latitude; images that are not georeferenced are left
    out. Unused tiles do not count.
    """
    used = [set(of_scene) - {UNUSED} for of_scene in splits]
    if len(set().union(*used)) < 2:
        return None
    placed = [i for i, one in enumerate(scenes) if used[i] and one.grid and one.grid.georeferenced]
    if len(placed) < 2:
        return None
    whole = [_outlines(scenes[i], [(0, 0)], max(scenes[i].shape)) for i in placed]
    first, second = _pairs(np.concatenate(whole))
    involved = {
        placed[i]
        for a, b in zip(first.tolist(), second.tolist(), strict=True)
        if a != b and len(used[placed[a]] | used[placed[b]]) > 1
        for i in (a, b)
    }
    return _shared_tiles(scenes, splits, sorted(involved), tile) if involved else None


def _shared_tiles(
    scenes: Sequence[PlannedScene],
    splits: Sequence[tuple[int, ...]],
    involved: Sequence[int],
    tile: int,
) -> SharedGround | None:
    counts = [len(splits[i]) for i in involved]
    owners, numbers = np.repeat(involved, counts), np.concatenate([np.arange(n) for n in counts])
    of_tile = np.concatenate([splits[i] for i in involved])
    grounds = np.concatenate([_outlines(scenes[i], scenes[i].windows, tile) for i in involved])
    kept = of_tile != UNUSED
    owners, numbers, of_tile = owners[kept], numbers[kept], of_tile[kept]
    one, other = _pairs(grounds[kept])
    apart = (owners[one] != owners[other]) & (of_tile[one] != of_tile[other])
    one, other = one[apart], other[apart]
    if not len(one):
        return None
    # Larger numbers hold more: TEST over VAL over TRAIN.
    assert TRAIN < VAL < TEST
    tiles = np.unique(one)
    weaker = np.isin(tiles, one[of_tile[one] < of_tile[other]])
    a, b = int(one[0]), int(other[0])
    example = (int(owners[a]), int(of_tile[a])), (int(owners[b]), int(of_tile[b]))
    return SharedGround(owners[tiles], numbers[tiles], weaker, example)


def _outlines(
    scene: PlannedScene, windows: Sequence[tuple[int, int]], side: int
) -> NDArray[np.object_]:
    assert scene.target is not None  # the callers leave others out
    return tile_outlines(scene.target, windows, side, _INSET)


def _pairs(outlines: NDArray[np.object_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices of outlines that intersect, each pair both ways."""
    usable = np.flatnonzero(np.isfinite(shapely.bounds(outlines)).all(axis=1))
    one, other = shapely.STRtree(outlines[usable]).query(outlines[usable], predicate="intersects")
    return usable[one], usable[other]
