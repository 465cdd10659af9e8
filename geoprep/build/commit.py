"""The commit of a build: the tables of the store from the records of all shards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoprep.build.plan import Plan
from geoprep.build.records import Outcome, ShardRecord
from geoprep.build.scene import PlannedScene
from geoprep.storage import split_address
from geoprep.store import HASH_BYTES, SceneTable, TileTable, finish_store


class Histograms:
    """Sum of the histograms of all shards, which would take most of a build's memory separately."""

    def __init__(self, bands: int) -> None:
        self.band = np.zeros((bands, 256), np.uint64)
        self.label = np.zeros(256, np.uint64)
        self.class_pixels: dict[int, NDArray[np.uint32]] = {}  # shard: (tile, class)

    def take(self, record: ShardRecord) -> ShardRecord:
        """Add the counts of a shard; return its record without them."""
        self.band += np.array(record.histogram_band, np.uint64)
        self.label += np.array(record.histogram_speed, np.uint64)
        if record.class_pixels:
            self.class_pixels[record.shard] = np.array(record.class_pixels, np.uint32)
        record.histogram_band, record.histogram_speed, record.class_pixels = [], [], []
        return record


def finish(plan: Plan, out: Path, records: dict[int, ShardRecord], histograms: Histograms) -> None:
    """Write the tables from the records of all shards and mark the store complete."""
    ordered = [records[shard] for shard in range(plan.shards)]
    outcomes = scene_outcomes(plan, ordered)
    tiles, scenes = _tile_table(plan, ordered), _scene_table(plan, outcomes)
    notes = Counter[str]()
    for outcome in outcomes:
        notes.update(outcome.notes)
    meta = replace(plan.meta, build={**plan.meta.build, "notes": dict(sorted(notes.items()))})
    ledger = {
        name: np.array(
            [np.frombuffer(bytes.fromhex(r.files[name][0]), np.uint8) for r in ordered], np.uint8
        ).reshape(len(ordered), HASH_BYTES)
        for name in plan.meta.pixel_arrays()
    }
    finish_store(
        out,
        meta,
        tiles,
        scenes,
        histograms.band,
        histograms.label,
        ledger,
        np.concatenate([histograms.class_pixels[shard] for shard in range(plan.shards)])
        if plan.meta.has_classes
        else None,
    )


def scene_outcomes(plan: Plan, ordered: Iterable[ShardRecord]) -> list[Outcome]:
    """Return one outcome per scene; for a scene in several shards the worst."""
    outcomes: list[Outcome | None] = [None] * len(plan.scenes)
    for record in ordered:
        for index, outcome in record.scenes.items():
            before = outcomes[int(index)]
            if before is None or before.has_pixels:
                outcomes[int(index)] = outcome
    return [outcome or Outcome("failed", "never built") for outcome in outcomes]


def _tile_table(plan: Plan, ordered: Sequence[ShardRecord]) -> TileTable:
    counts = [len(scene.windows) for scene in plan.scenes]
    windows = np.array([w for scene in plan.scenes for w in scene.windows], np.uint32)
    transforms = [t for scene in plan.scenes for t in _transforms(scene)]
    return TileTable(
        scene=np.repeat(np.arange(len(plan.scenes), dtype=np.uint32), counts),
        row=windows[:, 0].copy(),
        col=windows[:, 1].copy(),
        split=np.array([split for s in plan.scenes for split in s.splits], np.uint8),
        transform=np.array(transforms, np.float64),
        road_fraction=np.array([v for r in ordered for v in r.road_fraction], np.float32),
        valid_fraction=np.array([v for r in ordered for v in r.valid_fraction], np.float32),
    )


def _transforms(scene: PlannedScene) -> list[tuple[float, ...]]:
    """Return the affine of every tile of a scene, as six numbers."""
    grid = scene.target
    if grid is None:
        return [(float("nan"),) * 6] * len(scene.windows)
    return [tuple(grid.window(*window, 1, 1).transform)[:6] for window in scene.windows]


def _scene_table(plan: Plan, outcomes: Sequence[Outcome]) -> SceneTable:
    nothing = float("nan")
    bands = len(plan.meta.bands)
    limits = np.full((len(outcomes), bands, 2), nothing)
    for i, outcome in enumerate(outcomes):
        if outcome.limits:
            limits[i] = outcome.limits
    return SceneTable(
        id=np.array([s.id for s in plan.scenes], object),
        crs=np.array([s.grid.crs if s.grid else "" for s in plan.scenes], object),
        bounds=np.array([s.grid.bounds if s.grid else (nothing,) * 4 for s in plan.scenes]),
        limits=limits,
        status=np.array([o.status for o in outcomes], object),
        reason=np.array(
            [_portable(o.reason, s) for o, s in zip(outcomes, plan.scenes, strict=True)], object
        ),
    )


def _portable(reason: str, scene: PlannedScene) -> str:
    """Return a reason without folders, since a store does not depend on where its inputs are."""
    for address in (*split_address(scene.image), *split_address(scene.label or "")):
        # Of tar://OFFSET+SIZE/folder/of.tar!/member, the folder of the archive.
        place = re.sub(r"^tar://\d+\+\d+|!/.*", "", address)
        folder = place.rpartition("/")[0]
        if folder:
            reason = reason.replace(f"{folder}/", "")
    return reason
