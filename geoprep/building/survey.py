"""The survey of scenes before their shards are built, so that all shards of a scene agree.

For a scene in several shards it finds which pixels are imagery, the limits, the status, and errors
of a raster label under imagery. Limits of a whole city follow from the histograms of its scenes.
Large scenes are read in strips by all workers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from geoprep.building.journal import BucketJournal, Journal
from geoprep.building.plan import Plan
from geoprep.building.records import Outcome, TaskStopped
from geoprep.building.request import Progress, Report
from geoprep.building.scene import Planned
from geoprep.building.shard import add_notes, too_empty
from geoprep.errors import GeoprepError, LabelError
from geoprep.executors.threads import Executor, stopped
from geoprep.grid import SceneWindow
from geoprep.imagery.looks import Look
from geoprep.imagery.rescale import percentile_limits
from geoprep.imagery.rows import SceneRows, row_bytes, strips
from geoprep.imagery.validity import has_bits, read_bits, write_bits
from geoprep.labels.mask_files import read_mask
from geoprep.labels.raster_rules import UnlistedError, unlisted_error

_MOST_STRIPS = 8
"""Largest number of strips that a task reads one after the other."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a scene, or of its raster label, that one task looks at."""

    index: int  # of the scene in the scene table
    scene: Planned  # without its splits
    first: int
    stop: int  # after the last
    are_all: bool  # of a scene in one shard, which reads them again
    mask_file: str | None = None  # for a label: validity of the scene; None: all pixels are valid


@dataclass(frozen=True, slots=True)
class Seen:
    """What rows of a scene, or of its label, show."""

    rows: Rows
    failure: str = ""  # why they cannot be used
    look: Look = field(default_factory=Look)  # with counts as scipy.sparse.csr_array
    notes: dict[str, int] = field(default_factory=dict)  # remarks on the label, with counts
    unlisted: dict[str, int] = field(default_factory=dict)  # values of no class: pixels


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
    for index, looks in _looks(plan, todo, executor, survey_rows, report=report):
        outcome, of_scene = _decided(plan, index, looks, str(journal.folder))
        outcomes[index], city = outcome, plan.scenes[index].city
        if of_city and outcome.status == "ok":
            counts[city] = counts.get(city, 0) + of_scene
        elif not of_city and not _needs_label(plan, index, outcome):
            _note(plan, journal, index, outcome)
    for index, outcome in outcomes.items():
        if of_city and outcome.status == "ok":
            limits = _limits(counts[plan.scenes[index].city])
            outcomes[index] = replace(outcome, limits=limits)
    labelled = [index for index, outcome in outcomes.items() if _needs_label(plan, index, outcome)]
    for index, looks in _looks(plan, labelled, executor, survey_label, decided=outcomes):
        outcomes[index] = _with_label(plan, index, outcomes[index], looks)
        if not of_city:
            _note(plan, journal, index, outcomes[index])
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


def _looks(
    plan: Plan,
    indexes: Sequence[int],
    executor: Executor,
    look: Callable[[Rows], Seen],
    *,
    decided: Mapping[int, Outcome] | None = None,
    report: Report | None = None,
) -> Iterator[tuple[int, list[Seen]]]:
    """Yield scenes once their last row is read, with what their rows show, from the top.

    Labels are read of scenes that are ``decided``. Histograms of few scenes are held at a time.
    """
    looks: dict[int, list[Seen]] = {}
    left: dict[int, int] = {}  # tasks of a scene that have not ended
    total = sum(math.prod(plan.scenes[index].pixels.grid.shape) for index in indexes)
    done = read = 0

    def tasks() -> Iterator[Rows]:
        for index in indexes:
            mask_file = decided[index].mask_file if decided else None
            tasks = [*_tasks(plan, index, executor.workers, mask_file)]
            looks[index], left[index] = [], len(tasks)
            yield from tasks

    for found in executor.map_unordered(look, tasks()):
        rows, index = found.rows, found.rows.index
        looks[index].append(found)
        left[index] -= 1
        done += (rows.stop - rows.first) * rows.scene.pixels.grid.width
        read += (rows.stop - rows.first) * row_bytes(rows.scene.pixels)
        if report:
            report(Progress("survey", done, total, read))
        if not left[index]:
            yield index, sorted(looks.pop(index), key=lambda one: one.rows.first)


