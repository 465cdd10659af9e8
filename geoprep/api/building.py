"""Build a store from imagery and labels: find scenes, download, plan, build."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from geoprep.api.keywords import with_options
from geoprep.api.progress import build_bar, counting_bar
from geoprep.build import BuildOptions, DryRun, Plan, Progress, build, make_plan
from geoprep.build import dry_run as estimate
from geoprep.errors import GeoprepWarning, UsageError
from geoprep.executors import Dask, Executor, Threads
from geoprep.labels import is_vector
from geoprep.sources import (
    SourceScenes,
    copies_folder,
    download_scenes,
    drop_copies,
    find_scenes,
    get_city,
    images_and_labels,
    is_items,
    local_pattern,
    refuse_inside,
    remote_scenes,
)
from geoprep.storage import check_reachable, is_bucket

if TYPE_CHECKING:
    from geoprep.api.stores import Store
    from geoprep.storage import StrPath


PRODUCT: Final = "PS-RGB"
"""Imagery product of a city where none is given."""
_OF_RASTERS: Final = ("label_values", "label_speeds")
_OF_VECTOR_CLASSES: Final = ("class_field", "layer", "where")

Stage = Literal["unpacking", "downloading", "reading"]
"""What is counted before a build: bytes while unpacking, else scenes."""
_TITLES: Final[dict[Stage, tuple[str, int]]] = {
    "unpacking": ("unpacking, MB", 10**6),
    "downloading": ("downloading scenes", 1),
    "reading": ("reading inputs once, scenes", 1),
}
"""Title of the bar, and unit that it counts."""


class BuildObserver:
    """Shows progress bars and messages of a build on standard error; subclasses may do others."""

    def __init__(self, *, bars: bool = True, messages: bool = True) -> None:
        self._quiet, self._messages = not bars, messages

    def counting(self, stage: Stage) -> AbstractContextManager[Callable[[int, int], None]]:
        """Return a callback for the amounts done and in total of a stage before the build."""
        title, unit = _TITLES[stage]
        return counting_bar(title, self._quiet, per=unit)

    def building(self) -> AbstractContextManager[Callable[[Progress], None]]:
        """Return a callback for the progress of the survey and of the build."""
        return build_bar(self._quiet)

    def message(self, line: str) -> None:
        """Take a line for the user, such as where files were downloaded to."""
        if self._messages:
            print(line, file=sys.stderr)

    def note(self, line: str) -> None:
        """Take a remark on the inputs, at the end."""
        self.message(f"note: {line}")


@overload
def build_zarr(
    city: str | Sequence[str] = ...,
    *,
    dry_run: Literal[False] = ...,
    **given: Any,  # noqa: ANN401
) -> Store: ...
@overload
def build_zarr(
    city: str | Sequence[str] = ...,
    *,
    dry_run: Literal[True],
    **given: Any,  # noqa: ANN401
) -> DryRun: ...
@with_options(fields(BuildOptions))
def build_zarr(
    city: str | Sequence[str] = (),
    *,
    source: StrPath | None = None,
    product: str | None = None,
    images: StrPath | Sequence[StrPath] = (),
    asset: str | Sequence[str] = (),
    labels: StrPath | None = None,
    out: StrPath | None = None,
    overwrite: bool = False,
    drop_source: bool = False,
    workers: int | None = None,
    scheduler: Any = None,
    dry_run: bool = False,
    progress: bool | BuildObserver = True,
    **options: Any,
) -> Store | DryRun:
    """Build a store; resume an interrupted build, or find that the store is complete.

    Parameters
    ----------
    city
        SpaceNet city, or several; give either this or ``images``.
    source
        Folder, archive or ``s3://`` address of the cities; None looks in the usual places.
    product
        Imagery product of the cities; None for ``PS-RGB``.
    images
        Pattern, folder or archive of other imagery, or of STAC items; or several.
    asset
        Asset of the STAC items, such as ``visual``; by default their only raster. Several, such as
        ``["red", "green", "blue"]``, are stacked as bands.
    labels
        Road file for all ``images``, or a folder or pattern of one label per image; None for none.
    out
        Folder or ``s3://`` address of the store; None for ``CITY.zarr``.
    overwrite
        Replace a store that is complete or was built differently. On a disk it stays until the
        new one is complete; in a bucket it cannot be read meanwhile.
    drop_source
        Delete local copies of the inputs after the build.
    workers
        Number of worker threads. None: one per core.
    scheduler
        Address of a Dask scheduler, or a ``distributed.Client``, whose workers build the store.
        None: builds on this machine.
    dry_run
        Whether to build nothing, and return an estimate.
    progress
        Whether to show progress bars and notes; or an observer that receives them.
    **options

    Returns
    -------
    Store
        Its ``summary`` lists the scenes that failed, with reasons.
    DryRun
        Of a dry run: tiles, size, duration, and scenes that would fail.

    Raises
    ------
    UsageError
        Parameters contradict each other or have invalid values.
    GeoprepError
        There is no complete store: no usable scene, another build is running, or the target
        cannot be written. The subclass and the message say which.

    Warns
    -----
    GeoprepWarning
        The store is probably not what was intended, for example has no roads.
    """
    from geoprep.api.stores import Store, open_store

    several: Sequence[Any] = [images] if isinstance(images, str | os.PathLike) else images
    address = None if out is None else os.fspath(out)
    given = _Request(
        (city,) if isinstance(city, str) else tuple(city),
        None if source is None else os.fspath(source),
        product,
        tuple(os.fspath(one) for one in several),
        ",".join([asset] if isinstance(asset, str) else asset) or None,
        None if labels is None else os.fspath(labels),
        address if address is None or "://" in address else Path(address),
        options,
    )
    observer = progress
    if not isinstance(observer, BuildObserver):
        observer = BuildObserver(bars=observer, messages=observer)
    checked = given.checked(workers, scheduler)
    if dry_run:
        found, names, target = given.find(observer)
        threads = Threads(workers)
        plan = make_plan(found, names, checked, threads, read_inputs=False)
        result = estimate(plan, target, threads.workers)
        _note(found, plan, observer)
        return result
    if given.out is not None:
        check_reachable(given.out)  # before sources that take long are read
    found, names, place = given.find(observer)
    with _executor(workers, scheduler, observer) as executor:
        if scheduler is None:  # workers of a scheduler read the sources themselves
            found = _downloaded(found, place, observer)
        with observer.counting("reading") as report:
            plan = make_plan(found, names, checked, executor, report)
        if overwrite and is_bucket(place):
            observer.message(f"a store at {place} cannot be read while it is replaced")
        with observer.building() as show:
            summary = build(plan, place, executor, overwrite=overwrite, report=show)
    _note(found, plan, observer)
    copies = copies_folder(place)
    if drop_source:
        try:
            drop_copies(copies)
        except UsageError as error:  # the store is complete all the same
            observer.note(str(error))
    for warning in summary.warnings:
        warnings.warn(warning, GeoprepWarning, stacklevel=3)  # the decorated function's caller
    summary = replace(summary, source_copy=str(copies) if copies.is_dir() else None)
    return Store(open_store(summary.store).reader, summary)


@dataclass(frozen=True, slots=True)
class _Request:
    """The sources, target and options of a build, as they were given."""

    cities: tuple[str, ...]
    source: str | None
    product: str | None
    images: tuple[str, ...]
    asset: str | None
    labels: str | None
    out: str | Path | None
    options: dict[str, Any]

    def checked(self, workers: int | None, scheduler: object) -> BuildOptions:
        """Return the options; raise UsageError if one is without effect because of another."""
        if bool(self.cities) == bool(self.images):
            raise UsageError("give either `city` or `images` (with or without `labels`)")
        for name, value in (("source", self.source), ("product", self.product)):
            if self.images and value is not None:
                raise UsageError(f"`{name}` needs `city`; `images` are found by their own paths")
        if scheduler and workers:
            raise UsageError("`workers` are threads of this machine: leave it out with `scheduler`")
        if self.asset and not self.images:
            raise UsageError("`asset` needs `images`, STAC items that have it")
        if self.labels and not self.images:
            raise UsageError("`labels` needs `images`; labels of `city` are found by their names")
        if self.images and self.out is None:
            raise UsageError("`images` needs `out`, the name of the store")
        return BuildOptions.given(**self.options)

    def find(self, observer: BuildObserver) -> tuple[list[SourceScenes], list[str], str | Path]:
        """Return the scenes by source, the name of every source, and where the store goes."""
        if self.images:
            assert self.out is not None  # checked
            images, labels = self._local_patterns(self.out, observer)
            masks = self._reads_rasters(labels)
            found = [images_and_labels(images, labels, masks=masks, asset=self.asset)]
            refuse_inside(found, self.out, [*self.images, *([self.labels] if self.labels else [])])
            return found, ["custom"], self.out
        cities = list(dict.fromkeys(get_city(name) for name in self.cities))
        product = self.product or PRODUCT
        names = [city.name for city in cities]
        out = self.out or Path("-".join(names) + ".zarr")
        copies = copies_folder(out)
        with observer.counting("unpacking") as report:
            found = [
                find_scenes(city, self.source, product, copies=copies, report=report)
                for city in cities
            ]
        refuse_inside(found, out)
        return found, names, out

    def _reads_rasters(self, labels: str | None) -> bool:
        """Return whether labels are rasters. Classes are, unless something says they are not."""
        options = self.options
        if options.get("classes") is None or labels is None:
            return any(options.get(name) for name in _OF_RASTERS)
        return not (is_vector(labels) or any(options.get(name) for name in _OF_VECTOR_CLASSES))

    def _local_patterns(
        self, out: str | Path, observer: BuildObserver
    ) -> tuple[list[str], str | None]:
        """Return the patterns of images and labels, unpacked or downloaded where needed."""
        folder, said = copies_folder(out), set[str]()

        def local(pattern: str) -> str:
            with observer.counting("unpacking") as report:
                found, note = local_pattern(pattern, folder, report)
            if note and note not in said:
                observer.message(note)
                said.add(note)
            return found

        images = [one if is_items(one) else local(one) for one in self.images]
        return images, self.labels and local(self.labels)


def _downloaded(
    found: list[SourceScenes], out: str | Path, observer: BuildObserver
) -> list[SourceScenes]:
    """Return the scenes with remote images and labels downloaded."""
    if not any(remote_scenes(one) for one in found):
        return found
    folder = copies_folder(out)
    with observer.counting("downloading") as report:
        local = [download_scenes(one, folder, report) for one in found]
    observer.message(f"downloaded to {folder}")
    return local


@contextmanager
def _executor(
    workers: int | None,
    scheduler: Any,  # noqa: ANN401 - an address or a Dask client
    observer: BuildObserver,
) -> Iterator[Executor]:
    """Yield the executor of a build; a connection to a cluster is closed afterwards."""
    if scheduler is None:
        yield Threads(workers)
    elif not isinstance(scheduler, str):
        yield Dask(scheduler)
    else:
        with closing(Dask.connect(scheduler)) as executor:
            observer.message(f"{executor.workers} threads of {scheduler}; {executor.dashboard}")
            yield executor


def _note(found: Sequence[SourceScenes], plan: Plan, observer: BuildObserver) -> None:
    """Give the observer all remarks on the inputs."""
    for line in (*(note for one in found for note in one.notes), *plan.notes):
        observer.note(line)
