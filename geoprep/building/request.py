"""The request of a build: sources, target and options as given, checked, and the scenes found."""

from __future__ import annotations

import glob
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from geoprep.building.options import BuildOptions, InputOptions
from geoprep.executors.progress import counting_bar, progress_bar
from geoprep.labels.coco_files import Coco
from geoprep.labels.vector_names import is_vector
from geoprep.sources.archives import (
    archive_in_place,
    is_archive,
    is_member,
    is_read_from_copy,
    local_pattern,
)
from geoprep.sources.cities import get_city
from geoprep.sources.city_scenes import find_scenes
from geoprep.sources.local_copies import (
    copies_folder,
    copy_path,
    download_scenes,
    has_remote,
)
from geoprep.sources.own_images import images_and_labels
from geoprep.sources.scene import SourceScenes, refuse_inside
from geoprep.sources.stac_items import is_items
from geoprep.storage.addresses import is_remote
from geoprep.storage.versions import content_digest

if TYPE_CHECKING:
    from rich.progress import TaskID

PRODUCT: Final = "PS-RGB"
"""Imagery product of a city where none is given."""

Stage = Literal["unpacking", "downloading"]
"""What is counted before a build: bytes while unpacking, else scenes."""
_BARS: Final[dict[Stage, tuple[str, int]]] = {
    "unpacking": ("unpacking, MB", 10**6),
    "downloading": ("downloading scenes", 1),
}
"""Title of the bar, and unit that it counts."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a build."""

    stage: Literal["survey", "build"]
    pixels_done: int  # of images in the survey, else of tiles at the finest level
    pixels: int
    bytes_read: int  # decoded by this run in this stage, uncompressed
    pixels_kept: int = 0  # of those done, that an earlier run finished


Report = Callable[[Progress], None]
"""Called after every task."""


class BuildObserver:
    """Shows progress bars and messages of a build on standard error; subclasses may do others."""

    def __init__(self, *, bars: bool = True, messages: bool = True) -> None:
        self._quiet, self._messages = not bars, messages

    def counting(self, stage: Stage) -> AbstractContextManager[Callable[[int, int], None]]:
        """Return a callback for the amounts done and in total of a stage before the build."""
        title, unit = _BARS[stage]
        return counting_bar(title, self._quiet, per=unit)

    @contextmanager
    def building(self) -> Iterator[Callable[[Progress], None]]:
        """Yield a callback for the progress of the survey and of the build."""
        if self._quiet:
            yield lambda _progress: None
            return
        from rich.progress import TextColumn

        with progress_bar(TextColumn("{task.fields[rate]}")) as bar:
            tasks: dict[str, TaskID] = {}
            titles = {"survey": "surveying, megapixels", "build": "building, megapixels"}

            def show(progress: Progress) -> None:
                if progress.stage not in tasks:
                    total = round(progress.pixels / 1e6)
                    title = titles[progress.stage]
                    tasks[progress.stage] = bar.add_task(title, total=total, rate="")
                task = bar.tasks[tasks[progress.stage]]
                elapsed = task.elapsed or 0.0
                rate = ""
                if elapsed > 0 and progress.bytes_read:
                    pixels = (progress.pixels_done - progress.pixels_kept) / elapsed / 1e6
                    rate = f"{pixels:.1f} Mpx/s {progress.bytes_read / elapsed / 1e6:.0f} MB/s"
                bar.update(task.id, completed=round(progress.pixels_done / 1e6), rate=rate)

            yield show

    def message(self, line: str) -> None:
        """Take a line for the user, such as where files were downloaded to."""
        if self._messages:
            print(line, file=sys.stderr)

    def note(self, line: str) -> None:
        """Take a remark on the inputs, at the end."""
        self.message(f"note: {line}")


@dataclass(frozen=True, slots=True)
class Sources:
    """The scenes of a build by source, a name for every source, and where the store goes."""

    found: list[SourceScenes]
    names: list[str]  # of cities, or ``custom``
    out: str | Path
    unknown: tuple[str, ...] = ()  # addresses that a dry run does not read
    labels_known: bool = True

    def downloaded(self, observer: BuildObserver) -> Sources:
        """Return the sources with remote images and labels downloaded."""
        if not any(has_remote(source) for source in self.found):
            return self
        folder = copies_folder(self.out)
        with observer.counting("downloading") as report:
            local = [download_scenes(source, folder, report) for source in self.found]
        observer.message(f"downloaded to {folder}")
        return replace(self, found=local)


