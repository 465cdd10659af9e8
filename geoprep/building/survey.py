"""A look at scenes before their shards are built, so that all shards agree on them.

A scene that lies in several shards gets its limits, its fate, and where its black is nodata;
limits of a whole city are made from the histograms of its scenes. Large scenes are looked at in
strips, by all workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.building.bits import create_bits, drop_bits, edited_bits, has_bits
from geoprep.building.bucket import BucketJournal
from geoprep.building.journal import Journal
from geoprep.building.records import Outcome, Progress, Report, SurveyRecord, SurveyTask
from geoprep.building.scene import too_empty
from geoprep.building.tasks import survey_rows
from geoprep.executors import Dask, Executor
from geoprep.plan import Plan, PlannedScene

_STRIP_VALUES = 32 << 20
_STRIP_ROWS = 512
"""Strips have this many rows or twice as many: tiled images are then decoded once."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the shards of a scene are told: limits or a fate, and a file of bits or None."""

    outcome: Outcome
    missing: str | None = None
    black: int = 0


@dataclass(slots=True)
class _Findings:
    """What the strips of one scene said so far; ``left`` is how many are still to come."""

    left: int
    failure: str = ""
    pixels: int = 0
    valid: int = 0
    black: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def add(self, record: SurveyRecord) -> None:
        self.left -= 1
        self.failure = self.failure or record.failure
        self.pixels += record.pixels
        self.valid += record.valid
        self.black += record.black
        if len(record.histogram) > len(self.counts):
            self.counts = np.zeros((len(record.histogram), record.bins), np.int64)
        for band, (values, times) in enumerate(record.histogram):
            self.counts[band, values] += times


def survey(
    plan: Plan, executor: Executor, journal: Journal | BucketJournal, report: Report | None
) -> dict[int, Known]:
    """Return what must be known of scenes before the shards, by scene index.

    Parameters
    ----------
    plan, executor, report
        As in :func:`geoprep.building.build`.
    journal
        Tells what earlier runs found, and is told what this one does.
    """
    known = {
        i: Known(Outcome("failed", scene.failure))
        for i, scene in enumerate(plan.scenes)
        if scene.failure
    }
    known |= _remembered(plan, journal)
    todo = {
        i: scene
        for i, scene in enumerate(plan.scenes)
        if plan.needs_survey(scene) and i not in known
    }
    city = _CityLimits(plan)
    found: dict[int, Known] = {}
    folder = str(journal.folder)
    for index, findings in _looked_at(plan, todo, executor, folder, report):
        found[index] = _judged(plan, index, findings, folder)
        if plan.meta.rescale == "city":
            city.add(index, found[index], findings)
        else:
            _note(plan, journal, index, found[index])
    if plan.meta.rescale == "city":
        for index in sorted(found):
            found[index] = city.given(index, found[index])
            _note(plan, journal, index, found[index])
    return known | found


def _remembered(plan: Plan, journal: Journal | BucketJournal) -> dict[int, Known]:
    """Return what earlier runs found, where the file that goes with it is still there."""
    known = {}
    for entry in journal.entries():
        if entry.get("stamp") != plan.stamp or "survey" not in entry:
            continue
        index, missing = int(entry["survey"]["index"]), None
        if entry["survey"]["missing"]:
            missing = _bits_file(str(journal.folder), index)
        if missing is None or has_bits(missing):
            outcome = Outcome.from_json(entry["survey"]["outcome"])
            known[index] = Known(outcome, missing, entry["survey"].get("black", 0))
    return known


def _note(plan: Plan, journal: Journal | BucketJournal, index: int, known: Known) -> None:
    entry = {
        "index": index,
        "outcome": asdict(known.outcome),
        "missing": bool(known.missing),
        "black": known.black,
    }
    journal.write({"stamp": plan.stamp, "survey": entry})


def _bits_file(folder: str, index: int) -> str:
    return f"{folder}/black-{index}.bits"


