"""What loading a split takes, and doing it: choose, refuse or reserve, read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError, UsageError
from geoprep.store import Store
from loaders.chunks import ChunkReader
from loaders.limits import available_memory
from loaders.reading import Progress, pieces, read_all
from loaders.selection import Folds, Selection, Split, select
from loaders.shared import SharedArrays

RESERVE = 200 << 20
"""Bytes to leave free beside the tiles: what reading takes on top of them."""

TABLE_COLUMNS: dict[str, tuple[str, tuple[int, ...]]] = {
    "store": ("uint16", ()),
    "tile": ("uint32", ()),
    "scene": ("uint32", ()),
    "row": ("uint32", ()),
    "col": ("uint32", ()),
    "transform": ("float64", (6,)),
    "road_fraction": ("float32", ()),
    "valid_fraction": ("float32", ()),
}
"""Columns kept with the pixels: row of the store and tile, and what the store's table says."""


@dataclass(frozen=True)
class Plan:
    """Tiles to load, before a byte of them is read.

    Attributes
    ----------
    stores
        The stores, in the order of their tiles.
    selections
        The tiles of each.
    split
        Name of the split.
    level
        Tile side in pixels, the same in all stores.
    bands
        Names of the bands to keep.
    """

    stores: tuple[Store, ...]
    selections: tuple[Selection, ...]
    split: str
    level: int
    bands: tuple[str, ...]

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return sum(len(s.tiles) for s in self.selections)

    @property
    def left_out(self) -> dict[str, int]:
        """Tiles of the split that cannot be used, by reason."""
        return dict(sum((Counter(s.left_out) for s in self.selections), Counter[str]()))

    def nbytes(self, level: int, bands: int) -> int:
        """Return the bytes of all pixels at a level, with so many bands."""
        return self.tiles * level * level * (bands + 1)

    @property
    def name(self) -> str:
        """The stores and the split, for messages."""
        return f"split {self.split!r} of {', '.join(s.location for s in self.stores)}"


def plan_load(
    stores: Sequence[Store],
    split: Split,
    level: int | None,
    bands: Sequence[str] | None,
    folds: Folds | None,
) -> Plan:
    """Choose level, bands and tiles.

    Raises
    ------
    StoreError
        A store lacks the level.
    UsageError
        Stores do not match, a band is unknown, or no tile is left.
    """
    selections = tuple(select(store, split, folds) for store in stores)
    plan = Plan(
        tuple(stores), selections, split, _common_level(stores, level), _common_bands(stores, bands)
    )
    if plan.tiles == 0:
        reasons = ", ".join(f"{n} {why}" for why, n in plan.left_out.items()) or "it is empty"
        raise UsageError(
            f"{plan.name} has no tile to load ({reasons}): take another split, or build a store "
            "with more scenes"
        )
    return plan


def _common_level(stores: Sequence[Store], level: int | None) -> int:
    if level is None and len({s.meta.levels[0] for s in stores}) > 1:
        every = set.intersection(*(set(s.meta.levels) for s in stores))
        have = "; ".join(f"{s.location}: {', '.join(map(str, s.meta.levels))}" for s in stores)
        fix = f"level={max(every)}" if every else "stores built with the same --tile"
        raise UsageError(f"the stores differ in their finest level ({have}): take {fix}")
    found = {store.check_level(level) for store in stores}
    return found.pop()


def _common_bands(stores: Sequence[Store], bands: Sequence[str] | None) -> tuple[str, ...]:
    wanted = tuple(stores[0].meta.bands if bands is None else bands)
    if not wanted:
        raise UsageError("bands is empty: name at least one, or leave it out for all")
    for store in stores:
        if bands is None and store.meta.bands != wanted:
            raise UsageError(
                f"{store.location} has bands {', '.join(store.meta.bands)}, {stores[0].location} "
                f"has {', '.join(wanted)}: name those they share with bands=(...)"
            )
        unknown = [band for band in wanted if band not in store.meta.bands]
        if unknown:
            raise UsageError(
                f"{store.location} has no band {', '.join(unknown)}; it has "
                f"{', '.join(store.meta.bands)}"
            )
    return wanted


