"""All images of a request: what is done already, what is to do, what went wrong."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from geoprep.errors import GeoprepError, UsageError
from geoprep.sources import images_and_labels
from geoprep.storage import fetch_object, is_remote, object_version
from training.inference import Runner
from training.prediction.cog.journal import BusyError, remove_leftover
from training.prediction.images import Source, inspect, limits_note
from training.prediction.mapping import Mapper, MapStats, Report
from training.prediction.overlay import write_overlay, write_style
from training.prediction.product import difference, found_signature


class Reporter(Protocol):
    """Who is told what happens."""

    def begin(self, target: Path, pixels: int) -> Report:
        """Return the callback for the progress of one image."""
        ...

    def done(self, outcome: Outcome) -> None:
        """Take note of an image that is finished with."""
        ...

    def say(self, line: str) -> None:
        """Show a line."""
        ...


@dataclass(slots=True)
class Outcome:
    """One image and what became of it.

    Attributes
    ----------
    address
        Of the image.
    target
        Of its map.
    source
        What is known of the image; None where it could not be opened, or is still on its server.
    version
        Of an image on a server.
    kept
        Whether its map was there already.
    theirs
        Whether another process is writing its map, or has just written it.
    stats
        None where there was nothing to do, or it failed.
    error
        Why it failed.
    """

    address: str
    target: Path
    source: Source | None = None
    version: str = ""
    kept: bool = False
    theirs: bool = False
    stats: MapStats | None = None
    error: str = ""

    @property
    def state(self) -> str:
        """What became of it, in one word."""
        if self.error:
            return "failed"
        done = "continued" if self.stats and self.stats.continued else "mapped"
        return "theirs" if self.theirs else "kept" if self.kept else done


@dataclass(slots=True)
class Job:
    """Maps of many images.

    Attributes
    ----------
    mapper
        Makes one map.
    runner
        The network.
    out
        Folder of the maps.
    turn
        Which of how many processes this is that do the same job: each begins with images of its
        own, and then helps with what is left.
    since
        When they began, in seconds of `time.time`: maps made from then on are not replaced.
    """

    mapper: Mapper
    runner: Runner
    out: Path
    turn: tuple[int, int] = (0, 1)
    since: float | None = None
    _said: set[str] = field(default_factory=set)
    _pixels: Counter[tuple[int, int, int]] = field(default_factory=Counter)

    def run(self, images: Sequence[str], reporter: Reporter) -> list[Outcome]:
        """Map all images; one that fails does not stop the others.

        Parameters
        ----------
        images
            Files, folders and patterns, also on S3.
        reporter
            Told what happens.

        Raises
        ------
        UsageError
            An output exists that this request would not have made, or would be an input.
        SourceError
            A pattern matches nothing.
        """
        tasks = [Outcome(address, self.out / f"{name}.tif") for name, address in _find(images)]
        _check_inputs_stay(tasks)
        self.out.mkdir(parents=True, exist_ok=True)
        self._pixels.clear()
        for task in tasks:
            self._look_at(task)
        self._check_outputs(tasks)
        number, count = self.turn
        for task in (t for k in range(count) for t in tasks[(number + k) % count :: count]):
            if not task.error:
                try:
                    self._one(task, reporter)
                except BusyError:
                    task.theirs = True
                except GeoprepError as error:
                    task.error = str(error)
                    shutil.rmtree(_copy_of(task).parent, ignore_errors=True)
                except OSError as error:
                    task.error = f"{error.strerror or error}; what is done is kept, run it again"
            reporter.done(task)
        return tasks

    def _look_at(self, task: Outcome) -> None:
        """Learn what can be known of an image without fetching it; note what is wrong with it."""
        mapper = self.mapper
        try:
            if is_remote(task.address):
                task.version = object_version(task.address)
            else:
                task.source = inspect(task.address, mapper.facts, mapper.options)
                task.version = task.source.version
                self._pixels[mapper.grid(task.source).shape] += mapper.network_pixels(task.source)
        except UsageError:
            raise
        except GeoprepError as error:
            task.error = str(error)

    def _runner(self, source: Source | None) -> tuple[Runner, str]:
        """Return the runner for an image and why it is that one; None stands for a small image.

        Maps that are complete count too: the same request is carried out in the same way, however
        often it was broken off.
        """
        if source is None:
            return self.runner.for_pixels(0)
        shape = self.mapper.grid(source).shape
        return self.runner.for_pixels(max(self._pixels[shape], self.mapper.network_pixels(source)))

    def _check_outputs(self, tasks: Sequence[Outcome]) -> None:
        """Find the maps that are there; raise UsageError for one that is not what was asked for."""
        for task in tasks:
            if task.error or not task.target.exists():
                continue
            differs = self._differs(task)
            if self.mapper.options.overwrite and (differs or not self._is_new(task)):
                continue
            if differs:
                raise UsageError(
                    f"{task.target} exists and {differs}: --overwrite replaces it, or give --out "
                    "another folder"
                )
            task.kept = True

    def _differs(self, task: Outcome) -> str:
        """Return in words how the map that is there is not what was asked for."""
        runner, _ = self._runner(task.source)
        name = PurePosixPath(task.address).name
        wanted = self.mapper.signature(name, task.version, runner)
        # What was compiled or not without being asked for is as good either way.
        loose = ("compiled",) if self.mapper.options.compile == "auto" else ()
        return difference(found_signature(task.target), wanted, loose)

    def _is_new(self, task: Outcome) -> bool:
        """Return whether a map was finished since the processes of this job began."""
        since = self.since
        return since is not None and task.target.exists() and task.target.stat().st_mtime >= since

    def _one(self, task: Outcome, reporter: Reporter) -> None:
        if not task.kept and self._is_new(task) and not self._differs(task):
            task.theirs = True
            return
        if task.kept:
            remove_leftover(task.target)
        facts, threshold = self.mapper.facts, self.mapper.threshold
        there = task.kept and task.target.with_suffix(".png").exists()
        picture = self.mapper.options.overlay and not there
        if not task.kept or picture:
            self._fetch(task)
        if task.source is not None and not task.kept:
            task.stats = self._map(task, task.source, reporter)
        if task.source is not None and picture:
            write_overlay(task.source, task.target, facts, threshold)
        style = task.target.with_suffix(".qml")
        if task.stats or not style.exists():
            write_style(style, bool(facts.class_mph), threshold)
        shutil.rmtree(_copy_of(task).parent, ignore_errors=True)

    def _fetch(self, task: Outcome) -> None:
        """Have an image on the disk: one on a server is copied, as it is read more than once."""
        if not is_remote(task.address):
            return
        copy = _copy_of(task)
        noted = copy.parent / "version"
        there = noted.read_text() if noted.exists() and copy.exists() else None
        if there != task.version:
            shutil.rmtree(copy.parent, ignore_errors=True)
            copy.parent.mkdir()
            task.version = fetch_object(task.address, copy) or task.version
            noted.write_text(task.version)
        mapper = self.mapper
        task.source = inspect(str(copy), mapper.facts, mapper.options, task.version)

    def _map(self, task: Outcome, source: Source, reporter: Reporter) -> MapStats:
        runner, why = self._runner(source)
        note = limits_note(self.mapper.facts, self.mapper.options.rescale)
        for line in (why and f"network {why}", note):
            if line and line not in self._said:
                self._said.add(line)
                reporter.say(line)
        progress = reporter.begin(task.target, self.mapper.grid(source).pixels)
        stats = self.mapper.run(source, task.target, runner, progress)
        if stats.lost:
            reporter.say(
                f"warning   {source.name}: the network gave no number for {stats.lost:,} pixels: "
                "no data in the map (--precision fp32 may help)"
            )
        return stats


def _find(images: Sequence[str]) -> list[tuple[str, str]]:
    """Return name and address of every image; the option of another command goes unmentioned."""
    try:
        return [(scene.id, scene.image) for scene in images_and_labels(images).scenes]
    except GeoprepError as error:
        raise type(error)(str(error).replace("--images ", "")) from error


def _check_inputs_stay(tasks: Sequence[Outcome]) -> None:
    inputs = {Path(t.address).resolve() for t in tasks if not is_remote(t.address)}
    for task in tasks:
        if task.target.resolve() in inputs:
            raise UsageError(
                f"the map of {task.address} would replace an image: give --out another folder"
            )


def _copy_of(task: Outcome) -> Path:
    """Return where an image on a server is copied to while it is mapped."""
    return task.target.with_name(f".{task.target.name}.image") / PurePosixPath(task.address).name