def _looked_at(
    plan: Plan,
    todo: dict[int, PlannedScene],
    executor: Executor,
    folder: str,
    report: Report | None,
) -> Iterator[tuple[int, _Findings]]:
    """Yield the scenes whose last strip has come in; the histograms of few are held at a time."""
    open_scenes: dict[int, _Findings] = {}
    total = sum(_pixels(scene) for scene in todo.values())
    done = read = 0

    def tasks() -> Iterator[SurveyTask]:
        for index, scene in todo.items():
            strips = list(_strips(plan, index, scene, folder))
            open_scenes[index] = _Findings(len(strips))
            for strip in strips:  # by now another may have failed
                yield replace(strip, failure=open_scenes[index].failure)

    for record in _records(executor, tasks()):
        index, rows = record.task.index, record.task.rows
        open_scenes[index].add(record)
        done += _pixels(todo[index], rows)
        read += record.source_bytes
        if report:
            report(Progress("survey", done, total, read))
        if open_scenes[index].left == 0:
            yield index, open_scenes.pop(index)


def _records(executor: Executor, tasks: Iterator[SurveyTask]) -> Iterator[SurveyRecord]:
    """Yield what was found; what a cluster's workers die over has failed."""
    if isinstance(executor, Dask):
        return executor.map_unordered(survey_rows, tasks, partial(_without_killer, executor))
    return executor.map_unordered(survey_rows, tasks)


def _without_killer(executor: Dask, task: SurveyTask) -> SurveyTask:
    if executor.survives(survey_rows, task):
        return task
    why = f"{task.image}: reading it ends the process; fetch the scene again"
    return replace(task, failure=why)


def _pixels(scene: PlannedScene, rows: tuple[int, int] | None = None) -> int:
    assert scene.grid is not None  # only scenes that can be opened are looked at
    first, last = rows or (0, scene.grid.height)
    return (last - first) * scene.grid.width


def _strips(plan: Plan, index: int, scene: PlannedScene, folder: str) -> Iterator[SurveyTask]:
    """Yield one task for a scene in one shard, which is read whole there too; else strips."""
    assert scene.grid is not None
    bands, nodata = plan.meta.band_indexes, plan.options.nodata
    if not plan.in_several_shards(scene):
        yield SurveyTask(index, scene.image, bands, nodata, rows=None, missing=None)
        return
    height, width = scene.grid.height, scene.grid.width
    missing = _bits_file(folder, index)
    create_bits(missing, height, width)
    wide = width * len(bands) * 2 * _STRIP_ROWS > _STRIP_VALUES
    step = _STRIP_ROWS if wide else 2 * _STRIP_ROWS
    for row in range(0, height, step):
        rows = row, min(row + step, height)
        yield SurveyTask(index, scene.image, bands, nodata, rows, missing)


def _judged(plan: Plan, index: int, findings: _Findings, folder: str) -> Known:
    """Return limits and fate of a scene; specks among its black become imagery."""
    file = _bits_file(folder, index)
    if findings.failure:
        drop_bits(file)
        return Known(Outcome("failed", findings.failure))
    valid, specks = findings.valid, 0
    if findings.black:
        grid = plan.scenes[index].grid
        assert grid is not None
        with edited_bits(file, grid.height, grid.width) as bits:
            specks = findings.black - imagery.drop_specks(bits, grid.width)
        valid += specks
        imagery.add_black(findings.counts, specks)
    if not specks:  # all black is nodata, or there is none: the shards see that themselves
        drop_bits(file)
    missing, black = file if specks else None, findings.black - specks
    if reason := too_empty(1 - valid / findings.pixels, plan.options):
        return Known(Outcome("skipped", reason), missing, black)
    if plan.meta.rescale != "scene":
        return Known(Outcome(), missing, black)
    return Known(Outcome(limits=_limits(findings.counts)), missing, black)


def _limits(counts: NDArray[np.int64]) -> tuple[tuple[float, float], ...]:
    return tuple((low, high) for low, high in imagery.percentile_limits(counts).tolist())


class _CityLimits:
    """The limits of all pixels of a city together."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._counts: dict[int, NDArray[np.int64]] = {}

    def add(self, index: int, known: Known, findings: _Findings) -> None:
        """Take in the histogram of a scene that can be used."""
        if known.outcome.status == "ok":
            city = self._plan.scenes[index].city
            self._counts[city] = self._counts.get(city, 0) + findings.counts

    def given(self, index: int, known: Known) -> Known:
        """Return what is known of a scene with its city's limits."""
        if known.outcome.status != "ok":
            return known
        limits = _limits(self._counts[self._plan.scenes[index].city])
        return replace(known, outcome=Outcome(limits=limits))
