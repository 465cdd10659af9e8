"""Which scenes train, validate and test: by a hash, so that adding scenes moves few others."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

TRAIN, VAL, TEST, UNUSED = 0, 1, 2, 3


def assign_splits(
    groups: Sequence[Hashable], labelled: Sequence[bool], *, val: float, test: float, seed: int
) -> NDArray[np.uint8]:
    """Return the split of every scene, or tile.

    Groups are ranked by a hash of their name and the seed; the first ones validate, the next ones
    test, until each split has its share of the scenes. Labelled and unlabelled scenes are divided
    separately, since only the former are trained on.

    Parameters
    ----------
    groups
        What stays together, one per scene: its id, or the block of ground that it lies in.
    labelled
        Whether the scene has a label.
    val, test
        Shares of the scenes, 0 to 1. Above 0, such a split gets at least one group, as long as
        there is one left to train on. With a sum of 1 nothing trains.
    seed
        Another seed, another division.

    Returns
    -------
    ndarray
        uint8 (scene), 0 train, 1 val, 2 test.
    """
    kept = 0 if val + test >= 1 else 1  # groups left to train on
    rest = TRAIN if kept else TEST if test > 0 else VAL
    splits = np.full(len(groups), rest, np.uint8)
    for kind in (True, False):
        members = [i for i, has in enumerate(labelled) if bool(has) is kind]
        by_group: dict[Hashable, list[int]] = {}
        for i in members:
            by_group.setdefault(groups[i], []).append(i)
        ranked = sorted(by_group, key=lambda group: _rank(group, seed))
        position = 0
        for split, share in ((VAL, val), (TEST, test)):
            wanted, taken = share * len(members), 0
            while share > 0 and position < len(ranked) - kept:
                size = len(by_group[ranked[position]])
                # Stop where one group more would overshoot by more than it is short now, or where
                # it is the last but one and the test split has none yet.
                last = split == VAL and test > 0 and position == len(ranked) - 1 - kept
                if taken and (taken + size / 2 > wanted or last):
                    break
                splits[by_group[ranked[position]]] = split
                taken += size
                position += 1
    return splits


def apart(
    windows: Sequence[tuple[int, int]], splits: tuple[int, ...], tile: int
) -> tuple[int, ...]:
    """Return the splits of a scene's tiles without those that overlap a tile of another.

    Parameters
    ----------
    windows
        (row, col) of every tile, row by row.
    splits
        Of every tile. One that trains becomes unused where it overlaps one that validates or
        tests; one that validates where it overlaps one that tests.
    tile
        Side in pixels.
    """
    if len(set(splits)) == 1:
        return splits
    rows, cols = (np.unique(offsets) for offsets in np.array(windows).T)
    lattice = np.array(splits).reshape(len(rows), len(cols))
    found = lattice.copy()
    for split, stronger in ((TRAIN, (VAL, TEST)), (VAL, (TEST,))):
        near = _touched(np.isin(lattice, stronger), rows, cols, tile)
        found[(lattice == split) & near] = UNUSED
    return tuple(int(split) for split in found.ravel())


def _touched(
    marked: NDArray[np.bool_], rows: NDArray[np.int64], cols: NDArray[np.int64], tile: int
) -> NDArray[np.bool_]:
    """Return bool (row, col): which tiles of a lattice overlap a marked one."""
    sums = np.pad(marked.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    top, bottom = (
        np.searchsorted(rows, rows + d, s) for d, s in ((-tile, "right"), (tile, "left"))
    )
    left, right = (
        np.searchsorted(cols, cols + d, s) for d, s in ((-tile, "right"), (tile, "left"))
    )
    lower, upper = sums[bottom], sums[top]
    found: NDArray[np.bool_] = (lower - upper)[:, right] - (lower - upper)[:, left] > 0
    return found


def blocks(
    lonlat: Sequence[tuple[float, float]] | NDArray[np.float64],
    areas: Sequence[str],
    block_km: float,
) -> list[tuple[str, int, int]]:
    """Return the block of ground in which the centre of each scene, or tile, lies.

    Blocks are ``block_km`` wide near the middle of each area: chips that touch then rarely end up
    in different splits, which would let a model be judged on what it has seen the edge of.

    Parameters
    ----------
    lonlat
        Centre of every scene in degrees; NaN puts it into a block of its area's own.
    areas
        Name of the city or set that each scene belongs to.
    block_km
        Side of a block in kilometres.
    """
    degrees = np.asarray(lonlat, dtype=np.float64).reshape(-1, 2)
    result: list[tuple[str, int, int]] = [("", 0, 0)] * len(areas)
    for area in sorted(set(areas)):
        rows = [i for i, name in enumerate(areas) if name == area]
        centres = np.nan_to_num(degrees[rows])
        known = np.isfinite(degrees[rows, 1])
        # A degree of latitude is 111.2 km on a sphere of 6371 km; of longitude, cos(lat) of that.
        middle = np.radians(centres[known, 1].mean() if known.any() else 0.0)
        scale = np.array([111.2 * np.cos(middle), 111.2]) / block_km
        cells = np.floor(centres * scale).astype(int)
        for i, (x, y) in zip(rows, cells, strict=True):
            result[i] = (area, int(x), int(y))
    return result


def _rank(group: Hashable, seed: int) -> str:
    return xxhash.xxh3_128_hexdigest(f"{seed}:{group!r}".encode())
