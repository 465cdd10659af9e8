"""The survey of scenes before their shards are built, so that all shards of a scene agree.

For a scene in several shards it finds which pixels are imagery, the limits, the status, and errors
of a raster label under imagery. Limits of a whole city follow from the histograms of its scenes.
Large scenes are read in strips by all workers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.building.journal import BucketJournal, Journal
from geoprep.building.options import BuildOptions
from geoprep.building.plan import Plan
from geoprep.building.records import Outcome, TaskStopped
from geoprep.building.request import Progress, Report
from geoprep.building.scene import PlannedScene
from geoprep.building.shard import add_notes, too_empty
from geoprep.errors import GeoprepError, LabelError
from geoprep.executors.threads import Executor, stopped
from geoprep.imagery.counts import add_black, count_source
from geoprep.imagery.rescale import percentile_limits
from geoprep.imagery.rows import SceneRows, strips
from geoprep.imagery.validity import (
    StripValidity,
    decide,
    has_bits,
    read_bits,
    strip_validity,
    write_bits,
)
from geoprep.labels.mask_files import SceneWindow, read_mask
from geoprep.labels.raster_rules import UnlistedError, unlisted_error

_MOST_STRIPS = 8
"""Largest number of strips that a task reads one after the other."""


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """Some rows of a scene, or of its label, to survey before its shards are built."""

    index: int  # row in the scene table
    scene: PlannedScene  # without its tiles
    options: BuildOptions
    rows: tuple[int, int]  # first, and after the last
    whole: bool  # whether these are all, which the only shard of the scene reads again
    failure: str = ""  # why the scene has failed already; nothing is read then
    mask_file: str | None = None  # for a label: validity of the scene; None: all pixels are valid


@dataclass(frozen=True, slots=True)
class SurveyRecord:
    """Result of the survey of some rows of an image, or of its raster label."""

    task: SurveyTask
    failure: str = ""  # why they cannot be used
    pixels: int = 0
    valid: int = 0  # with imagery; without black ones of undecided meaning
    validity: dict[int, StripValidity] = field(default_factory=dict)  # of strips, by row
    source_bytes: int = 0
    # Valid pixels per value, or per bin of wide data types: scipy.sparse.csr_array (band, value).
    counts: Any = 0
    notes: dict[str, int] = field(default_factory=dict)  # remarks on the label, with counts
    unlisted: dict[str, int] = field(default_factory=dict)  # values of no class: pixels


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
        return next((strip.failure for strip in self.ordered() if strip.failure), "")

    def ordered(self) -> list[SurveyRecord]:
        """Return the strips from the top: results must not depend on the order of the workers."""
        return sorted(self.strips, key=lambda strip: strip.task.rows)


def survey(
    plan: Plan, executor: Executor, journal: Journal | BucketJournal, report: Report | None
) -> dict[int, Outcome]:
    """Survey all scenes that need it; return the results by scene index, with failed scenes."""
    of_city = plan.meta.rescale == "city"
    needed = [i for i, scene in enumerate(plan.scenes) if plan.needs_survey(scene)]
    results = _earlier(plan, journal)
    if of_city and {*needed} - results.keys():
        results = {}  # limits of a city need the histograms of all its scenes
    todo = [i for i in needed if i not in results]
    counts: dict[int, NDArray[np.int64]] = {}  # of the scenes of a city that can be read
    outcomes: dict[int, Outcome] = {}
    for index, totals in _surveyed(plan, todo, executor, report=report):
        outcome = outcomes[index] = _decided(plan, index, totals, str(journal.folder))
        city = plan.scenes[index].city
        if outcome.status == "ok" and of_city:
            counts[city] = counts.get(city, 0) + totals.counts
        elif not of_city and (outcome.status != "ok" or not _has_label_strips(plan, index)):
            _note(plan, journal, index, outcome)
    if of_city:
        for index, outcome in outcomes.items():
            if outcome.status == "ok":
                limits = _limits(counts[plan.scenes[index].city])
                outcomes[index] = replace(outcome, limits=limits)
    labelled = [i for i in outcomes if outcomes[i].status == "ok" and _has_label_strips(plan, i)]
    for index, totals in _surveyed(plan, labelled, executor, decided=outcomes):
        outcome = outcomes[index] = _with_label(plan, index, outcomes[index], totals)
        if not of_city:
            _note(plan, journal, index, outcome)
    if of_city:
        for index, outcome in sorted(outcomes.items()):
            _note(plan, journal, index, outcome)
    failed = {
        i: Outcome("failed", scene.failure) for i, scene in enumerate(plan.scenes) if scene.failure
    }
    return failed | results | outcomes


def _earlier(plan: Plan, journal: Journal | BucketJournal) -> dict[int, Outcome]:
    """Return the results of earlier runs whose files still exist."""
    earlier = {}
    for entry in journal.entries():
        if entry.get("stamp") != plan.fingerprint or "survey" not in entry:
            continue
        values = entry["survey"]
        index = int(values["index"])
        file = _mask_file(str(journal.folder), index) if values["masked"] else None
        if file is None or has_bits(file):
            earlier[index] = replace(Outcome(**values["outcome"]), mask_file=file)
    return earlier


def _note(plan: Plan, journal: Journal | BucketJournal, index: int, outcome: Outcome) -> None:
    entry = {
        "index": index,
        "outcome": asdict(replace(outcome, mask_file=None)),
        "masked": bool(outcome.mask_file),
    }
    journal.write({"stamp": plan.fingerprint, "survey": entry})


def _mask_file(folder: str, index: int) -> str:
    return f"{folder}/valid-{index}.bits"


def _surveyed(
    plan: Plan,
    indexes: Sequence[int],
    executor: Executor,
    *,
    decided: Mapping[int, Outcome] | None = None,
    report: Report | None = None,
) -> Iterator[tuple[int, _Totals]]:
    """Yield scenes, or labels of scenes that are ``decided``, once their last strip is read.

    Histograms of few scenes are held at a time.
    """
    survey_strip = survey_rows if decided is None else survey_label
    open_scenes: dict[int, _Totals] = {}
    total = sum(math.prod(_shape(plan.scenes[index])) for index in indexes)
    done = read = 0

    def tasks() -> Iterator[SurveyTask]:
        for index in indexes:
            runs = list(_runs(plan, index, executor.workers))
            open_scenes[index] = _Totals(len(runs))
            for run in runs:
                if decided is None:  # another one may have failed meanwhile
                    yield replace(run, failure=open_scenes[index].failure)
                else:
                    yield replace(run, mask_file=decided[index].mask_file)

    for record in executor.map_unordered(survey_strip, tasks()):
        index, (first, last) = record.task.index, record.task.rows
        open_scenes[index].add(record)
        done += (last - first) * _shape(record.task.scene)[1]
        read += record.source_bytes
        if report:
            report(Progress("survey", done, total, read))
        if open_scenes[index].left == 0:
            yield index, open_scenes.pop(index)


def _runs(plan: Plan, index: int, workers: int) -> Iterator[SurveyTask]:
    """Yield one task for a scene in a single shard, which is read whole there too; else several.

    Each has some strips in a row, as many for every worker, for which the image is opened once.
    """
    scene = plan.scenes[index]
    if not plan.in_several_shards(scene):
        rows = 0, _shape(scene)[0]
        yield SurveyTask(index, scene.tiles(0, 0), plan.options, rows, whole=True)
        return
    rows_of = strips(scene.pixels)
    some = min(_MOST_STRIPS, -(-len(rows_of) // workers))
    for start in range(0, len(rows_of), some):
        run = rows_of[start : start + some]
        rows = run[0][0], run[-1][1]
        yield SurveyTask(index, scene.tiles(0, 0), plan.options, rows, whole=False)


def _shape(scene: PlannedScene) -> tuple[int, int]:
    return scene.pixels.grid.shape


def _decided(plan: Plan, index: int, totals: _Totals, folder: str) -> Outcome:
    """Return limits and status of a scene without its label, and write its validity."""
    if totals.failure:
        return Outcome("failed", totals.failure)
    totals.counts = totals.counts.toarray()
    file, runs = None, totals.ordered()
    validity = {row: strip for run in runs for row, strip in run.validity.items()}
    bits, black = decide(validity, *_shape(plan.scenes[index]))
    specks = sum(strip.black_pixels for strip in validity.values()) - black
    add_black(totals.counts, specks)
    pixels, valid = sum(run.pixels for run in runs), sum(run.valid for run in runs)
    valid += specks
    if reason := too_empty(1 - valid / pixels, plan.options):
        return Outcome("skipped", reason, black=black)
    if bits is not None:
        file = _mask_file(folder, index)
        write_bits(file, bits)
    limits = _limits(totals.counts) if plan.meta.rescale == "scene" else ()
    return Outcome(limits=limits, black=black, mask_file=file)


def _has_label_strips(plan: Plan, index: int) -> bool:
    """Return whether a scene's label is a raster that several shards read."""
    scene = plan.scenes[index]
    if not scene.label or plan.options.raster_rule(scene.label) is None:
        return False
    return plan.in_several_shards(scene)


