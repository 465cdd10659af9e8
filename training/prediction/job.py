"""Predict many images: skip finished ones, resume interrupted ones, collect what failed.

The way of an image from top to bottom: `predict_images` is one process, `open_job` opens the model,
`PredictionJob.run` goes through the images, and `Predictor.run` predicts one.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, filterfalse, takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from geoprep.errors import GeoprepError, UsageError
from geoprep.executors.threads import Threads, stopped
from geoprep.imagery.description import NOTHING_STATED
from geoprep.imagery.headers import describe
from geoprep.imagery.rescale import MOST_AT_ENDS
from geoprep.outputs import check_outputs, require_suffix
from geoprep.roads.names import scene_key
from geoprep.sources.own_images import images_and_labels
from geoprep.sources.scene import SourceScenes
from geoprep.storage.addresses import is_remote, joined, split_address
from geoprep.storage.places import remote_file
from geoprep.storage.transfer import download
from geoprep.storage.versions import content_digest
from geoprep.store.reader import StoreReader
from geoprep.store.scenes import scenes_in_split
from geoprep.views.geotiff import write_sidecar
from loaders import has_streams
from training.engine.host import keep_memory
from training.prediction.device_check import DeviceError
from training.prediction.images import ImageSource, inspect_image
from training.prediction.journal import BusyError, locked, remove_leftover
from training.prediction.overlay import write_overlay, write_style
from training.prediction.predict_options import PredictOptions, limits_note
from training.prediction.prediction_tags import difference, signature_of
from training.prediction.predictor import ImageOutcome, Predictor, PredictStats
from training.prediction.screen import Screen
from training.prediction.windows import check_window
from training.runners.decoding import chosen_threshold
from training.runners.ensemble import open_models, split_models
from training.runners.runner import Runner

_SMALL = 16_000_000
"""Pixels through the model of the largest image of a job that predicts several at a time."""

_RESERVE = 1 << 30
"""Bytes reserved in huge pages, about the activations of a batch."""

Take = Callable[[], int]
"""Returns the number of the next image that no process has taken, from 0 on."""


def predict_images(
    options: PredictOptions, screen: Screen, take: Take | None = None, *, first: bool = True
) -> list[ImageOutcome]:
    """Predict as one process, the only one or one of several, see `PredictionJob.run`.

    The ``first`` prints messages that are the same for all.
    """
    allocator = keep_memory(_RESERVE, one_heap=True)
    job, header = open_job(options)
    for line in (*header, f"allocator: {allocator}") if first else ():
        screen.say(line)
    return job.run(screen, take, first=first)


def scenes_of(options: PredictOptions) -> list[str]:
    """Return the ids of the scenes of the split of a store that are to be predicted."""
    if options.of is None or options.split is None:
        raise UsageError("of", "names a store and `split` one of its splits: give both")
    return scenes_in_split(StoreReader.open(options.of), options.split)


def open_job(options: PredictOptions) -> tuple[PredictionJob, list[str]]:
    """Return the job of the options, and lines that describe its model and threshold.

    Raises
    ------
    UsageError
        An option is invalid, or does not apply to the model.
    CheckpointError
        The model's file is missing or damaged.
    """
    if options.split is not None and options.of is None:
        raise UsageError("split", "is one of a store: name the store as `of`")
    if options.out is None:
        raise UsageError("out", "is missing: name a folder for the predictions")
    check_window(options.window, options.overlap)
    files, images = split_models(options.checkpoint, options.images)
    if not images:
        raise UsageError("there are models but no images: name images after them")
    options, several = replace(options, images=images), len(files) > 1
    runner, info = open_models(options, files, options.compile, spread=several)
    if options.batch_size is None:  # an accelerator waits for the host if a batch is one window
        options = replace(options, batch_size=8 if has_streams(runner.device) else 1)
    if options.polygons:
        require_suffix(options.polygons, ".gpkg", ".geojson", ".fgb")
    if options.where and not (options.area and Path(options.area).exists()):
        raise UsageError("where", "selects features of a file: name the file as `area`")
    for name in ("square", "min_area", "simplify"):
        if getattr(options, name) and not options.polygons:
            raise UsageError(name, "is for `polygons`: name their file too, or leave it out")
    for name in ("confidence", "probabilities", "polygons"):
        if getattr(options, name) and not info.has_classes:
            raise UsageError(name, "is for models of classes; this one has roads")
    if options.outputs == "all" and info.has_classes:
        raise UsageError("outputs", "is for models of roads; this one has classes")
    threshold = chosen_threshold(info, options.threshold)
    origin = "default: never validated" if info.threshold is None else "chosen on validation scenes"
    origin = origin if options.threshold is None else "from the options"
    x, y = info.gsd_m
    header = [
        f"model {', '.join(map(str, files))}: {info.model}, bands {', '.join(info.bands)}, "
        f"{x:.3g} x {y:.3g} m, {runner.description}",
        f"classes {info.classes}" if info.has_classes else f"threshold {threshold:.3g} ({origin})",
    ]
    # With the word that predictions of earlier versions have in their signature.
    digest = " ".join([*(content_digest(str(file)) for file in files), "auto"])
    predictor = Predictor(info, options, threshold, digest, several)
    if runner.device.type != "cpu":
        host = replace(options, device="cpu")
        open_on_host = partial(open_models, host, files, options.compile, spread=several)
        predictor = replace(predictor, on_host=lambda: open_on_host()[0])
    return PredictionJob(predictor, runner, files), header


@dataclass(slots=True)
class PredictionJob:
    """Predictions of the images of the options, by one process."""

    predictor: Predictor
    runner: Runner
    models: Sequence[Path]
    _found: SourceScenes = field(default=SourceScenes((), ""))
    _shown: set[str] = field(default_factory=set)
    _pixels: Counter[tuple[int, int, int]] = field(default_factory=Counter)

    def run(
        self, screen: Screen, take: Take | None = None, *, first: bool = True
    ) -> list[ImageOutcome]:
        """Predict all images; one that fails does not stop the others.

        ``take`` returns the number of the next image, which several processes share; None for one
        process, which predicts all of them. The ``first`` process prints messages that concern all.

        1. The images are found.
        2. Their headers are read. A prediction that was made with other options is refused, and so
           is any other file that exists, unless they are to be overwritten.
        3. This process takes one after the other, or several small ones at a time.
        """
        options = self.predictor.options
        assert options.out is not None  # `open_job` makes sure
        folder = options.out
        try:
            self._found = images_and_labels(  # 1
                options.images,
                asset=options.asset,
                leave_out=partial(_is_prediction_in, folder),
                folders=False,
            )
        except GeoprepError as error:  # `images` are positional here
            raise type(error)(re.sub("(--|`)images`? ", "", str(error))) from error
        if options.of is not None:
            keys = set(map(scene_key, scenes_of(options)))
            kept = [scene for scene in self._found.scenes if scene_key(scene.id) in keys]
            if not kept:
                raise UsageError(f"no image is of a {options.split} scene of `of` {options.of}")
            self._found = replace(self._found, scenes=tuple(kept))
        for note in self._found.notes if first else ():
            screen.say(f"note: {note}")
        tasks = [
            ImageOutcome(scene.image, folder / f"{scene.id}.tif") for scene in self._found.scenes
        ]
        folder.mkdir(parents=True, exist_ok=True)
        self._pixels.clear()
        for task in tasks:  # 2
            self._inspect(task)
        if tasks and all(task.state == "outside" for task in tasks):
            raise UsageError("area", f"{options.area} intersects none of the images: check its CRS")
        files = self._outputs(tasks)
        if first:
            inputs = (*self.models, options.area, *_files_of(tasks))
            check_outputs(*files, inputs=inputs, overwrite=options.overwrite)
        taken = iter(take or count().__next__, -1)  # 3
        numbers = takewhile(lambda number: number < len(tasks), taken)
        finish = partial(self._finish, tasks, screen)
        several = self._images_at_a_time(tasks)
        threads = Threads(several).map_unordered if several > 1 else map
        for task in threads(finish, numbers):
            screen.say(task)
        return tasks

    def _inspect(self, task: ImageOutcome) -> None:
        """Read an image's header, or the version of a remote one; note an error in the task."""
        predictor = self.predictor
        try:
            if is_remote(task.address):
                remotes = map(remote_file, split_address(task.address))
                task.version = " ".join(remote.version for remote in remotes)
            else:
                task.source = self._inspected(task.address, task)
                task.version = task.source.version
                if task.source.outside:
                    task.state = "outside"
                    return
                shape = predictor.grid(task.source).shape
                self._pixels[shape] += predictor.network_pixels(task.source)
        except UsageError:
            raise
        except GeoprepError as error:
            task.error = str(error)

    def _inspected(self, address: str, task: ImageOutcome) -> ImageSource:
        """Return the header of an image, or of its copy, with what a STAC item states of it."""
        info, options, found = self.predictor.info, self.predictor.options, self._found
        stated = found.stated.get(task.target.stem, NOTHING_STATED)
        return inspect_image(address, info, options, task.version, stated)

    def _outputs(self, tasks: Sequence[ImageOutcome]) -> list[Path]:
        """Mark complete predictions, and return the files that are to be written.

        UsageError: a prediction was made with other options.
        """
        options = self.predictor.options
        files = [] if options.polygons is None else [options.polygons]
        for task in tasks:
            if task.error or task.state == "outside":
                continue
            if not options.overwrite and (signed := signature_of(task.target)) is not None:
                if differs := self._differs(task, signed):
                    raise UsageError(
                        f"{task.target} exists and {differs}: use `overwrite` to replace it, "
                        "or another folder as `out`"
                    )
                task.state = "complete"
            picture = [task.target.with_suffix(".png")] * options.overlay
            beside = [*picture, task.target.with_suffix(".qml")]
            if task.state == "complete":
                files += [path for path in beside if not path.exists()]
            else:
                files += [task.target, *beside]
        return files

    def _differs(self, task: ImageOutcome, signed: dict[str, Any]) -> str:
        """Return how the prediction that exists differs from the requested one; empty if equal."""
        runner, _ = self._runner(task.source)
        name = PurePosixPath(task.address).name
        requested = self.predictor.signature(name, task.version, runner)
        # Unless it was asked for, a prediction may be of a compiled model or not.
        options = self.predictor.options
        loose = ["compiled"] if options.compile == "auto" else []
        loose += ["bins"] if options.outputs != "all" else []  # it may have more bands
        loose += ["grid"] if "grid" not in signed else []  # the image was not resampled
        return difference(signed, requested, loose)

    def _runner(self, source: ImageSource | None) -> tuple[Runner, str]:
        """Return the runner for an image and a note on it; None stands for a small image.

        The pixels of all images count, finished ones too, so that a job that is interrupted
        and run again chooses the same runner.
        """
        if source is None:
            return self.runner.for_pixels(0)
        shape = self.predictor.grid(source).shape
        pixels = max(self._pixels[shape], self.predictor.network_pixels(source))
        return self.runner.for_pixels(pixels)

    def _images_at_a_time(self, tasks: Sequence[ImageOutcome]) -> int:
        """Return how many images to predict at a time, so that no thread waits for another's I/O.

        Windows of a large image overlap in time as it is, and two would take twice the memory. On a
        device the next image is decoded while one is predicted, see `Predictor.run`.
        """
        todo = [task.source for task in tasks if not task.error and task.state != "complete"]
        if has_streams(self.runner.device):
            return min(2, len(todo))
        pixels = [self.predictor.network_pixels(s) if s else _SMALL + 1 for s in todo]
        return min(self.runner.images, len(todo)) if max(pixels, default=0) <= _SMALL else 1

    def _finish(self, tasks: Sequence[ImageOutcome], screen: Screen, number: int) -> ImageOutcome:
        """Predict an image unless that is done, and return its outcome."""
        task = tasks[number]
        if not task.error and task.state != "outside":
            try:
                self._process(task, screen)
            except BusyError:
                task.state = "busy"
            except GeoprepError as error:
                task.error = str(error)
            except OSError as error:
                task.error = f"{error.strerror or error}; run the command again to resume"
        task.state = "failed" if task.error else task.state
        return task

    def _process(self, task: ImageOutcome, screen: Screen) -> None:
        complete = task.state == "complete"
        if complete:
            remove_leftover(task.target)
        info, threshold = self.predictor.info, self.predictor.threshold
        overlay, style = task.target.with_suffix(".png"), task.target.with_suffix(".qml")
        picture = self.predictor.options.overlay and not (complete and overlay.exists())
        with self._copied(task) if not complete or picture else nullcontext():
            if task.source is not None and task.source.outside:
                task.state = "outside"
                return
            if task.source is not None and not complete:
                task.stats = self._predict(task, task.source, screen)
                task.state = "resumed" if task.stats.continued else "predicted"
            if task.source is not None and picture:
                write_overlay(task.source, task.target, info, threshold)
        if task.stats or not style.exists():
            if task.stats or not task.target.with_name(f"{task.target.name}.aux.xml").exists():
                names = info.class_names if info.has_classes else ()
                write_sidecar(task.target, task.source.crs if task.source else None, names)
            write_style(style, info, threshold)
        if task.stats and not picture and overlay.exists():
            screen.say(f"warning: {overlay} was there before and may show another prediction")

    @contextmanager
    def _copied(self, task: ImageOutcome) -> Iterator[None]:
        """Download a remote image, which is read more than once, and keep others from its copy.

        The copy stays where a run can resume.
        """
        if not is_remote(task.address):
            yield
            return
        folder = task.target.with_name(f".{task.target.name}.image")
        copies = {
            folder / str(number or "") / PurePosixPath(address).name: remote_file(address)
            for number, address in enumerate(split_address(task.address))
        }
        with locked(folder):
            try:
                for copy, remote in copies.items():
                    download(remote, copy)
                task.version = " ".join(remote.version for remote in copies.values())
                task.source = self._inspected(joined(map(str, copies)), task)
                yield
            except GeoprepError:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            shutil.rmtree(folder, ignore_errors=True)

    def _predict(self, task: ImageOutcome, source: ImageSource, screen: Screen) -> PredictStats:
        runner, note = self._runner(source)
        info, options = self.predictor.info, self.predictor.options
        for line in (*source.notes, note, limits_note(info, options.rescale)):
            if line and line not in self._shown:
                self._shown.add(line)
                screen.say(line)
        show = screen.begin(task.target, self.predictor.grid(source).pixels)

        def progress(pixels: float) -> None:
            if stopped():  # Ctrl-C, which Python raises in the main thread only
                raise KeyboardInterrupt
            show(pixels)

        try:
            stats = self.predictor.run(source, task.target, runner, progress)
        except DeviceError as error:
            if self.predictor.on_host is not None:
                self.runner = self.predictor.on_host()
                on_host = replace(options, batch_size=1)
                self.predictor = replace(self.predictor, options=on_host, on_host=None)
                screen.say(f"warning: {error}: images are predicted on the host")
            return self._predict(task, source, screen)
        if stats.discarded:
            screen.say(
                f"note: {task.target}: an interrupted run had other options, or another device or "
                "way of blending, so that it was predicted anew"
            )
        limits = source.limits
        if stats.at_ends > MOST_AT_ENDS and limits is not None and (limits != (0, 255)).any():
            screen.say(
                f"warning: {source.name}: {stats.at_ends:.1%} of its values are at the ends of the "
                f"limits of rescaling, {limits.tolist()}: they are of other values. Use "
                "`rescale` scene, or LO,HI in the range of the image"
            )
        if stats.lost:
            screen.say(
                f"warning: {source.name}: the model's output is not finite at {stats.lost:,} "
                "pixels, which are nodata in the prediction (`precision` fp32 may help)"
            )
        return stats


def _is_prediction_in(folder: Path, address: str) -> bool:
    """Return whether an image is a prediction in a folder, or the picture of one."""
    path = Path(address)
    inside = not is_remote(address) and path.parent.resolve() == folder.resolve()
    return inside and signature_of(path.with_suffix(".tif")) is not None


def _files_of(tasks: Sequence[ImageOutcome]) -> list[str]:
    """Return all files of the images on the disk, such as the sources of a VRT."""
    files: list[str] = []
    for task in tasks:
        addresses = split_address(task.address)
        files += addresses
        if task.source is not None:
            files += task.source.files
            continue
        for address in filterfalse(is_remote, addresses):  # its header could not be used
            with suppress(GeoprepError):
                files += describe(address).files
    return files
