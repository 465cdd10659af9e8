"""Assignment to splits by a hash, so that added scenes change the split of few others."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import shapely
import xxhash
from numpy.typing import NDArray

TRAIN, VAL, TEST, UNUSED = 0, 1, 2, 3


def assign_splits(
    groups: Sequence[Hashable], labelled: Sequence[bool], *, val: float, test: float, seed: int
) -> NDArray[np.uint8]:
    """Return the split of every scene or tile, uint8: 0 train, 1 val, 2 test.

    Groups, each of which stays in one split, are ranked by a hash of their name and the seed. The
    first ones are for validation, the next ones for testing, until each split has its share of the
    scenes. Labelled and unlabelled scenes are divided separately, since only labelled ones are used
    for training. A split with a share above 0 gets at least one group while one remains for
    training.
    """
    kept = 0 if val + test >= 1 else 1  # groups that remain for training
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
                # Stop where another group would overshoot by more than is missing now, or where the
                # last group must be kept for the test split.
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
    """Return the splits of a scene's tiles, unused where a tile overlaps one of another split.

    Training tiles yield to those for validation and testing, validation tiles to those for testing.
    ``windows`` are (row, col) of every tile.
    """
    if len(set(splits)) == 1:
        return splits
    rows, cols = np.array(windows).T
    boxes = np.asarray(shapely.box(cols, rows, cols + tile, rows + tile), object)
    one, other = shapely.STRtree(boxes).query(boxes, predicate="overlaps")
    given = np.array(splits)
    # Larger numbers hold more: TEST over VAL over TRAIN.
    loses = (given[one] < given[other]) & (given[other] != UNUSED)
    given[one[loses]] = UNUSED
    return tuple(given.tolist())


def blocks(
    lonlat: Sequence[tuple[float, float]] | NDArray[np.float64],
    areas: Sequence[str],
    block_km: float,
) -> list[tuple[str, int, int]]:
    """Return the block of ground that contains the centre of each scene, or tile.

    Blocks are ``block_km`` wide near the middle of each area. Neighbouring scenes are then rarely
    in different splits, where held-out scenes would resemble those for training. Centres are in
    degrees; NaN gives a block of its area without position.
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
