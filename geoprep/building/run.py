"""Execution of a plan: shards by an executor, a journal for resuming, and the tables at the end."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.building.plan import Plan
from geoprep.building.records import Outcome, SceneTiles, ShardRecord, ShardTask
from geoprep.building.request import Progress, Report
from geoprep.building.scene import Planned
from geoprep.building.shard import build_shard
from geoprep.building.summary import black_pixels, summarise
from geoprep.building.survey import survey
from geoprep.building.target import BucketTarget, DiskTarget, open_target
from geoprep.building.tile_run import release_outlines
from geoprep.errors import OutputError, StoreError
from geoprep.executors.threads import Executor
from geoprep.imagery.rows import release_rows
from geoprep.storage.addresses import split_address
from geoprep.storage.failures import errors_named
from geoprep.storage.sinks import open_sink
from geoprep.store.layout import shard_key
from geoprep.store.schema import HASH_BYTES, SceneTable, TileTable
from geoprep.store.writer import finish_store
from geoprep.views.stores import Summary


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


def build(
    plan: Plan,
    out: str | Path,
    executor: Executor,
    *,
    overwrite: bool = False,
    report: Report | None = None,
) -> Summary:
    """Build a store, resume an interrupted build, or find that the store is complete.

    ``overwrite`` replaces a store that is complete or was built differently; ``report`` is called
    after every task.
    """
    start = time.perf_counter()
    _keep_freed_memory()
    target = open_target(out)
    with errors_named(target.location, OutputError), target.locked() as journal:
        state = target.prepare(plan, overwrite=overwrite)
        if state == "complete":
            journal.remove()
            return summarise(plan, target.location, "unchanged", (), time.perf_counter() - start)
        kept = target.kept(plan) if state == "incomplete" else {}
        if state == "none":
            journal.restart()
        target.begin(plan, kept.values())
        histograms = Histograms(len(plan.meta.bands))
        for record in kept.values():
            histograms.take(record)
        new = {}
        try:
            surveyed = survey(plan, executor, journal, report)
            for record in _built(plan, target.folder, executor, kept, surveyed, report):
                journal.write({"stamp": plan.fingerprint, "shard": record.to_json()})
                new[record.shard] = histograms.take(record)
        finally:
            executor.run_everywhere(_release)
        records = kept | new
        if target.replaces:
            _require_a_scene(plan, target, records)
        target.finish(plan, records, lambda folder: finish(plan, folder, records, histograms))
        journal.remove()
    result: Literal["built", "resumed"] = "resumed" if kept else "built"
    black = black_pixels(plan, surveyed, records.values())
    seconds = time.perf_counter() - start
    return summarise(plan, target.location, result, new.values(), seconds, black)


def _release() -> None:
    """Release what the tasks of a process shared."""
    release_outlines()
    release_rows()


def _require_a_scene(
    plan: Plan, target: DiskTarget | BucketTarget, records: dict[int, ShardRecord]
) -> None:
    """Keep the old store and raise StoreError if no scene of its replacement could be built."""
    outcomes = scene_outcomes(plan, [records[shard] for shard in range(plan.shards)])
    if any(outcome.has_pixels for outcome in outcomes):
        return
    target.discard()
    raise StoreError(
        f"none of the scenes could be built ({outcomes[0].reason}), so "
        f"{target.location} was not replaced"
    )


def _keep_freed_memory() -> None:
    """Make glibc reuse the arrays of one scene for the next instead of mapping new pages.

    Freeing a block raises glibc's thresholds for mapping and trimming to the size of the block, of
    at most 32 MiB: 1700 page faults per chip become 3. Other allocators are not affected.
    """
    block = np.empty(31 << 20, np.uint8)
    del block


def _built(
    plan: Plan,
    out: str,
    executor: Executor,
    kept: Collection[int],
    surveyed: dict[int, Outcome],
    report: Report | None,
) -> Iterator[ShardRecord]:
    """Build the missing shards and yield the record of each once it is on the disk.

    Progress is reported after the caller has written the record to the journal.
    """
    total, before = _pixels(plan, range(plan.shards)), _pixels(plan, kept)
    done, read = before, 0
    sink = open_sink(out)
    if report:
        report(Progress("build", done, total, read, before))
    todo = (shard for shard in range(plan.shards) if shard not in kept)
    tasks = shard_tasks(plan, out, todo, surveyed)
    for record in executor.map_unordered(build_shard, tasks):
        sink.settle(shard_key(name, record.shard) for name in record.files)
        yield record
        done += _pixels(plan, [record.shard])
        read += record.source_bytes
        if report:
            report(Progress("build", done, total, read, before))


def _pixels(plan: Plan, shards: Iterable[int]) -> int:
    """Return the number of pixels of some shards at the finest level."""
    ranges = [plan.shard_range(shard) for shard in shards]
    return sum(stop - start for start, stop in ranges) * plan.meta.tile**2


def shard_tasks(
    plan: Plan, out: str, shards: Iterable[int], surveyed: dict[int, Outcome]
) -> Iterator[ShardTask]:
    """Yield the tasks of some shards, one at a time, since all would copy the plan."""
    firsts = np.array([scene.first_tile for scene in plan.scenes])
    for shard in shards:
        start, stop = plan.shard_range(shard)
        first = int(np.searchsorted(firsts, start, side="right")) - 1
        scenes = tuple(
            SceneTiles.of(i, plan.scenes[i], (start, stop), surveyed.get(i))
            for i in range(first, int(np.searchsorted(firsts, stop)))
        )
        common = plan.meta, plan.options, plan.shared_label
        yield ShardTask(plan.fingerprint, out, shard, *common, scenes)


# The tables of the store


def finish(
    plan: Plan, out: Path, records: Mapping[int, ShardRecord], histograms: Histograms
) -> None:
    """Write the tables from the records of all shards and mark the store complete."""
    ordered = [records[shard] for shard in range(plan.shards)]
    outcomes = scene_outcomes(plan, ordered)
    tiles, scenes = _tile_table(plan, ordered), _scene_table(plan, outcomes)
    notes = Counter[str]()
    for outcome in outcomes:
        notes.update(outcome.notes)
    meta = replace(plan.meta, build={**plan.meta.build, "notes": dict(sorted(notes.items()))})
    arrays: dict[str, NDArray[Any]] = {
        "histogram/band": histograms.band,
        f"histogram/{meta.label_array}": histograms.label,
    }
    if meta.has_classes:
        class_pixels = [histograms.class_pixels[shard] for shard in range(plan.shards)]
        arrays["class_pixels"] = np.concatenate(class_pixels)
    for name in meta.pixel_arrays():
        digests = b"".join(bytes.fromhex(record.files[name][0]) for record in ordered)
        arrays[f"ledger/{name}"] = np.frombuffer(digests, np.uint8).reshape(-1, HASH_BYTES)
    finish_store(out, meta, tiles, scenes, arrays)


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


def _transforms(scene: Planned) -> list[tuple[float, ...]]:
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


def _portable(reason: str, scene: Planned) -> str:
    """Return a reason without folders, since a store does not depend on where its inputs are."""
    for address in (*split_address(scene.image), scene.label or ""):
        # Of tar://OFFSET+SIZE/folder/of.tar!/member, the folder of the archive.
        folder = re.sub(r"^tar://\d+\+\d+|!/.*", "", address).rpartition("/")[0]
        if folder:
            reason = reason.replace(f"{folder}/", "")
    return reason
