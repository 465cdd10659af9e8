"""All images of a request: what is done already, what is to do, what went wrong."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from geoprep.errors import GeoprepError, UsageError
from geoprep.sources import Scene, images_and_labels
from geoprep.storage import is_remote, read_bytes
from training.prediction.mapping import Mapper, Plan, Report, Work
from training.prediction.network import CompileWish, should_compile
from training.prediction.overlay import write_overlay
from training.prediction.product import difference, found_signature, signature
from training.prediction.source import Source, inspect


class Watcher(Protocol):
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one image.

    Attributes
    ----------
    address
        Of the image.
    target
        Of its map.
    source
        None where it could not be opened.
    work
        None where there was nothing to do, or it failed.
    error
        Why it failed.
    """

    address: str
    target: Path
    source: Source | None = None
    work: Work | None = None
    error: str = ""


@dataclass(slots=True)
class _Task:
    """One image, its map, and what could be learned of it beforehand."""

    scene: Scene
    target: Path
    source: Source | None = None
    error: str = ""
    kept: bool = False


@dataclass(slots=True)
class Job:
    """Maps of many images.

    Attributes
    ----------
    mapper
        Makes one map.
    out
        Folder of the maps.
    compile_wish
        ``auto``, ``on`` or ``off``.
    overwrite
        Whether maps of another checkpoint are replaced.
    overlay
        Whether a picture is written beside each map.
    """

    mapper: Mapper
    out: Path
    compile_wish: CompileWish = "auto"
    overwrite: bool = False
    overlay: bool = False
    _said: set[str] = field(default_factory=set)

    def run(self, images: Sequence[str], watcher: Watcher) -> list[Outcome]:
        """Map all images; one that fails does not stop the others.

        Parameters
        ----------
        images
            Files, folders and patterns, also on S3.
        watcher
            Told what happens.

        Raises
        ------
        UsageError
            An output exists that this request would not have made, or would be an input.
        SourceError
            A pattern matches nothing.
        """
        tasks = [
            _Task(scene, self.out / f"{scene.id}.tif") for scene in images_and_labels(images).scenes
        ]
        self._check_inputs_stay(tasks)
        self.out.mkdir(parents=True, exist_ok=True)
        for task in tasks:
            if not is_remote(task.scene.image):
                self._look_at(task, task.scene.image)
        self._check_outputs(tasks)
        shapes = self._pixels_by_shape(tasks)
        outcomes = []
        for task in tasks:
            outcome = self._one(task, shapes, watcher)
            watcher.done(outcome)
            outcomes.append(outcome)
        return outcomes

    def _check_inputs_stay(self, tasks: Sequence[_Task]) -> None:
        inputs = {Path(t.scene.image).resolve() for t in tasks if not is_remote(t.scene.image)}
        for task in tasks:
            if task.target.resolve() in inputs:
                raise UsageError(
                    f"the map of {task.scene.image} would replace an image: give --out another "
                    "folder"
                )

    def _look_at(self, task: _Task, address: str) -> None:
        try:
            task.source = inspect(address, self.mapper.facts, self.mapper.recipe.wishes)
        except UsageError:
            raise
        except GeoprepError as error:
            task.error = str(error)

    def _check_outputs(self, tasks: Sequence[_Task]) -> None:
        """Find the maps that are there; raise UsageError for one that is not what was asked for."""
        for task in tasks:
            if self.overwrite or not task.target.exists():
                continue
            found = found_signature(task.target)
            wanted = self._signature(task)
            if found != wanted:
                raise UsageError(
                    f"{task.target} exists and {difference(found, wanted)}: --overwrite replaces "
                    "it, or give --out another folder"
                )
            task.kept = True

    def _signature(self, task: _Task) -> dict[str, object]:
        recipe = self.mapper.recipe
        if task.source is not None:
            return signature(task.source, recipe)
        return {**recipe.plain(), "image": [PurePosixPath(task.scene.image).name]}

    def _plan(self, source: Source) -> Plan:
        return Plan.of(source, self.mapper.recipe, self.mapper.batch)

    def _pixels_by_shape(self, tasks: Sequence[_Task]) -> Counter[tuple[int, int, int]]:
        """Return the pixels to put through the network in each shape of batch."""
        counts: Counter[tuple[int, int, int]] = Counter()
        for task in tasks:
            if task.source is not None and not task.kept:
                plan = self._plan(task.source)
                counts[plan.shape] += plan.pixels * self.mapper.predictor.views
        return counts

    def _one(self, task: _Task, shapes: Counter[tuple[int, int, int]], watcher: Watcher) -> Outcome:
        address, target = task.scene.image, task.target
        if task.error:
            return Outcome(address, target, error=task.error)
        try:
            with self._local(task):
                source = task.source
                if source is None:
                    return Outcome(address, target, error=task.error)
                work = None if task.kept else self._map(source, target, shapes, watcher)
                if self.overlay and (work or not target.with_suffix(".png").exists()):
                    write_overlay(
                        source, target, self.mapper.facts.bands, self.mapper.recipe.threshold
                    )
        except (GeoprepError, OSError) as error:
            return Outcome(address, target, task.source, error=str(error))
        return Outcome(address, target, source, work)

    @contextmanager
    def _local(self, task: _Task) -> Iterator[None]:
        """Have an image on the disk: one on a server is fetched, as it is read more than once."""
        address = task.scene.image
        if not is_remote(address) or (task.kept and not self.overlay):
            yield
            return
        folder = task.target.with_name(f".{task.target.name}.image")
        local = folder / PurePosixPath(address).name
        if not local.exists():
            folder.mkdir(exist_ok=True)
            partial = local.with_name(f"{local.name}.part")
            partial.write_bytes(read_bytes(address))
            partial.replace(local)
        self._look_at(task, str(local))
        if task.source is not None:
            task.source = replace(task.source, stamp=())  # of the copy, not of the object
        yield
        shutil.rmtree(folder)

    def _map(
        self,
        source: Source,
        target: Path,
        shapes: Counter[tuple[int, int, int]],
        watcher: Watcher,
    ) -> Work:
        plan = self._plan(source)
        predictor = self.mapper.predictor
        pixels = max(shapes[plan.shape], plan.pixels * predictor.views)
        compiled, why = should_compile(self.compile_wish, predictor.device, pixels)
        if why not in self._said:
            self._said.add(why)
            watcher.say(f"network {why}")
        work = self.mapper.run(source, target, compiled, watcher.begin(target, plan.pixels))
        if work.note:
            watcher.say(f"{source.name}: {work.note}")
        return work
