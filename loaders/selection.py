"""Which tiles of a store belong to a split, and which of them can be used."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.store import SPLITS, Store

Split = Literal["train", "val", "test", "all"]

EMPTY = "empty"
"""Why a tile without a single valid pixel is left out of a scene that is otherwise fine."""


@dataclass(frozen=True, slots=True)
class Folds:
    """k-fold cross-validation over the scenes that are not in the test split.

    Attributes
    ----------
    count
        How many folds.
    fold
        Which of them validates, 0 <= fold < count; the others train.
    seed
        Decides which scene falls into which fold.
    """

    count: int
    fold: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 2 or not 0 <= self.fold < self.count:
            raise UsageError(
                f"folds={self.count}, fold={self.fold}: at least 2 folds, and fold in "
                f"0..{max(self.count, 2) - 1}"
            )


@dataclass(frozen=True, slots=True)
class Selection:
    """Tiles of one store.

    Attributes
    ----------
    tiles
        int64, ascending row of each tile in the store's tile table.
    left_out
        How many tiles of the split cannot be used, by reason: a scene's status, or ``empty``.
    """

    tiles: NDArray[np.int64]
    left_out: dict[str, int] = field(default_factory=dict)


def select(store: Store, split: Split, folds: Folds | None = None) -> Selection:
    """Return the usable tiles of a split: of scenes that are ``ok``, with at least a valid pixel.

    Parameters
    ----------
    store
        The store; its split column is not changed by ``folds``.
    split
        ``train``, ``val``, ``test``, or ``all`` for the three together.
    folds
        Cut train and val anew; ``test`` stays as it is.

    Raises
    ------
    UsageError
        The split is unknown, or there are fewer scenes than folds.
    """
    if split not in get_args(Split):
        raise UsageError(f"split={split!r} is not one of {', '.join(get_args(Split))}")
    table = store.tiles
    wanted = _in_split(store, split, folds)[table.scene]
    status = store.scenes.status[table.scene].astype(object)
    status[(status == "ok") & (table.valid_fraction <= 0)] = EMPTY
    left_out = Counter(str(s) for s in status[wanted] if s != "ok")
    return Selection(np.flatnonzero(wanted & (status == "ok")), dict(sorted(left_out.items())))


def _in_split(store: Store, split: Split, folds: Folds | None) -> NDArray[np.bool_]:
    """Return whether each scene is in the split, bool (scene,)."""
    splits = np.full(len(store.scenes), len(SPLITS), np.uint8)
    splits[store.tiles.scene] = store.tiles.split
    if split == "all":
        return np.ones(len(splits), np.bool_)
    if folds is not None:
        splits = _refold(store, splits, folds)
    inside: NDArray[np.bool_] = splits == SPLITS.index(split)
    return inside


def _refold(store: Store, splits: NDArray[np.uint8], folds: Folds) -> NDArray[np.uint8]:
    """Return the split of each scene under k-fold; folds differ by at most one usable scene."""
    train, val, test = range(len(SPLITS))
    free = np.flatnonzero(splits != test)
    usable = store.scenes.status[free] == "ok"
    if usable.sum() < folds.count:
        raise UsageError(
            f"{store.location} has {usable.sum()} usable scenes outside its test split, too few "
            f"for folds={folds.count}"
        )
    # Usable scenes are dealt out first, so that they and not the failed ones are balanced.
    rank = sorted(
        range(len(free)),
        key=lambda i: (not usable[i], _digest(str(store.scenes.id[free[i]]), folds.seed)),
    )
    fold = np.empty(len(free), np.int64)
    fold[rank] = np.arange(len(free)) % folds.count
    again = splits.copy()
    again[free] = np.where(fold == folds.fold, val, train)
    return again


def _digest(scene: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{scene}".encode(), digest_size=8).digest()
