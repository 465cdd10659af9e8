"""What a build would make and take, from its plan and from one scene that is built for a trial."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from geoprep.building.labels import forget
from geoprep.building.records import ScenePart, ShardRecord, ShardTask
from geoprep.building.summary import odd_road_share
from geoprep.building.tasks import build_shard
from geoprep.errors import StoreError
from geoprep.plan import Plan, PlannedScene
from geoprep.speed import BACKGROUND, NODATA
from geoprep.store import SPLIT_NAMES

MOST_SAMPLED: Final = 32
"""Tiles of the scene that is tried: a shard's worth."""

MOST_COMPRESSION: Final = 250
"""LZ4 makes at most 255 bytes of one: a disk with less room than that cannot hold the store."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a build would make.

    Attributes
    ----------
    scenes, tiles, levels, splits
        Of the store; ``splits`` counts tiles.
    memory_bytes
        Of all tiles in memory, image and mask, by level.
    disk_bytes
        Of the store, by how well the sampled tiles were compressed.
    free_bytes
        On the disk that it would go to; None for a bucket, which has no end.
    seconds
        Wall time by the rate at which the sampled scene was built, on so many workers.
    sample
        Id of that scene, and its tiles that were built.
    unlabelled
        Scenes without a label.
    failures
        (scene id, reason) of scenes that would fail; damage within a file is found by the build.
    orphan_labels
        Labels that belong to no scene.
    warnings
        What was built as asked but is probably not as meant.
    """

    scenes: int
    tiles: int
    levels: tuple[int, ...]
    splits: dict[str, int]
    memory_bytes: dict[str, int]
    disk_bytes: int
    free_bytes: int | None
    seconds: float
    workers: int
    sample: tuple[str, int]
    unlabelled: int
    failures: tuple[tuple[str, str], ...]
    orphan_labels: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def rehearse(plan: Plan, out: str | Path, workers: int) -> Rehearsal:
    """Build some tiles of one scene in a temporary folder, and reckon what all would take.

    The scene is the middle one by size of those that can be built, labelled ones before others. It
    is built twice: the first time compiles, the second is timed. Scenes that lie in several shards
    are read once more before, which counts.

    Raises
    ------
    StoreError
        The disk is too small however well the store is compressed.
    """
    free = free_bytes(out) if isinstance(out, Path) else None
    if free is not None:
        require_room(plan, out, free)
    sample = _sample(plan)
    index, scene = sample
    record, seconds = _tried(plan, index, scene)
    built = len(record.valid_fraction)
    share = plan.tiles / built
    surveyed = sum(len(one.windows) for one in plan.scenes if plan.needs_survey(one)) / plan.tiles
    seconds += surveyed * record.seconds.get("decode", 0.0)
    split_of = [split for one in plan.scenes for split in one.splits]
    return Rehearsal(
        scenes=len(plan.scenes),
        tiles=plan.tiles,
        levels=plan.meta.levels,
        splits={n: split_of.count(i) for i, n in enumerate(SPLIT_NAMES) if i in split_of},
        memory_bytes={str(level): plan.tiles * _tile_bytes(plan, level) for level in _levels(plan)},
        disk_bytes=round(share * sum(size for _, size in record.files.values())),
        free_bytes=free,
        seconds=share * seconds / workers,
        workers=workers,
        sample=(scene.id, built),
        unlabelled=sum(one.label is None for one in plan.scenes),
        failures=tuple((one.id, one.failure) for one in plan.scenes if one.failure),
        orphan_labels=plan.orphan_labels,
        warnings=tuple(_warnings(plan, scene, record)),
    )


def _warnings(plan: Plan, scene: PlannedScene, record: ShardRecord) -> Iterator[str]:
    built = record.scenes.values()
    if scene.label is not None and all(outcome.status == "ok" for outcome in built):
        labelled = sum(record.histogram_speed[:NODATA])
        share = sum(record.histogram_speed[BACKGROUND + 1 : NODATA]) / max(labelled, 1)
        if labelled:
            yield from odd_road_share(plan, share, f"the labelled pixels of {scene.id}")


def require_room(plan: Plan, out: str | Path, free: int) -> None:
    """Refuse a store that cannot fit on its disk however well it is compressed.

    Raises
    ------
    StoreError
        With both sizes, and what makes the store smaller.
    """
    raw = plan.tiles * sum(_tile_bytes(plan, level) for level in _levels(plan))
    if raw > MOST_COMPRESSION * free:
        raise StoreError(
            f"{out} would hold {raw / 1e12:,.1f} TB of pixels, and its disk has "
            f"{free / 1e9:,.1f} GB free: use a larger --gsd, fewer --levels or bands, or another "
            "--out"
        )


def free_bytes(out: Path) -> int:
    """Return how much room the disk of a folder has, whether the folder is there or not."""
    out = out.absolute()
    return shutil.disk_usage(next(one for one in (out, *out.parents) if one.is_dir())).free


def _levels(plan: Plan) -> tuple[int, ...]:
    return plan.meta.levels


def _tile_bytes(plan: Plan, level: int) -> int:
    return level**2 * (len(plan.meta.bands) + 1)


def _sample(plan: Plan) -> tuple[int, PlannedScene]:
    usable = [(i, scene) for i, scene in enumerate(plan.scenes) if not scene.failure]
    if not usable:
        raise StoreError(f"no scene could be built; the first: {plan.scenes[0].failure}")
    labelled = [one for one in usable if one[1].label is not None] or usable
    ranked = sorted(labelled, key=lambda one: (one[1].shape[0] * one[1].shape[1], one[0]))
    return ranked[len(ranked) // 2]


def _tried(plan: Plan, index: int, scene: PlannedScene) -> tuple[ShardRecord, float]:
    """Build tiles from the scene's middle; return the record and the seconds of one thread."""
    middle = max(0, (len(scene.windows) - MOST_SAMPLED) // 2)
    part = ScenePart.of(index, scene, middle, middle + MOST_SAMPLED)
    part = replace(part, counted=(True,) * len(part.windows))  # the dearer of the two
    with tempfile.TemporaryDirectory(prefix="geoprep-") as folder:
        task = ShardTask.of(plan, folder, 0, [part])
        meta = replace(plan.meta, shard_tiles=len(part.windows))
        task = replace(task, stamp=folder, meta=meta)
        for _ in range(2):
            start = time.perf_counter()
            try:
                record = build_shard(task)
            finally:
                forget()
        return record, time.perf_counter() - start
