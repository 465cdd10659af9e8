"""The dry run of a build: its size and duration, estimated from one scene that is built."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from geoprep.build.plan import Plan
from geoprep.build.planned_scene import PlannedScene
from geoprep.build.records import ScenePart, ShardRecord, ShardTask
from geoprep.build.splits import TRAIN
from geoprep.build.summary import road_share_warning
from geoprep.build.tasks import build_shard
from geoprep.errors import StoreError
from geoprep.storage import Files, free_bytes, is_bucket
from geoprep.store import SPLIT_NAMES

MOST_SAMPLED: Final = 32
"""Tiles of the scene that are built."""
_MOST_TRIED: Final = 5


@dataclass(frozen=True, slots=True)
class DryRun:
    """Size, duration and problems of a build, estimated by building some tiles of one scene."""

    scenes: int
    tiles: int
    levels: tuple[int, ...]
    splits: dict[str, int]  # tiles
    usable_tiles: int  # of labelled scenes, which loaders use unless they are nodata
    memory_bytes: dict[str, int]  # of the usable tiles, by level
    disk_bytes: int  # by the compression of the tiles that were built
    free_bytes: int | None  # on the disk of the store; None for a bucket
    replaced_bytes: int  # of a store that stays until the new one is complete
    seconds: float  # wall time, by the rate of the sample on this number of workers
    workers: int
    sample: tuple[str, int]  # id of the scene that was built, and number of tiles built
    unlabelled: int  # scenes without a label
    failures: tuple[tuple[str, str], ...]  # scene id, reason
    orphan_labels: tuple[str, ...]  # labels without an image
    warnings: tuple[str, ...]  # about a result that is probably not intended
    class_pixels: dict[str, int] = field(default_factory=dict)  # of the tiles that were built

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def dry_run(plan: Plan, out: str | Path, workers: int) -> DryRun:
    """Build some tiles of one scene in a temporary folder, and estimate the whole build.

    The scene is the median by size of those that can be built, labelled ones first; if it fails,
    the next ones are tried. It is built twice: once to compile, once to measure the time. Scenes
    in several shards are read once more for the survey, which is added.
    """
    free = None if is_bucket(out) else free_bytes(Path(out))
    failures = [(one.id, one.failure) for one in plan.scenes if one.failure]
    for index, scene in _samples(plan):
        record, seconds = _tried(plan, index, scene)
        outcome = record.scenes[str(index)]
        if outcome.has_pixels:
            break
        failures.append((scene.id, outcome.reason))
    built = len(record.valid_fraction)
    share = plan.tiles / built
    surveyed = sum(len(one.windows) for one in plan.scenes if plan.needs_survey(one)) / plan.tiles
    seconds += surveyed * record.seconds.get("decode", 0.0)
    disk_bytes = round(share * sum(size for _, size in record.files.values()))
    warnings = []
    if not outcome.has_pixels:
        disk_bytes = _raw_bytes(plan)
        warnings.append("no scene that was tried can be built: the size is without compression")
    class_pixels: dict[str, int] = {}
    if plan.meta.has_classes:
        totals = np.sum(record.class_pixels, axis=0).tolist()
        class_pixels = dict(zip(plan.meta.class_names, totals, strict=True))
        warnings += [f"{note}: {n:,} pixels of {scene.id}" for note, n in outcome.notes.items()]
    elif scene.label is not None:
        warnings.append(road_share_warning(plan, *_roads(record), f"scene {scene.id}"))
    split_of = Counter(split for one in plan.scenes for split in one.splits)
    labelled = [scene for scene in plan.scenes if scene.label is not None and not scene.failure]
    usable = sum(len(scene.windows) for scene in labelled)
    there = free is not None and Path(out).is_dir()
    replaced = sum(Files(out).sizes.values()) if there else 0
    return DryRun(
        scenes=len(plan.scenes),
        tiles=plan.tiles,
        levels=plan.meta.levels,
        splits={name: split_of[i] for i, name in enumerate(SPLIT_NAMES) if i in split_of},
        usable_tiles=usable,
        memory_bytes={str(level): usable * _tile_bytes(plan, level) for level in plan.meta.levels},
        disk_bytes=disk_bytes,
        free_bytes=free,
        replaced_bytes=replaced,
        seconds=share * seconds / workers,
        workers=workers,
        sample=(scene.id, built),
        unlabelled=sum(one.label is None for one in plan.scenes),
        failures=tuple(failures),
        orphan_labels=plan.orphan_labels,
        warnings=tuple(filter(None, warnings)),
        class_pixels=class_pixels,
    )


def _raw_bytes(plan: Plan) -> int:
    return plan.tiles * sum(_tile_bytes(plan, level) for level in plan.meta.levels)


def _tile_bytes(plan: Plan, level: int) -> int:
    return level**2 * (len(plan.meta.bands) + 1)


def _samples(plan: Plan) -> list[tuple[int, PlannedScene]]:
    """Return some scenes that may be built, that of the median size first."""
    usable = [(i, scene) for i, scene in enumerate(plan.scenes) if not scene.failure]
    if not usable:
        raise StoreError(f"no scene can be built. First: {plan.scenes[0].failure}")
    labelled = [one for one in usable if one[1].label is not None] or usable
    ranked = sorted(labelled, key=lambda one: (one[1].shape[0] * one[1].shape[1], one[0]))
    middle = len(ranked) // 2
    order = sorted(range(len(ranked)), key=lambda i: abs(i - middle))
    return [ranked[i] for i in order[:_MOST_TRIED]]


def _tried(plan: Plan, index: int, scene: PlannedScene) -> tuple[ShardRecord, float]:
    """Build tiles from the middle of a scene; return the record and the seconds of one thread."""
    middle = max(0, (len(scene.windows) - MOST_SAMPLED) // 2)
    part = ScenePart.of(index, scene, middle, middle + MOST_SAMPLED)
    count = len(part.scene.windows)
    # Training tiles, which are counted and so take longer.
    part = replace(part, scene=replace(part.scene, splits=(TRAIN,) * count))
    with tempfile.TemporaryDirectory(prefix="geoprep-") as folder:
        task = ShardTask.of(plan, folder, 0, [part])
        meta = replace(plan.meta, shard_tiles=count)
        task = replace(task, meta=meta)
        for number in range(2):
            start = time.perf_counter()
            record = build_shard(replace(task, fingerprint=f"{folder} {number}"))
        return record, time.perf_counter() - start


def _roads(record: ShardRecord) -> tuple[float, float]:
    """Return the numbers of road pixels and labelled pixels of a record, up to a common factor."""
    shares = zip(record.road_fraction, record.valid_fraction, strict=True)
    return sum(road * valid for road, valid in shares), sum(record.valid_fraction)