def _tasks(plan: Plan, index: int, workers: int, mask_file: str | None) -> Iterator[Rows]:
    """Yield one task for a scene in a single shard, which is read whole there too; else several.

    Each has some strips in a row, as many for every worker, for which the image is opened once.
    """
    scene = replace(plan.scenes[index], splits=())
    if not plan.in_several_shards(scene):
        yield Rows(index, scene, 0, scene.pixels.grid.height, are_all=True)
        return
    rows_of = strips(scene.pixels)
    some = min(_MOST_STRIPS, -(-len(rows_of) // workers))
    for start in range(0, len(rows_of), some):
        run = rows_of[start : start + some]
        yield Rows(index, scene, run[0][0], run[-1][1], are_all=False, mask_file=mask_file)


def _decided(
    plan: Plan, index: int, looks: Sequence[Seen], folder: str
) -> tuple[Outcome, NDArray[np.int64]]:
    """Return limits and status of a scene without its label, and its histogram.

    Its validity is written into the folder.
    """
    if failure := next((look.failure for look in looks if look.failure), ""):
        return Outcome("failed", failure), np.zeros((), np.int64)
    total = sum((seen.look for seen in looks), Look())
    counts = total.counts.toarray()
    bits, black, valid = replace(total, counts=counts).decided(plan.scenes[index].pixels)
    if reason := too_empty(1 - valid / total.pixels, plan.options):
        return Outcome("skipped", reason, black=black), counts
    file = None
    if bits is not None:
        file = _mask_file(folder, index)
        write_bits(file, bits)
    limits = _limits(counts) if plan.meta.rescale == "scene" else ()
    return Outcome(limits=limits, black=black, mask_file=file), counts


def _needs_label(plan: Plan, index: int, outcome: Outcome) -> bool:
    """Return whether a scene's label is a raster that several shards read, to look at too."""
    scene = plan.scenes[index]
    return outcome.status == "ok" and scene.rule is not None and plan.in_several_shards(scene)


def _with_label(plan: Plan, index: int, outcome: Outcome, looks: Sequence[Seen]) -> Outcome:
    """Return a scene with remarks on its label, or failed for all of its unlisted values."""
    unlisted, notes = Counter[str](), Counter[str]()
    for look in looks:
        unlisted.update(look.unlisted)
        add_notes(notes, look.notes, of_pixels=plan.options.classes is not None)
    label = plan.scenes[index].label
    assert label is not None
    failure = next((look.failure for look in looks if look.failure), "")
    if not failure and unlisted and (rule := plan.options.class_rule):
        failure = str(unlisted_error(label, rule, unlisted))
    if failure:
        return Outcome("failed", failure, black=outcome.black)
    return replace(outcome, notes=dict(notes))


def _limits(counts: NDArray[np.int64]) -> tuple[tuple[float, float], ...]:
    return tuple((low, high) for low, high in percentile_limits(counts).tolist())


# The tasks


def survey_rows(rows: Rows) -> Seen:
    """Return the histogram and the validity of some rows of a scene."""
    from scipy.sparse import csr_array  # few builds have a survey

    scene, total = rows.scene, Look()
    try:
        with SceneRows(scene.pixels, scene.inputs, "") as source:  # its result decides
            for first, stop in strips(scene.pixels):
                if not rows.first <= first < rows.stop or (rows.are_all and first > 0):
                    continue
                if stopped():
                    raise TaskStopped
                if rows.are_all:  # what is valid is decided again where it is read for its tiles
                    total = replace(Look.at(first, source.whole()), strips={})
                else:
                    total += Look.at(first, source.surveyed(first, stop))
    except GeoprepError as error:
        return Seen(rows, str(error))
    return Seen(rows, "", replace(total, counts=csr_array(total.counts)))


def survey_label(rows: Rows) -> Seen:
    """Return remarks on, or errors of, some rows of a scene's raster label.

    Values are errors only where pixels of the image are valid.
    """
    if stopped():
        raise TaskStopped
    label, rule, grid = rows.scene.label, rows.scene.rule, rows.scene.pixels.grid
    assert label is not None
    assert rule is not None
    valid = None
    if rows.mask_file is not None:
        below = slice(rows.first, rows.stop), slice(0, grid.width)
        valid = read_bits(rows.mask_file, grid.width, *below) != 0
    try:
        window = SceneWindow(rows.first, 0, rows.stop - rows.first, grid.width)
        return Seen(rows, notes=read_mask(label, rule, grid, window, valid)[1])
    except UnlistedError as error:
        return Seen(rows, unlisted=error.pixels)
    except LabelError as error:
        return Seen(rows, str(error))