def check_fits(plan: Plan) -> None:
    """Refuse a plan that memory cannot hold.

    Raises
    ------
    UsageError
        With figures, and what would fit.
    """
    need = plan.nbytes(plan.level, len(plan.bands))
    left = available_memory()
    room = left.nbytes - RESERVE
    if need <= room:
        return
    levels = set.intersection(*(set(s.meta.levels) for s in plan.stores))
    coarser = [
        f"level={level} ({plan.nbytes(level, len(plan.bands)) / 1e9:.2f} GB)"
        for level in sorted(levels, reverse=True)
        if level < plan.level and plan.nbytes(level, len(plan.bands)) <= room
    ]
    fewer = [
        f"bands= with {n} of {len(plan.bands)} bands ({plan.nbytes(plan.level, n) / 1e9:.2f} GB)"
        for n in range(len(plan.bands) - 1, 0, -1)
        if plan.nbytes(plan.level, n) <= room
    ]
    ways = [*coarser[:1], *fewer[:1], "StreamTiles.open(...), which keeps a window of it in memory"]
    raise UsageError(
        f"{plan.name} takes {need / 1e9:.2f} GB ({plan.tiles} tiles of {plan.level} x "
        f"{plan.level} x {len(plan.bands)} and masks); {left.limited_by} has "
        f"{left.nbytes / 1e9:.2f} GB left, of which {RESERVE / 1e9:.2f} GB are kept free. "
        f"Take {', or '.join(ways)}"
    )


def load_plan(plan: Plan, *, threads: int, progress: Progress | None) -> SharedArrays:
    """Read everything into new shared memory; it is read-only when it is returned.

    Raises
    ------
    StoreError
        A shard is corrupted or missing.
    """
    arrays = _reserve(plan)
    at = 0
    work = []
    for number, (store, selection) in enumerate(zip(plan.stores, plan.selections, strict=True)):
        _fill_table(arrays, store, number, selection.tiles, at)
        reader = ChunkReader(store, plan.level, _band_indexes(store, plan.bands))
        work += [(reader, p) for p in pieces(selection.tiles, store.meta.shard_tiles, at)]
        at += len(selection.tiles)
    read_all(work, arrays["image"], arrays["speed"], threads=threads, progress=progress)
    arrays.freeze()
    return arrays


def _band_indexes(store: Store, bands: tuple[str, ...]) -> tuple[int, ...] | None:
    if store.meta.bands == bands:
        return None
    return tuple(store.meta.bands.index(band) for band in bands)


def _reserve(plan: Plan) -> SharedArrays:
    check_fits(plan)
    n, side = plan.tiles, plan.level
    meta = np.frombuffer(json.dumps(_meta(plan)).encode(), np.uint8)
    layout: dict[str, tuple[Any, tuple[int, ...]]] = {
        "image": ("uint8", (n, side, side, len(plan.bands))),
        "speed": ("uint8", (n, side, side)),
        "meta": ("uint8", meta.shape),
    }
    layout |= {name: (dtype, (n, *shape)) for name, (dtype, shape) in TABLE_COLUMNS.items()}
    arrays = SharedArrays.create(layout)
    arrays["meta"][:] = meta
    return arrays


def _meta(plan: Plan) -> dict[str, Any]:
    """Return what is not one row a tile, as JSON values."""
    return {
        "split": plan.split,
        "bands": plan.bands,
        "left_out": plan.left_out,
        "stores": [store.location for store in plan.stores],
        "finest": [store.meta.levels[0] for store in plan.stores],
        "scenes": [store.scenes.id.tolist() for store in plan.stores],
        "crs": [store.scenes.crs.tolist() for store in plan.stores],
    }


def _fill_table(
    arrays: SharedArrays, store: Store, number: int, tiles: NDArray[np.int64], at: int
) -> None:
    rows = slice(at, at + len(tiles))
    if store.tiles.transform.shape[1:] != (6,):
        raise StoreError(f"{store.location}/transform is damaged: six numbers a tile are expected")
    arrays["store"][rows] = number
    arrays["tile"][rows] = tiles
    for name in ("scene", "row", "col", "transform", "road_fraction", "valid_fraction"):
        arrays[name][rows] = getattr(store.tiles, name)[tiles]
