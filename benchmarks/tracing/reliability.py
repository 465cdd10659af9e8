"""Whether roads exist as often as their confidence says."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import numpy as np
import shapely

from benchmarks.common import Result
from geoprep.roads import RoadGraph, in_crs

BOUNDS: Final = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_NEAR_M: Final = 4.0


def measure_reliability(
    result: Result, prefix: str, pairs: Iterable[tuple[RoadGraph, RoadGraph]]
) -> None:
    """Record the share of edges that exist, by their mean confidence.

    An edge exists if at least half of its length lies within 4 m of a road of the ground truth.

    Parameters
    ----------
    pairs
        Ground truth and traced network of every scene.
    """
    confidence, exists = [np.empty(0)], [np.empty(0, np.bool_)]
    for truth, made in pairs:
        if made.confidence is None or not len(made.lines):
            continue
        roads = shapely.buffer(shapely.union_all(in_crs(truth, made.crs or "").lines), _NEAR_M)
        shared = shapely.length(shapely.intersection(made.lines, roads))
        confidence.append(made.confidence[:, 0])
        exists.append(shared >= shapely.length(made.lines) / 2)
    share, found = np.concatenate(confidence), np.concatenate(exists)
    for low, high in pairwise(BOUNDS):
        mine = (share >= low) & ((share < high) | (high == BOUNDS[-1]))
        if mine.any():
            note = f"{mine.sum()} edges of mean confidence {share[mine].mean():.2f}"
            name = f"{prefix}.{low:.1f}-{high:.1f}.exist"
            result.add(name, "%", [100 * float(found[mine].mean())], note=note)
