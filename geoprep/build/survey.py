"""The survey of scenes before their shards are built, so that all shards of a scene agree.

For a scene in several shards it finds the limits, the status, errors of a raster label, and which
black pixels are nodata. Limits of a whole city follow from the histograms of its scenes. Large
scenes are read in strips by all workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep import imagery
from geoprep.build.journal import BucketJournal, Journal
from geoprep.build.nodata_bits import has_bits, join_bits, write_bits
from geoprep.build.plan import Plan
from geoprep.build.records import Outcome, Progress, Report, SurveyRecord, SurveyTask
from geoprep.build.rendering import add_notes, too_empty
from geoprep.build.scene import PlannedScene
from geoprep.build.tasks import survey_rows, with_label
from geoprep.executors import Executor, Survives
from geoprep.labels import unlisted_error
from geoprep.storage import split_address

_STRIP_VALUES = 32 << 20
_STRIP_ROWS = 512
"""Strips have this many rows or twice as many, so that blocks of tiled images are decoded once."""


@dataclass(slots=True)
class _Totals:
    """The strips of one scene so far, without histograms, and the sum of their histograms."""

    left: int
    strips: list[SurveyRecord] = field(default_factory=list)
    counts: Any = 0  # as in `SurveyRecord`

    def add(self, record: SurveyRecord) -> None:
        self.left -= 1
        self.counts = self.counts + record.counts
        self.strips.append(replace(record, counts=0))

    @property
    def failure(self) -> str:
        return next((one.failure for one in self.ordered() if one.failure), "")

    def ordered(self) -> list[SurveyRecord]:
        """Return the strips from the top: results must not depend on the order of the workers."""
        return sorted(self.strips, key=lambda one: one.task.rows or (0, 0))


def survey(
    plan: Plan, executor: Executor, journal: Journal | BucketJournal, report: Report | None
) -> dict[int, Outcome]:
    """Survey all scenes that need it; return the results by scene index, with failed scenes."""
    of_city = plan.meta.rescale == "city"
    needed = {i: scene for i, scene in enumerate(plan.scenes) if plan.needs_survey(scene)}
    results = _earlier(plan, journal)
    if of_city and needed.keys() - results.keys():
        results = {}  # limits of a city need the histograms of all its scenes
    todo = {i: scene for i, scene in needed.items() if i not in results}
    counts: dict[int, NDArray[np.int64]] = {}  # of the scenes of a city that can be read
    found: dict[int, Outcome] = {}
    for index, totals in _surveyed(plan, todo, executor, report):
        found[index] = _decided(plan, index, totals, str(journal.folder))
        city = plan.scenes[index].city
        if not of_city:
            _note(plan, journal, index, found[index])
        elif not totals.failure and found[index].status != "skipped":
            counts[city] = counts.get(city, 0) + totals.counts
    if of_city:
        for index, outcome in sorted(found.items()):
            if outcome.status == "ok":
                limits = _limits(counts[plan.scenes[index].city])
                found[index] = replace(outcome, limits=limits)
            _note(plan, journal, index, found[index])
    failed = {i: Outcome("failed", one.failure) for i, one in enumerate(plan.scenes) if one.failure}
    return failed | results | found


def _earlier(plan: Plan, journal: Journal | BucketJournal) -> dict[int, Outcome]:
    """Return the results of earlier runs whose files still exist."""
    found = {}
    for entry in journal.entries():
        if entry.get("stamp") != plan.fingerprint or "survey" not in entry:
            continue
        values = entry["survey"]
        index = int(values["index"])
        file = _bits_file(str(journal.folder), index) if values["missing"] else None
        if file is None or has_bits(file):
            found[index] = replace(Outcome(**values["outcome"]), nodata_file=file)
    return found


def _note(plan: Plan, journal: Journal | BucketJournal, index: int, outcome: Outcome) -> None:
    entry = {
        "index": index,
        "outcome": asdict(replace(outcome, nodata_file=None)),
        "missing": bool(outcome.nodata_file),
    }
    journal.write({"stamp": plan.fingerprint, "survey": entry})


def _bits_file(folder: str, index: int) -> str:
    return f"{folder}/black-{index}.bits"


def _surveyed(
    plan: Plan, todo: dict[int, PlannedScene], executor: Executor, report: Report | None
) -> Iterator[tuple[int, _Totals]]:
    """Yield scenes once their last strip is read; histograms of few scenes are held at a time."""
    open_scenes: dict[int, _Totals] = {}
    total = sum(_pixels(scene) for scene in todo.values())
    done = read = 0

    def tasks() -> Iterator[SurveyTask]:
        for index, scene in todo.items():
            strips = list(_strips(plan, index, scene))
            open_scenes[index] = _Totals(len(strips))
            for strip in strips:  # another strip may have failed meanwhile
                yield replace(strip, failure=open_scenes[index].failure)

    for record in executor.map_unordered(survey_rows, tasks(), _without_killer):
        index, rows = record.task.index, record.task.rows
        open_scenes[index].add(record)
        done += _pixels(todo[index], rows)
        read += record.source_bytes
        if report:
            report(Progress("survey", done, total, read))
        if open_scenes[index].left == 0:
            yield index, open_scenes.pop(index)


def _without_killer(task: SurveyTask, survives: Survives[SurveyTask]) -> SurveyTask:
    """Return the task as failed if it crashes a worker."""
    if survives(survey_rows, task):
        return task
    why = f"{task.scene.image}: reading it crashes the process. Download the scene again"
    return replace(task, failure=why)


def _pixels(scene: PlannedScene, rows: tuple[int, int] | None = None) -> int:
    assert scene.grid is not None  # only scenes that can be opened are surveyed
    first, last = rows or (0, scene.grid.height)
    return (last - first) * scene.grid.width


def _strips(plan: Plan, index: int, scene: PlannedScene) -> Iterator[SurveyTask]:
    """Yield one task for a scene in a single shard, which is read whole there too; else strips."""
    assert scene.grid is not None
    bands, height, width = plan.meta.band_indexes, scene.grid.height, scene.grid.width
    whole = SurveyTask(index, scene.tiles(0, 0), bands, plan.options, rows=None)
    if not plan.in_several_shards(scene):
        yield whole
        return
    wide = width * len(bands) * 2 * _STRIP_ROWS > _STRIP_VALUES
    step = _STRIP_ROWS if wide else 2 * _STRIP_ROWS
    for row in range(0, height, step):
        yield replace(whole, rows=(row, min(row + step, height)))


def _decided(plan: Plan, index: int, totals: _Totals, folder: str) -> Outcome:
    """Return limits and status of a scene; small specks of black become imagery."""
    if totals.failure:
        return Outcome("failed", totals.failure)
    totals.counts = totals.counts.toarray()
    scene, strips = plan.scenes[index], totals.ordered()
    assert scene.grid is not None
    pixels, valid = sum(one.pixels for one in strips), sum(one.valid for one in strips)
    black, file = sum(one.black for one in strips), None
    if black:
        packed = {one.task.rows[0]: one.black_bits for one in strips if one.task.rows and one.black}
        bits = join_bits(packed, scene.grid.height, scene.grid.width)
        left = imagery.drop_specks(bits, scene.grid.width)
        strips = [_with_specks(one, bits) if one.is_label_doubtful else one for one in strips]
        valid += black - left
        imagery.add_black(totals.counts, black - left)
        if left != black:  # else every window shows by itself which black is nodata
            file = _bits_file(folder, index)
            write_bits(file, bits)
        black = left
    if reason := too_empty(1 - valid / pixels, plan.options):
        return Outcome("skipped", reason, black=black)
    if reason := _label_failure(plan, scene, strips):
        return Outcome("failed", reason, black=black)
    limits = _limits(totals.counts) if plan.meta.rescale == "scene" else ()
    notes = Counter[str]()
    for one in strips:
        add_notes(notes, one.notes, plan.options)
    return Outcome(limits=limits, notes=dict(notes), black=black, nodata_file=file)


def _with_specks(strip: SurveyRecord, nodata: NDArray[np.uint8]) -> SurveyRecord:
    """Return a strip with the errors of its label under black that is imagery.

    ``nodata`` are the bits of black that is nodata, uint8 (y, bytes), of the whole scene.
    """
    assert strip.task.rows is not None
    assert strip.task.scene.grid is not None
    first, last = strip.task.rows
    width = strip.task.scene.grid.width
    black = join_bits({0: strip.black_bits}, last - first, width)
    specks = np.unpackbits(black & ~nodata[first:last], axis=1, count=width) != 0
    below = with_label(replace(strip, unlisted={}, label_failure=""), specks)
    return replace(
        below,
        unlisted=dict(Counter(strip.unlisted) + Counter(below.unlisted)),
        label_failure=strip.label_failure or below.label_failure,
    )


def _label_failure(plan: Plan, scene: PlannedScene, strips: list[SurveyRecord]) -> str:
    """Return why the label of a scene cannot be used; all unlisted values are in one reason."""
    failure = next((one.label_failure for one in strips if one.label_failure), "")
    unlisted = Counter[str]()
    for one in strips:
        unlisted.update(one.unlisted)
    if not failure and unlisted and scene.label and (rule := plan.options.raster_rule(scene.label)):
        failure = str(unlisted_error(split_address(scene.label)[0], rule, unlisted))
    return failure


def _limits(counts: NDArray[np.int64]) -> tuple[tuple[float, float], ...]:
    return tuple((low, high) for low, high in imagery.percentile_limits(counts).tolist())
