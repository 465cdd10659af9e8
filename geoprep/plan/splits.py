"""Which scenes train, validate and test: by a hash, so that adding scenes moves few others."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

TRAIN, VAL, TEST = 0, 1, 2


def assign_splits(
    groups: Sequence[Hashable], labelled: Sequence[bool], *, val: float, test: float, seed: int
) -> NDArray[np.uint8]:
    """Return the split of every scene.

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
        there is one left to train on.
    seed
        Another seed, another division.

    Returns
    -------
    ndarray
        uint8 (scene), 0 train, 1 val, 2 test.
    """
    splits = np.zeros(len(groups), np.uint8)
    for kind in (True, False):
        members = [i for i, has in enumerate(labelled) if bool(has) is kind]
        by_group: dict[Hashable, list[int]] = {}
        for i in members:
            by_group.setdefault(groups[i], []).append(i)
        ranked = sorted(by_group, key=lambda group: _rank(group, seed))
        position = 0
        for split, share in ((VAL, val), (TEST, test)):
            wanted, taken = share * len(members), 0
            while share > 0 and position < len(ranked) - 1:
                size = len(by_group[ranked[position]])
                # Stop where one group more would overshoot by more than it is short now, or where
                # it is the last but one and the test split has none yet.
                last = split == VAL and test > 0 and position == len(ranked) - 2
                if taken and (taken + size / 2 > wanted or last):
                    break
                splits[by_group[ranked[position]]] = split
                taken += size
                position += 1
    return splits


def blocks(
    lonlat: Sequence[tuple[float, float]], areas: Sequence[str], block_km: float
) -> list[tuple[str, int, int]]:
    """Return the block of ground in which each scene's centre lies.

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
