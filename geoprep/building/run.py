"""Carry out a plan: shards through an executor, a journal to resume from, one commit at the end."""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from geoprep.building.commit import Histograms
from geoprep.building.labels import forget
from geoprep.building.records import Outcome, Progress, Report, ScenePart, ShardRecord, ShardTask
from geoprep.building.rehearsal import free_bytes, require_room
from geoprep.building.summary import Summary, summarise
from geoprep.building.survey import Known, survey
from geoprep.building.target import target_of
from geoprep.building.tasks import build_shard, try_scenes
from geoprep.errors import StoreError
from geoprep.executors import Dask, Executor
from geoprep.plan import Plan, PlannedScene
from geoprep.storage import open_sink
from geoprep.store import shard_key

__all__ = ["Progress", "Report", "build"]


def build(
    plan: Plan,
    out: str | Path,
    executor: Executor,
    *,
    overwrite: bool = False,
    report: Report | None = None,
) -> Summary:
    """Build a store, or finish one, or find that it is complete already.

    Parameters
    ----------
    plan
        From :func:`geoprep.plan.plan.make_plan`.
    out
        The store's folder, or an ``s3://`` address.
    executor
        Runs the tasks.
    overwrite
        Replace a store that is complete, or was built otherwise; one from the same inputs that is
        not complete is carried on with.
    report
        Called after every task.

    Raises
    ------
    StoreError
        Something else is in the way, another build is running, or the disk is full.
    UsageError
        ``out`` is neither a folder of this machine nor in a bucket.
    OutputError
        The bucket cannot be written to.
    """
    start = time.perf_counter()
    _keep_freed_memory()
    target = target_of(out)
    with _disk_errors(target.location), target.journal as journal:
        state = target.existing(plan, overwrite=overwrite)
        if state == "complete":
            journal.remove()
            return summarise(plan, target.location, "unchanged", (), time.perf_counter() - start)
        if isinstance(out, Path):
            require_room(plan, out, free_bytes(out))
        kept = target.kept(plan) if state == "incomplete" else {}
        if not kept:
            journal.restart()
        target.begin(plan)
        histograms = Histograms(len(plan.meta.bands))
        for record in kept.values():
            histograms.take(record)
        new = {}
        try:
            known = survey(plan, executor, journal, report)
            for record in _built(plan, target.location, executor, kept, known, report):
                journal.write({"stamp": plan.stamp, "shard": record.to_json()})
                new[record.shard] = histograms.take(record)
        finally:
            forget()
        target.finish(plan, kept | new, histograms)
        journal.remove()
    went: Literal["built", "resumed"] = "resumed" if kept else "built"
    return summarise(
        plan,
        target.location,
        went,
        new.values(),
        time.perf_counter() - start,
        _black(plan, known, [*kept.values(), *new.values()]),
    )


def _black(plan: Plan, known: dict[int, Known], records: Iterable[ShardRecord]) -> dict[str, int]:
    """Return scene id -> number of pixels that are nodata only because they are black."""
    found = {index: one.black for index, one in known.items() if one.black}
    found |= {int(index): count for one in records for index, count in one.black.items()}
    return {plan.scenes[index].id: found[index] for index in sorted(found)}


def _keep_freed_memory() -> None:
    """Let glibc reuse the arrays of one scene for the next, instead of faulting them in again.

    Freeing a block raises its thresholds for mapping and trimming to the block's size, of at most
    32 MiB: 1700 page faults per chip become 3. Other allocators do not care.
    """
    del_me = np.empty(31 << 20, np.uint8)
    del del_me


def _built(
    plan: Plan,
    out: str,
    executor: Executor,
    kept: Collection[int],
    known: dict[int, Known],
    report: Report | None,
) -> Iterator[ShardRecord]:
    """Build the shards that are missing, and yield each once it is on the disk.

    It counts as done, and is reported, when the caller asks for the next one: with its record on
    the disk as well.
    """
    total, before = _pixels(plan, range(plan.shards)), _pixels(plan, kept)
    done, read = before, 0
    sink = open_sink(out)
    if report:
        report(Progress("build", done, total, read, before))
    todo = (shard for shard in range(plan.shards) if shard not in kept)
    tasks = shard_tasks(plan, out, todo, known)
    for record in _records(executor, tasks):
        sink.settle(shard_key(name, record.shard) for name in record.files)
        yield record
        done += _pixels(plan, [record.shard])
        read += record.source_bytes
        if report:
            report(Progress("build", done, total, read, before))


def _records(executor: Executor, tasks: Iterable[ShardTask]) -> Iterator[ShardRecord]:
    """Yield the records of shards; what a cluster's workers die over is looked into."""
    if isinstance(executor, Dask):
        return executor.map_unordered(build_shard, tasks, partial(_without_killers, executor))
    return executor.map_unordered(build_shard, tasks)


def _without_killers(executor: Dask, task: ShardTask) -> ShardTask:
    """Return a task whose scenes a worker survives; what GDAL dies of has failed, and alone."""
    parts = []
    for part in task.parts:
        if not executor.survives(try_scenes, replace(task, parts=(part,))):
            why = f"{part.image}: reading or drawing it ends the process; fetch the scene again"
            part = replace(part, known=Outcome("failed", why))
        parts.append(part)
    return replace(task, parts=tuple(parts))


def _pixels(plan: Plan, shards: Iterable[int]) -> int:
    """Return how many pixels of the finest level some shards hold."""
    ranges = [plan.shard_range(shard) for shard in shards]
    return sum(stop - start for start, stop in ranges) * plan.meta.tile**2


def shard_tasks(
    plan: Plan, out: str, shards: Iterable[int], known: dict[int, Known]
) -> Iterator[ShardTask]:
    """Yield the tasks of some shards, one at a time: all of them would hold the plan twice."""
    firsts = np.array([scene.first_tile for scene in plan.scenes])
    for shard in shards:
        yield _shard_task(plan, out, shard, known, firsts)


def _shard_task(
    plan: Plan, out: str, shard: int, known: dict[int, Known], firsts: NDArray[np.int64]
) -> ShardTask:
    start, stop = plan.shard_range(shard)
    parts = []
    for i, scene in _scenes_between(plan, start, stop, firsts):
        low = max(start - scene.first_tile, 0)
        high = min(stop - scene.first_tile, len(scene.windows))
        part, told = ScenePart.of(i, scene, low, high), known.get(i)
        if told:
            part = replace(part, known=told.outcome, missing=told.missing)
        parts.append(part)
    return ShardTask.of(plan, out, shard, parts)


def _scenes_between(
    plan: Plan, start: int, stop: int, firsts: NDArray[np.int64]
) -> Iterator[tuple[int, PlannedScene]]:
    first = int(np.searchsorted(firsts, start, side="right")) - 1
    for i in range(first, len(plan.scenes)):
        if plan.scenes[i].first_tile >= stop:
            return
        yield i, plan.scenes[i]


@contextmanager
def _disk_errors(out: str) -> Iterator[None]:
    """Turn a full disk into words; whatever was finished stays for the next run."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StoreError(
            f"no space left on the disk of {out}: free some and run the same command again; the "
            "shards that are finished are kept"
        ) from error
