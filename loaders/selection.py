"""Selection of the tiles of a split, and the plan for loading them: level, bands, table."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.store.reader import StoreReader
from geoprep.store.schema import SPLITS
from loaders.chunks import Arrays, ShardRead, by_shard, open_arrays
from loaders.memory import available_memory, format_bytes

Split = Literal["train", "val", "test", "all"]

Stores = str | Path | StoreReader | Sequence[str | Path | StoreReader]
"""One store or several: opened, local paths or addresses."""

Readers = Sequence[StoreReader]
"""Opened stores."""

RESERVE = 200 << 20
"""Bytes to leave free next to tiles in memory: reading takes them."""

EMPTY = "empty"
"""Reason for leaving out a tile without a valid pixel of a scene that is ``ok``."""


@dataclass(frozen=True, slots=True)
class Folds:
    """k-fold cross-validation over the scenes that are not in the test split.

    Scenes that the build keeps together, `StoreReader.groups`, are in one fold.

    Attributes
    ----------
    count
        Number of folds, at least 2.
    fold
        The fold that validates, 0 <= fold < count; the others train.
    seed
        Random seed of the assignment of scenes to folds.
    """

    count: int
    fold: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 2 or not 0 <= self.fold < self.count:
            raise UsageError(
                f"folds={self.count}, fold={self.fold}: use at least 2 folds, and fold in "
                f"0..{max(self.count, 2) - 1}"
            )


@dataclass(frozen=True, slots=True)
class Selection:
    """The usable tiles of a split of one store, and the number of others by reason."""

    tiles: NDArray[np.int64]
    left_out: dict[str, int] = field(default_factory=dict)


def select(store: StoreReader, split: Split, folds: Folds | None = None) -> Selection:
    """Return the usable tiles of a split: of scenes that are ``ok``, with at least one valid pixel.

    Training tiles of classes also need a pixel with a class: polygons of a few places leave most
    tiles of a scene without one, and those would only take time.

    Parameters
    ----------
    store
        The store; its split column is not changed by ``folds``.
    split
        ``train``, ``val``, ``test``, or ``all`` for the three together. Tiles that the store marks
        as unused, because they overlap another split, are in none.
    folds
        Assign train and val anew; ``test`` stays as it is. None for the splits of the store.

    Raises
    ------
    UsageError
        The split is unknown, or there are fewer scenes than folds.
    """
    if split not in get_args(Split):
        raise UsageError(f"split={split!r} is not one of {', '.join(get_args(Split))}")
    table = store.tiles
    splits = table.split if folds is None or split == "all" else _refold(store, folds)
    wanted = splits < len(SPLITS) if split == "all" else splits == SPLITS.index(split)
    status = store.scenes.status[table.scene].astype(object)
    status[(status == "ok") & (table.valid_fraction <= 0)] = EMPTY
    if split == "train" and store.meta.has_classes:
        status[(status == "ok") & ~store.class_pixels.any(axis=1)] = "unlabelled"
    left_out = Counter(str(s) for s in status[wanted] if s != "ok")
    return Selection(np.flatnonzero(wanted & (status == "ok")), dict(sorted(left_out.items())))


def _refold(store: StoreReader, folds: Folds) -> NDArray[np.uint8]:
    """Return the split of each tile under k-fold, balanced in usable scenes; test stays."""
    train, val, test = range(len(SPLITS))
    mine = store.tiles.split < test
    free = np.unique(store.tiles.scene[mine])
    groups, of_group = np.unique(store.groups[free], return_inverse=True)
    usable = np.bincount(of_group, store.scenes.status[free] == "ok")
    if np.count_nonzero(usable) < folds.count:
        raise UsageError(
            f"{store.location} has {np.count_nonzero(usable)} usable scenes outside its test split "
            "that do not belong together, too few for "
            f"folds={folds.count}: use fewer folds. Images with the same bytes, of one block or "
            "folder of splits, and images that overlap stay in one fold"
        )
    # Usable scenes are assigned first, so that they are balanced, not the failed ones.
    keys = (f"{folds.seed}:{store.scenes.id[group]}".encode() for group in groups)
    drawn = [hashlib.blake2b(key, digest_size=8).digest() for key in keys]
    sizes, fold = np.zeros(folds.count), np.empty(len(groups), np.int64)
    for group in sorted(range(len(groups)), key=lambda i: (not usable[i], drawn[i])):
        fold[group] = sizes.argmin()  # the first of equally small ones
        sizes[fold[group]] += usable[group] or np.count_nonzero(of_group == group)
    of_scene = np.full(len(store.scenes), test, np.uint8)
    of_scene[free] = np.where(fold[of_group] == folds.fold, val, train)
    again: NDArray[np.uint8] = np.where(mine, of_scene[store.tiles.scene], store.tiles.split)
    return again


ROW = np.dtype(
    [
        *(("store", "u2"), ("tile", "u4"), ("scene", "u4"), ("row", "u4"), ("col", "u4")),
        *(("transform", "f8", (6,)), ("road_fraction", "f4"), ("valid_fraction", "f4")),
    ]
)
"""Row of a tile in the table: number of its store, its row there, and columns of that table."""

TileTable = NDArray[np.void]
"""`ROW` of every tile."""


class Origin(NamedTuple):
    """Stores, level and scenes of tiles: everything but one row per tile, as JSON values."""

    side: int
    bands: Sequence[str]
    left_out: Mapping[str, int]
    stores: Sequence[str]
    finest: Sequence[int]  # tile side at the finest level, per store
    scenes: Sequence[Sequence[str]]  # id of every scene, per store
    crs: Sequence[Sequence[str]]
    classes: Sequence[str] = ()  # in the order of label values; empty for labels of speeds


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Tiles to load, before any pixel is read."""

    name: str
    origin: Origin
    table: TileTable
    stores: tuple[StoreReader, ...]

    def nbytes(self, level: int, bands: int) -> int:
        """Return the bytes of all pixels at a level, images of some bands and labels."""
        return len(self.table) * level * level * (bands + 1)

    def arrays(self) -> list[Arrays]:
        """Open the pixels of each store."""
        _, bands, *_, classes = self.origin
        return [open_arrays(store, self.origin.side, bands, classes) for store in self.stores]

    def reads(self) -> Iterator[ShardRead]:
        """Yield the tiles to read, shard by shard."""
        at = 0
        for number, arrays in enumerate(self.arrays()):
            tiles = self.table["tile"][self.table["store"] == number].astype(np.int64)
            for rows in by_shard(tiles, arrays[0].layout.shard_tiles):
                yield ShardRead(arrays, rows, slice(at, at + len(rows)))
                at += len(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_plan, (self.name, self.origin, self.table)


def _reopen_plan(name: str, origin: Origin, table: TileTable) -> LoadPlan:
    return LoadPlan(name, origin, table, open_stores(origin.stores))


def open_stores(stores: Stores) -> tuple[StoreReader, ...]:
    """Open one store or several.

    Parameters
    ----------
    stores
        Paths, addresses or opened stores, which are returned as they are.

    Raises
    ------
    StoreError
        One of them cannot be used.
    UsageError
        The sequence is empty.
    """
    several = [stores] if isinstance(stores, str | Path | StoreReader) else list(stores)
    if not several:
        raise UsageError("no store given: name at least one")
    return tuple(s if isinstance(s, StoreReader) else StoreReader.open(s) for s in several)


class TileChoice(NamedTuple):
    """Which tiles, level, bands and classes to load, see `RamTiles.load`."""

    split: Split
    level: int | None
    bands: Sequence[str] | None
    classes: Sequence[str] | None
    folds: int | None
    fold: int
    split_seed: int


def plan_load(stores: Stores, choice: TileChoice) -> LoadPlan:
    """Open stores, and choose level, bands, classes and tiles."""
    split, level, bands, classes, folds, fold, seed = choice
    cut = None if folds is None else Folds(folds, fold, seed)
    opened = open_stores(stores)
    selections = [select(store, split, cut) for store in opened]
    left_out = dict(sum((Counter(part.left_out) for part in selections), Counter[str]()))
    origin = Origin(
        _common_level(opened, level),
        _common_bands(opened, bands),
        left_out,
        [store.location for store in opened],
        [store.meta.levels[0] for store in opened],
        [store.scenes.id.tolist() for store in opened],
        [store.scenes.crs.tolist() for store in opened],
        common_classes(opened, classes),
    )
    name = f"split {split!r} of {', '.join(origin.stores)}"
    table = np.concatenate(list(map(_rows, range(len(opened)), opened, selections)))
    if not len(table):
        reasons = ", ".join(f"{n} {why}" for why, n in left_out.items()) or "it is empty"
        raise UsageError(
            f"{name} has no tile to load ({reasons}): use another split, or build a store with "
            "more scenes"
        )
    return LoadPlan(name, origin, table, opened)


def _rows(number: int, store: StoreReader, selection: Selection) -> TileTable:
    rows = np.zeros(len(selection.tiles), ROW)
    rows["store"], rows["tile"] = number, selection.tiles
    for name in ("scene", "row", "col", "transform", "road_fraction", "valid_fraction"):
        rows[name] = getattr(store.tiles, name)[selection.tiles]
    return rows


def _common_level(stores: Readers, level: int | None) -> int:
    if level is None and len({s.meta.levels[0] for s in stores}) > 1:
        every = set.intersection(*(set(s.meta.levels) for s in stores))
        have = "; ".join(f"{s.location}: {', '.join(map(str, s.meta.levels))}" for s in stores)
        fix = f"level={max(every)}" if every else "stores built with the same `tile`"
        raise UsageError(f"the stores differ in their finest level ({have}): use {fix}")
    return {store.check_level(level) for store in stores}.pop()


def _common_bands(stores: Readers, bands: Sequence[str] | None) -> tuple[str, ...]:
    wanted = tuple(stores[0].meta.bands if bands is None else bands)
    if not wanted:
        raise UsageError("bands is empty: name at least one, or leave it out for all")
    for store in stores:
        if bands is None and store.meta.bands != wanted:
            raise UsageError(
                f"{store.location} has bands {', '.join(store.meta.bands)}, {stores[0].location} "
                f"has {', '.join(wanted)}: name the common ones with bands=(...)"
            )
        band_places(store, wanted)
    return wanted


def common_classes(stores: Readers, classes: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the names of the classes of stores, in the order of the first; none for speeds.

    Parameters
    ----------
    stores
        Opened stores.
    classes
        Names of the classes that every store must have, in the wanted order; None for those of
        the first store.

    Raises
    ------
    UsageError
        Some stores hold classes and others speeds, or the classes differ.
    """
    first = stores[0]
    wanted = tuple(first.meta.class_names if classes is None else classes)
    reference = first.location if classes is None else "`classes`"
    for store in stores:
        names = tuple(store.meta.class_names)
        if bool(names) != bool(wanted):
            kinds = [f"labels of {'classes' if given else 'speeds'}" for given in (names, wanted)]
            raise UsageError(
                f"{store.location} has {kinds[0]}, {reference} {kinds[1]}: use stores of one kind"
            )
        if set(names) != set(wanted):
            raise UsageError(
                f"{store.location} and {reference} differ in the classes "
                f"{', '.join(sorted(set(names) ^ set(wanted)))}: build the stores with the same "
                "`classes`"
            )
    return wanted


def band_places(store: StoreReader, bands: Sequence[str]) -> list[int]:
    """Return the indexes of bands, by name, in the pixels of a store."""
    has = store.meta.bands
    unknown = [band for band in bands if band not in has]
    if unknown:
        raise UsageError(
            f"{store.location} has no band {', '.join(unknown)}; it has {', '.join(has)}"
        )
    return [has.index(band) for band in bands]


def check_fits(plan: LoadPlan, compressed: int | None = None) -> None:
    """Raise UsageError unless tiles (or ``compressed`` bytes of chunks) fit; it says what would."""
    level, bands = plan.origin.side, len(plan.origin.bands)
    need = plan.nbytes(level, bands) if compressed is None else compressed
    left = available_memory()
    limit = left.nbytes - RESERVE
    if need <= limit:
        return
    levels = set.intersection(*(set(s.meta.levels) for s in plan.stores))
    coarser = sorted(n for n in levels if plan.nbytes(n, bands) <= limit)
    ways = [*(f"level={n}" for n in coarser[-1:]), "fewer bands="]
    if compressed is None:
        ways.append('keep="compressed", which decodes tiles for every batch')
    ways.append("StreamTiles.open(...), which keeps only a part of them in memory")
    raise UsageError(
        f"{plan.name} takes {format_bytes(need)} {'' if compressed is None else 'compressed '}"
        f"({len(plan.table)} tiles of {level} x {level} x {bands} and labels); "
        f"{left.limited_by} has {format_bytes(left.nbytes)} left, of which "
        f"{format_bytes(RESERVE)} stay free. Use {', or '.join(ways)}"
    )
