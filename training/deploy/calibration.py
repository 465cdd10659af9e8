"""The tiles that INT8 takes its ranges from, and the agreement of two runners on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from loaders import BatchLoader, DevicePrep, Normalize, SpeedTarget
from training.checkpoint import Facts
from training.data import tiles_of

TILES = 100
"""More change no range by a step of the quantiser."""


def training_tiles(
    stores: Sequence[str | Path], facts: Facts, count: int = TILES, seed: int = 0
) -> list[Tensor]:
    """Return tiles that a network was trained on, drawn by the loader, uint8 (1, band, y, x) each.

    Parameters
    ----------
    stores
        One or more.
    facts
        Of the network: bands, level, folds.
    count
        How many; fewer where there are not as many.
    seed
        Decides which.

    Raises
    ------
    StoreError, UsageError
        A store cannot be used, or does not belong to the network.
    """
    tiles = tiles_of(facts, stores)
    pad = DevicePrep(Normalize(facts.mean, facts.std), SpeedTarget("binary")).pad
    loader = BatchLoader(tiles, 1, shuffle=True, seed=seed, drop_last=False)
    # Buffers of the loader are used again.
    return [pad(batch.image).clone() for batch in islice(loader, count)]


def agreement(
    one: Callable[[Tensor], Tensor],
    other: Callable[[Tensor], Tensor],
    tiles: Sequence[Tensor],
    threshold: float,
) -> tuple[float, float]:
    """Return the mean difference of probabilities, and the IoU of both road masks.

    Parameters
    ----------
    one, other
        Runners.
    tiles
        uint8 (n, band, y, x) each.
    threshold
        Least probability of a road.
    """
    apart, pixels, both, either = 0.0, 0, 0, 0
    for tile in tiles:
        first, second = one(tile).cpu(), other(tile).cpu()
        apart += float(torch.abs(first - second).sum(dtype=torch.float64))
        pixels += first.numel()
        a, b = first[..., -1] >= threshold, second[..., -1] >= threshold
        both, either = both + int((a & b).sum()), either + int((a | b).sum())
    return apart / max(pixels, 1), both / either if either else 1.0