@dataclass(frozen=True, slots=True)
class Request:
    """The sources of a build and its target, as they were given."""

    inputs: InputOptions
    options: BuildOptions
    out: str | Path | None  # a local path, or an address; None: named after the cities
    coco: Coco | None  # the labels, if they are instances in one file

    def find(self, observer: BuildObserver) -> Sources:
        """Return the scenes; archives, and what else is not read in place, are local then."""
        if self.out is None or self.inputs.city:
            return self._find_cities(observer)
        folder, said = copies_folder(self.out), set[str]()

        def local(pattern: str) -> str:
            with observer.counting("unpacking") as report:
                place, note = local_pattern(pattern, folder, report)
            if note and note not in said:
                observer.message(note)
                said.add(note)
            return place

        images = [text if is_items(text) else local(text) for text in self.inputs.images]
        if self.coco is None:
            return self._matched(images, self.inputs.labels and local(self.inputs.labels), self.out)
        masks = copy_path(str(self.coco.path.absolute()), folder)
        masks = masks.with_name(f"{masks.name}.{content_digest(str(self.coco.path))[:8]}")
        for note in self.coco.rasters(masks):
            observer.note(note)
        return self._matched(images, f"{glob.escape(str(masks.absolute()))}/**/*.png", self.out)

    def find_in_place(self, observer: BuildObserver) -> Sources:
        """Return the scenes without unpacking or downloading; what that needs is unknown."""
        if self.out is None or self.inputs.city:
            return self._find_cities(observer, in_place=True)
        labels = self.inputs.labels
        given = filter(None, [*self.inputs.images, labels])
        unknown = [text for text in given if not is_items(text) and is_read_from_copy(text)]
        unknown += [str(labels)] * (self.coco is not None)
        images = [
            text if is_items(text) else archive_in_place(text)
            for text in self.inputs.images
            if text not in unknown
        ]
        labels = None if labels is None or labels in unknown else archive_in_place(labels)
        if labels and is_vector(labels) and is_member(labels):  # one file for all scenes
            unknown, labels = [*unknown, labels], None
        known = (labels is None) == (self.inputs.labels is None)
        sources = self._matched(images, labels, self.out)
        return replace(sources, unknown=tuple(unknown), labels_known=known)

    def _matched(self, images: list[str], labels: str | None, out: str | Path) -> Sources:
        """Return the scenes of a user's own images."""
        if not images:
            return Sources([], [], out)
        given, masks = self.inputs, self._reads_rasters(labels)
        asset = ",".join(given.asset) or None
        found = images_and_labels(
            images, labels, masks=masks, asset=asset, label_name=given.label_name
        )
        refuse_inside([found], out, [*filter(None, [*given.images, given.labels])])
        return Sources([found], ["custom"], out)

    def _find_cities(self, observer: BuildObserver, *, in_place: bool = False) -> Sources:
        cities = list(dict.fromkeys(get_city(name) for name in self.inputs.city))
        names, source = [city.name for city in cities], self.inputs.source
        out = self.out or Path("-".join(names) + ".zarr")
        if in_place and source and is_remote(source) and is_archive(source):
            return Sources([], [], out, (source,))
        product, copies = self.inputs.product or PRODUCT, None if in_place else copies_folder(out)
        with observer.counting("unpacking") as report:
            found = [
                find_scenes(city, source, product, copies=copies, report=report) for city in cities
            ]
        refuse_inside(found, out)
        return Sources(found, names, out)

    def _reads_rasters(self, labels: str | None) -> bool:
        """Return whether labels are rasters. Classes are, unless something says they are not."""
        options = self.options
        if options.classes is None or labels is None:
            return options.mask_rule is not None
        of_vectors = options.class_field, options.layer, options.where
        return not (is_vector(labels) or any(of_vectors))
