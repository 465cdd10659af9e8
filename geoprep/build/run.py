"""Carry out a plan: shards through an executor, a journal to resume from, one commit at the end."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from numpy.typing import NDArray

from geoprep.imagery import pixels as imagery
from geoprep.store.writer import create_store
from geoprep.storage.disk import flush_shards
from geoprep.storage.files import local_path
from geoprep.errors import StoreError
from geoprep.executors.threads import Executor
from geoprep.build.journal import Journal
from geoprep.plan.plan import Plan, PlannedScene
from geoprep.build.records import Outcome, ScenePart, ShardRecord, ShardTask, SurveyRecord, SurveyTask
from geoprep.store.shards import PARTIAL_SUFFIX, digest, shard_path
from geoprep.store.schema import UNREADABLE, StoreMeta
from geoprep.build.summary import Summary, summarise
from geoprep.build.commit import finish
from geoprep.build.tasks import build_shard, survey_scene


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is; handed to a callback after every task.

    ``scenes_kept`` of ``scenes_done`` were finished by an earlier run.
    """

    stage: Literal["survey", "build"]
    scenes_done: float
    scenes: int
    bytes_read: int
    scenes_kept: float = 0.0


Report = Callable[[Progress], None]


def build(
    plan: Plan,
    out: Path,
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
        The store's folder.
    executor
        Runs the tasks.
    overwrite
        Replace a store that was built with other parameters or from other inputs.
    report
        Called after every task.

    Raises
    ------
    StoreError
        Something else is in the way, another build is running, or the disk is full.
    UsageError
        ``out`` is no folder of this machine.
    """
    start = time.perf_counter()
    _keep_freed_memory()
    out = local_path(out)
    with _disk_errors(out), Journal(out) as journal:
        state = _existing(out, plan, overwrite)
        if state == "complete":
            journal.remove()
            return summarise(plan, out, "unchanged", (), time.perf_counter() - start)
        records = _kept(out, plan, journal) if state == "incomplete" else {}
        if not records:
            journal.restart()
        create_store(out, plan.meta, plan.tiles)
        known = _survey(plan, executor, journal, report)
        new = _run_shards(plan, out, executor, journal, records, known, report)
        finish(plan, out, records | new)
        journal.remove()
    return summarise(
        plan, out, "resumed" if records else "built", new.values(), time.perf_counter() - start
    )


def _keep_freed_memory() -> None:
    """Let glibc reuse the arrays of one scene for the next, instead of faulting them in again.

    Freeing a block raises its thresholds for mapping and trimming to the block's size, of at most
    32 MiB: 1700 page faults a chip become 3. Other allocators do not care.
    """
    del_me = np.empty(31 << 20, np.uint8)
    del del_me


def _existing(out: Path, plan: Plan, overwrite: bool) -> Literal["none", "incomplete", "complete"]:
    """Say what is at ``out``; refuse what is not ours to touch, remove what may be overwritten."""
    if out.is_dir():
        for half in out.glob(f"zarr.*{PARTIAL_SUFFIX}"):  # killed while it wrote its first file
            half.unlink(missing_ok=True)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return "none"
    attrs: Any = None
    if (out / "zarr.json").is_file():
        try:
            attrs = zarr.open_group(out, mode="r").attrs.get("geoprep")
        except (*UNREADABLE, FileNotFoundError):  # the latter for what is no group
            attrs = None
    if not isinstance(attrs, dict):
        raise StoreError(f"{out} exists and is not a geoprep store: choose another --out")
    differences = _differences(attrs, plan.meta)
    if not differences:
        return "complete" if attrs.get("complete") else "incomplete"
    if not overwrite:
        raise StoreError(
            f"{out} was built differently: {'; '.join(differences)}. Use --overwrite to replace "
            "it, or another --out"
        )
    _remove_store(out)
    return "none"


def _remove_store(out: Path) -> None:
    """Remove a store so that a crash on the way leaves something that is still seen as one."""
    for entry in sorted(out.iterdir()):
        if entry.name != "zarr.json":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.rmtree(out)


def _differences(attrs: dict[str, Any], meta: StoreMeta) -> list[str]:
    """Return what differs between a store's attributes and a plan's, for people to read."""
    mine, theirs = meta.to_attrs(), attrs
    found = []
    for key, value in mine.items():
        if key in ("complete", "build", "version"):
            continue
        if theirs.get(key) != value:
            found.append(f"{key} {theirs.get(key)} there, {value} now")
    built = theirs.get("build") if isinstance(theirs.get("build"), dict) else {}
    before = built.get("options", {}) if isinstance(built, dict) else {}
    for key, value in mine["build"]["options"].items():
        if before.get(key) != value and key not in ("rescale", "levels", "tile", "overlap"):
            found.append(f"{key} {before.get(key)} there, {value} now")
    if isinstance(built, dict) and built.get("inputs") != mine["build"]["inputs"]:
        found.append("the images or labels have changed")
    return found


def _kept(out: Path, plan: Plan, journal: Journal) -> dict[int, ShardRecord]:
    """Return the records of shards that earlier runs finished and that are still whole."""
    for partial in out.rglob(f"*{PARTIAL_SUFFIX}"):
        partial.unlink(missing_ok=True)
    records: dict[int, ShardRecord] = {}
    for entry in journal.entries():
        if entry.get("stamp") != plan.stamp or "shard" not in entry:
            continue
        record = ShardRecord.from_json(entry["shard"])
        if all(_whole(out, name, record.shard, d) for name, (d, _) in record.files.items()):
            records[record.shard] = record
    return records


def _whole(out: Path, array: str, shard: int, expected: str) -> bool:
    path = shard_path(out, array, shard)
    return path.is_file() and digest(path.read_bytes()) == expected


def _survey(
    plan: Plan, executor: Executor, journal: Journal, report: Report | None
) -> dict[int, Outcome]:
    """Return limits or fates that must be known before the shards, by scene index."""
    known = {
        i: Outcome("failed", scene.failure) for i, scene in enumerate(plan.scenes) if scene.failure
    }
    scope = plan.meta.rescale
    todo = {i: scene for i, scene in enumerate(plan.scenes) if plan.needs_survey(scene)}
    for entry in journal.entries():
        if entry.get("stamp") == plan.stamp and "survey" in entry:
            index = int(entry["survey"]["index"])
            known[index] = Outcome.from_json(entry["survey"]["outcome"])
            todo.pop(index, None)
    if not todo:
        return known
    tasks = [
        SurveyTask(i, scene.image, plan.meta.band_indexes, scope, plan.options)
        for i, scene in todo.items()
    ]
    found: list[SurveyRecord] = []
    counts: dict[int, NDArray[np.int64]] = {}
    read = 0
    for record in executor.map_unordered(survey_scene, tasks):
        _add_histogram(counts, plan, record)
        # A histogram as Python numbers is half a megabyte: it must not wait for the last scene.
        found.append(replace(record, histogram=()))
        read += record.source_bytes
        if report:
            report(Progress("survey", len(found), len(tasks), read))
    if scope == "city":
        found = _city_limits(plan, found, counts)
    for record in sorted(found, key=lambda one: one.index):
        known[record.index] = record.outcome
        entry = {"index": record.index, "outcome": asdict(record.outcome)}
        journal.write({"stamp": plan.stamp, "survey": entry})
    return known


def _add_histogram(counts: dict[int, NDArray[np.int64]], plan: Plan, record: SurveyRecord) -> None:
    """Add a scene's histogram, if it has one, to that of its city: int64 (band, value)."""
    city = plan.scenes[record.index].city
    for band, (values, times) in enumerate(record.histogram):
        if city not in counts:
            counts[city] = np.zeros((len(plan.meta.bands), 65536), np.int64)
        counts[city][band, np.array(values, np.int64)] += np.array(times, np.int64)


def _city_limits(
    plan: Plan, found: Sequence[SurveyRecord], counts: dict[int, NDArray[np.int64]]
) -> list[SurveyRecord]:
    """Give every scene of a city the limits of all its pixels together."""
    limits = {
        city: tuple((low, high) for low, high in imagery.percentile_limits(of_city).tolist())
        for city, of_city in counts.items()
    }
    return [
        replace(record, outcome=Outcome(limits=limits[plan.scenes[record.index].city]))
        if record.outcome.status == "ok"
        else record
        for record in found
    ]


def _run_shards(
    plan: Plan,
    out: Path,
    executor: Executor,
    journal: Journal,
    kept: dict[int, ShardRecord],
    known: dict[int, Outcome],
    report: Report | None,
) -> dict[int, ShardRecord]:
    """Build the shards that are missing; a shard counts once it and its record are on the disk."""
    done = sum(_share(plan, shard) for shard in kept)
    read = 0
    new: dict[int, ShardRecord] = {}
    todo = [shard for shard in range(plan.shards) if shard not in kept]
    before = done
    if report:
        report(Progress("build", done, len(plan.scenes), 0, before))
    tasks = (_shard_task(plan, out, shard, known) for shard in todo)
    for record in executor.map_unordered(build_shard, tasks):
        flush_shards(shard_path(out, name, record.shard) for name in record.files)
        journal.write({"stamp": plan.stamp, "shard": record.to_json()})
        new[record.shard] = record
        done += _share(plan, record.shard)
        read += record.source_bytes
        if report:
            report(Progress("build", done, len(plan.scenes), read, before))
    return new


def _share(plan: Plan, shard: int) -> float:
    """Return how many scenes' worth of tiles a shard holds."""
    start, stop = plan.shard_range(shard)
    return len(plan.scenes) * (stop - start) / plan.tiles


def _shard_task(plan: Plan, out: Path, shard: int, known: dict[int, Outcome]) -> ShardTask:
    start, stop = plan.shard_range(shard)
    parts = []
    for i, scene in _scenes_between(plan, start, stop):
        low = max(start - scene.first_tile, 0)
        high = min(stop - scene.first_tile, len(scene.windows))
        windows = scene.windows[low:high]
        parts.append(
            ScenePart(
                i,
                scene.image,
                scene.label,
                scene.schema,
                scene.grid,
                scene.shape,
                windows,
                whole=len(windows) == len(scene.windows),
                counted=scene.split == 0,
                known=known.get(i),
            )
        )
    return ShardTask(str(out), shard, plan.meta, plan.options, plan.road_file, tuple(parts))


def _scenes_between(plan: Plan, start: int, stop: int) -> Iterator[tuple[int, PlannedScene]]:
    firsts = [scene.first_tile for scene in plan.scenes]
    first = int(np.searchsorted(firsts, start, side="right")) - 1
    for i in range(first, len(plan.scenes)):
        if plan.scenes[i].first_tile >= stop:
            return
        yield i, plan.scenes[i]


@contextmanager
def _disk_errors(out: Path) -> Iterator[None]:
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
