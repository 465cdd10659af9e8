"""The survey of scenes before their shards are built, so that all shards of a scene agree.

For a scene in several shards it finds the limits, the status, and which black pixels are nodata.
Limits of a whole city follow from the histograms of its scenes. Large scenes are read in strips by
all workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.building.journal import TaskJournal
from geoprep.building.nodata_bits import create_bits, drop_bits, edited_bits, has_bits
from geoprep.building.records import (
    Outcome,
    Progress,
    Report,
    Surveyed,
    SurveyRecord,
    SurveyTask,
)
from geoprep.building.rendering import too_empty
from geoprep.building.tasks import survey_rows
from geoprep.executors import Dask, Executor
from geoprep.plan import Plan, PlannedScene

_STRIP_VALUES = 32 << 20
_STRIP_ROWS = 512
"""Strips have this many rows or twice as many, so that blocks of tiled images are decoded once."""


@dataclass(slots=True)
class _Totals:
    """Sums over the strips of one scene so far; ``left`` strips are still missing."""

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
    plan: Plan, executor: Executor, journal: TaskJournal, report: Report | None
) -> dict[int, Surveyed]:
    """Survey all scenes that need it; return the results by scene index.

    Parameters
    ----------
    plan, executor, report
        As in :func:`geoprep.building.build`.
    journal
        Has the results of earlier runs, and gets those of this run.
    """
    results = {
        i: Surveyed(Outcome("failed", scene.failure))
        for i, scene in enumerate(plan.scenes)
        if scene.failure
    }
    results |= _earlier(plan, journal)
    todo = {
        i: scene
        for i, scene in enumerate(plan.scenes)
        if plan.needs_survey(scene) and i not in results
    }
    city = _CityLimits(plan)
    found: dict[int, Surveyed] = {}
    folder = str(journal.folder)
    for index, totals in _surveyed(plan, todo, executor, folder, report):
        found[index] = _decided(plan, index, totals, folder)
        if plan.meta.rescale == "city":
            city.add(index, found[index], totals)
        else:
            _note(plan, journal, index, found[index])
    if plan.meta.rescale == "city":
        for index in sorted(found):
            found[index] = city.applied(index, found[index])
            _note(plan, journal, index, found[index])
    return results | found


def _earlier(plan: Plan, journal: TaskJournal) -> dict[int, Surveyed]:
    """Return the results of earlier runs whose files still exist."""
    found = {}
    for entry in journal.entries():
        if entry.get("stamp") != plan.fingerprint or "survey" not in entry:
            continue
        values, file = entry["survey"], None
        index = int(values["index"])
        if values["missing"]:
            file = _bits_file(str(journal.folder), index)
        if file is None or has_bits(file):
            outcome = Outcome.from_json(values["outcome"])
            found[index] = Surveyed(outcome, file, int(values.get("black", 0)))
    return found


def _note(plan: Plan, journal: TaskJournal, index: int, result: Surveyed) -> None:
    entry = {
        "index": index,
        "outcome": asdict(result.outcome),
        "missing": bool(result.nodata_file),
        "black": result.black,
    }
    journal.write({"stamp": plan.fingerprint, "survey": entry})


def _bits_file(folder: str, index: int) -> str:
    return f"{folder}/black-{index}.bits"


def _surveyed(
    plan: Plan,
    todo: dict[int, PlannedScene],
    executor: Executor,
    folder: str,
    report: Report | None,
) -> Iterator[tuple[int, _Totals]]:
    """Yield scenes once their last strip is read; histograms of few scenes are held at a time."""
    open_scenes: dict[int, _Totals] = {}
    total = sum(_pixels(scene) for scene in todo.values())
    done = read = 0

    def tasks() -> Iterator[SurveyTask]:
        for index, scene in todo.items():
            strips = list(_strips(plan, index, scene, folder))
            open_scenes[index] = _Totals(len(strips))
            for strip in strips:  # another strip may have failed meanwhile
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
    """Yield the records; a strip that crashes the workers of a cluster has failed."""
    if isinstance(executor, Dask):
        return executor.map_unordered(survey_rows, tasks, partial(_without_killer, executor))
    return executor.map_unordered(survey_rows, tasks)


def _without_killer(executor: Dask, task: SurveyTask) -> SurveyTask:
    if executor.survives(survey_rows, task):
        return task
    why = f"{task.image}: reading it crashes the process. Download the scene again"
    return replace(task, failure=why)


def _pixels(scene: PlannedScene, rows: tuple[int, int] | None = None) -> int:
    assert scene.grid is not None  # only scenes that can be opened are surveyed
    first, last = rows or (0, scene.grid.height)
    return (last - first) * scene.grid.width


def _strips(plan: Plan, index: int, scene: PlannedScene, folder: str) -> Iterator[SurveyTask]:
    """Yield one task for a scene in a single shard, which is read whole there too; else strips."""
    assert scene.grid is not None
    bands, nodata = plan.meta.band_indexes, plan.options.nodata
    if not plan.in_several_shards(scene):
        yield SurveyTask(index, scene.image, bands, nodata, rows=None, nodata_file=None)
        return
    height, width = scene.grid.height, scene.grid.width
    file = _bits_file(folder, index)
    create_bits(file, height, width)
    wide = width * len(bands) * 2 * _STRIP_ROWS > _STRIP_VALUES
    step = _STRIP_ROWS if wide else 2 * _STRIP_ROWS
    for row in range(0, height, step):
        rows = row, min(row + step, height)
        yield SurveyTask(index, scene.image, bands, nodata, rows, file)


def _decided(plan: Plan, index: int, totals: _Totals, folder: str) -> Surveyed:
    """Return limits and status of a scene; small specks of black become imagery."""
    file = _bits_file(folder, index)
    if totals.failure:
        drop_bits(file)
        return Surveyed(Outcome("failed", totals.failure))
    valid, specks = totals.valid, 0
    if totals.black:
        grid = plan.scenes[index].grid
        assert grid is not None
        with edited_bits(file, grid.height, grid.width) as bits:
            specks = totals.black - imagery.drop_specks(bits, grid.width)
        valid += specks
        imagery.add_black(totals.counts, specks)
    if not specks:  # every window shows by itself which black is nodata
        drop_bits(file)
    kept = file if specks else None
    black = totals.black - specks
    if reason := too_empty(1 - valid / totals.pixels, plan.options):
        return Surveyed(Outcome("skipped", reason), kept, black)
    if plan.meta.rescale != "scene":
        return Surveyed(Outcome(), kept, black)
    return Surveyed(Outcome(limits=_limits(totals.counts)), kept, black)


def _limits(counts: NDArray[np.int64]) -> tuple[tuple[float, float], ...]:
    return tuple((low, high) for low, high in imagery.percentile_limits(counts).tolist())


class _CityLimits:
    """Limits from the pixels of all scenes of a city."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._counts: dict[int, NDArray[np.int64]] = {}

    def add(self, index: int, result: Surveyed, totals: _Totals) -> None:
        """Add the histogram of a scene that can be used."""
        if result.outcome.status == "ok":
            city = self._plan.scenes[index].city
            self._counts[city] = self._counts.get(city, 0) + totals.counts

    def applied(self, index: int, result: Surveyed) -> Surveyed:
        """Return the result for a scene with the limits of its city."""
        if result.outcome.status != "ok":
            return result
        limits = _limits(self._counts[self._plan.scenes[index].city])
        return replace(result, outcome=Outcome(limits=limits))
