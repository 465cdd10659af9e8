"""Execution of a plan: shards by an executor, a journal for resuming, one commit at the end."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from geoprep.build.commit import Histograms, scene_outcomes
from geoprep.build.plan import Plan
from geoprep.build.records import (
    Outcome,
    Progress,
    Report,
    ScenePart,
    ShardRecord,
    ShardTask,
)
from geoprep.build.road_ground import release_ground
from geoprep.build.summary import Summary, black_pixels, summarise
from geoprep.build.survey import survey
from geoprep.build.target import BucketTarget, DiskTarget, open_target
from geoprep.build.tasks import build_shard, try_scenes
from geoprep.errors import OutputError, StoreError
from geoprep.executors import Executor, Survives
from geoprep.storage import errors_named, open_sink
from geoprep.store import shard_key


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
            executor.run_everywhere(release_ground)
        if target.replaces:
            _require_a_scene(plan, target, kept | new)
        target.finish(plan, kept | new, histograms)
        journal.remove()
    result: Literal["built", "resumed"] = "resumed" if kept else "built"
    black = black_pixels(plan, surveyed, (kept | new).values())
    seconds = time.perf_counter() - start
    return summarise(plan, target.location, result, new.values(), seconds, black)


def _require_a_scene(
    plan: Plan, target: DiskTarget | BucketTarget, records: dict[int, ShardRecord]
) -> None:
    """Keep the old store and raise StoreError if no scene of its replacement could be built."""
    outcomes = scene_outcomes(plan, [records[shard] for shard in range(plan.shards)])
    if any(outcome.has_pixels for outcome in outcomes):
        return
    target.discard()
    raise StoreError(
        f"none of the {len(outcomes)} scenes could be built ({outcomes[0].reason}), so "
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
    for record in executor.map_unordered(build_shard, tasks, _without_killers):
        sink.settle(shard_key(name, record.shard) for name in record.files)
        yield record
        done += _pixels(plan, [record.shard])
        read += record.source_bytes
        if report:
            report(Progress("build", done, total, read, before))


def _without_killers(task: ShardTask, survives: Survives[ShardTask]) -> ShardTask:
    """Return the task with the scenes that crash a worker marked as failed."""
    parts = []
    for part in task.parts:
        if not survives(try_scenes, replace(task, parts=(part,))):
            why = f"{part.scene.image}: building it crashes the process. Download the scene again"
            part = replace(part, surveyed=Outcome("failed", why))
        parts.append(part)
    return replace(task, parts=tuple(parts))


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
        parts = []
        for i in range(first, int(np.searchsorted(firsts, stop))):
            scene = plan.scenes[i]
            low, high = max(start - scene.first_tile, 0), stop - scene.first_tile
            parts.append(ScenePart.of(i, scene, low, high, surveyed.get(i)))
        yield ShardTask.of(plan, out, shard, parts)