def _with_label(plan: Plan, index: int, outcome: Outcome, totals: _Totals) -> Outcome:
    """Return a scene with remarks on its label, or failed for all of its unlisted values."""
    failure, unlisted, notes = totals.failure, Counter[str](), Counter[str]()
    for strip in totals.ordered():
        unlisted.update(strip.unlisted)
        add_notes(notes, strip.notes, pixels=plan.options.classes is not None)
    label = plan.scenes[index].label
    assert label is not None
    if not failure and unlisted and (rule := plan.options.class_rule):
        failure = str(unlisted_error(label, rule, unlisted))
    if failure:
        return Outcome("failed", failure, black=outcome.black)
    return replace(outcome, notes=dict(notes))


def _limits(counts: NDArray[np.int64]) -> tuple[tuple[float, float], ...]:
    return tuple((low, high) for low, high in percentile_limits(counts).tolist())


# The tasks


def survey_rows(task: SurveyTask) -> SurveyRecord:
    """Return the histogram and the validity of some rows of a scene."""
    if stopped():
        raise TaskStopped
    if task.failure:
        return SurveyRecord(task, failure=task.failure)
    from scipy.sparse import csr_array  # few builds have a survey

    scene, (top, bottom) = task.scene, task.rows
    record, counts = SurveyRecord(task), np.zeros((), np.int64)
    try:
        with SceneRows(scene.pixels, scene.inputs) as source:
            for first, last in strips(scene.pixels):
                if not top <= first < bottom or (task.whole and first > top):
                    continue
                if stopped():
                    raise TaskStopped
                if task.whole:
                    pixels = source.whole()
                    validity = {}
                else:
                    pixels = source.surveyed(first, last)
                    validity = {first: strip_validity(pixels.valid, pixels.black)}
                counts = counts + count_source(pixels)
                record = replace(
                    record,
                    pixels=record.pixels + pixels.area,
                    valid=record.valid + pixels.valid_pixels,
                    source_bytes=record.source_bytes + pixels.values.nbytes,
                    validity=record.validity | validity,
                )
                del pixels  # before the next strip is read
    except GeoprepError as error:
        return SurveyRecord(task, failure=str(error))
    return replace(record, counts=csr_array(counts))


def survey_label(task: SurveyTask) -> SurveyRecord:
    """Return remarks on, or errors of, some rows of a scene's raster label.

    Values are errors only where pixels of the image are valid.
    """
    if stopped():
        raise TaskStopped
    if task.failure:
        return SurveyRecord(task, failure=task.failure)
    scene, rows, valid = task.scene, task.rows, None
    grid = scene.pixels.grid
    assert scene.label is not None
    rule = task.options.raster_rule(scene.label)
    assert rule is not None
    if task.mask_file is not None:
        cols = slice(0, grid.width)
        valid = read_bits(task.mask_file, grid.width, slice(*rows), cols) != 0
    try:
        area = SceneWindow(rows[0], 0, rows[1] - rows[0], grid.width)
        return SurveyRecord(task, notes=read_mask(scene.label, rule, grid, area, valid)[1])
    except UnlistedError as error:
        return SurveyRecord(task, unlisted=error.pixels)
    except LabelError as error:
        return SurveyRecord(task, failure=str(error))
