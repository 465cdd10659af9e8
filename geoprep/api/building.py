"""Build a store from imagery and labels: find scenes, download, plan, build."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from geoprep.api.progress import build_bar, counting_bar
from geoprep.building import DryRun, Progress, Summary, build, dry_run
from geoprep.errors import UsageError
from geoprep.executors import Dask, Executor, Threads
from geoprep.plan import BuildOptions, Plan, make_plan
from geoprep.sources import (
    INSIDE,
    SUFFIXES,
    SourceScenes,
    copies_folder,
    download_scenes,
    drop_copies,
    find_scenes,
    get_city,
    images_and_labels,
    local_pattern,
    remote_scenes,
)
from geoprep.storage import check_reachable

if TYPE_CHECKING:
    from geoprep.api.stores import Store

StrPath = str | os.PathLike[str]

PRODUCT: Final = "PS-RGB"
"""Imagery product of a city where none is given."""
_OF_RASTERS: Final = ("label_values", "label_speeds")
_OF_VECTORS: Final = (
    *("buffer", "width_field", "layer", "where", "areas"),
    *("speed_from", "speed_field", "speed_unit", "schema"),
)
_OF_SHARES: Final = ("split_by", "val", "test", "split_seed")

Stage = Literal["unpacking", "extracting", "downloading", "reading"]
"""What is counted before a build: bytes while unpacking and extracting, else scenes."""
Notes = tuple[str, ...]
_TITLES: Final[dict[Stage, tuple[str, int]]] = {
    "unpacking": ("unpacking, MB", 10**6),
    "extracting": ("extracting, MB", 10**6),
    "downloading": ("downloading scenes", 1),
    "reading": ("reading inputs once, scenes", 1),
}
"""Title of the bar, and unit that it counts."""


class BuildObserver:
    """Receives progress and messages of a build. This one ignores them; subclasses show them."""

    @contextmanager
    def counting(self, stage: Stage) -> Iterator[Callable[[int, int], None]]:
        """Yield a callback for the amounts done and in total of a stage before the build."""
        yield lambda _done, _total: None

    @contextmanager
    def building(self) -> Iterator[Callable[[Progress], None] | None]:
        """Yield a callback for the progress of the build, or None."""
        yield None

    def message(self, line: str) -> None:
        """Take a line for the user, such as where files were downloaded to."""


class ProgressBars(BuildObserver):
    """Shows progress bars and messages on standard error; ``quiet`` shows messages only."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet

    @contextmanager
    def counting(self, stage: Stage) -> Iterator[Callable[[int, int], None]]:
        """Show a bar from the first call of the callback on."""
        title, unit = _TITLES[stage]
        with counting_bar(title, self._quiet, per=unit) as report:
            yield report

    @contextmanager
    def building(self) -> Iterator[Callable[[Progress], None]]:
        """Show a bar for the survey and one for the build."""
        with build_bar(self._quiet) as show:
            yield show

    def message(self, line: str) -> None:
        """Print the line."""
        print(line, file=sys.stderr)


def build_store(
    *,
    cities: Sequence[str] = (),
    source: str | None = None,
    product: str | None = None,
    images: Sequence[str] = (),
    labels: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    drop_source: bool = False,
    workers: int | None = None,
    scheduler: Any = None,  # noqa: ANN401 - an address or a Dask client
    observer: BuildObserver | None = None,
    **options: Any,  # noqa: ANN401 - the fields of BuildOptions
) -> tuple[Summary, Notes]:
    """Build a store; resume an interrupted build, or find that the store is complete.

    Parameters
    ----------
    cities
        SpaceNet cities; give either these or ``images``.
    source
        Folder, archive or ``s3://`` address of the cities; None looks in the usual places.
    product
        Imagery product of the cities; None for ``PS-RGB``.
    images
        Patterns, folders or archives of other imagery.
    labels
        Road file for all ``images``, or a folder or pattern of one label per image; None for none.
    out
        Folder or ``s3://`` address of the store; None for ``CITY.zarr``.
    overwrite
        Replace a store that is complete or was built differently.
    drop_source
        Delete local copies of the inputs after the build.
    workers
        Worker threads; None for one per core.
    scheduler
        Address of a Dask scheduler, or a ``distributed.Client``, whose workers build the store;
        None builds it here.
    observer
        Receives progress and messages.
    **options
        Fields of `geoprep.plan.BuildOptions`.

    Returns
    -------
    Summary
        Summary of the build.
    tuple of str
        Notes for the user.

    Raises
    ------
    UsageError
        Parameters contradict each other or have invalid values.
    GeoprepError
        There is no complete store: no usable scene, another build is running, or the target
        cannot be written. The subclass and the message say which.
    """
    given = _Request(tuple(cities), source, product, tuple(images), labels, out, options)
    given.check(workers=workers, scheduler=scheduler)
    observer = observer or BuildObserver()
    checked = BuildOptions(**options)
    given.check_target()
    found, names, place = given.find(observer)
    check_reachable(place)
    with ExitStack() as stack:
        executor = _executor(workers, scheduler, stack, observer)
        if scheduler is None:
            found = _downloaded(found, place, observer)
        else:  # workers read the sources themselves, and have other working folders
            found = [one.absolute() for one in found]
        with observer.counting("reading") as report:
            plan = make_plan(found, names, checked, executor, report)
        with observer.building() as show:
            summary = build(plan, place, executor, overwrite=overwrite, report=show)
    notes = _notes(found, plan)
    copies = copies_folder(place)
    if drop_source:
        try:
            drop_copies(copies)
        except UsageError as error:  # the store is complete all the same
            notes = (*notes, str(error))
    return replace(summary, source_copy=str(copies) if copies.is_dir() else None), notes


def build_zarr(
    city: str | Sequence[str] = (),
    *,
    source: StrPath | None = None,
    product: str | None = None,
    images: StrPath | Sequence[StrPath] = (),
    labels: StrPath | None = None,
    out: StrPath | None = None,
    overwrite: bool = False,
    drop_source: bool = False,
    workers: int | None = None,
    scheduler: Any = None,  # noqa: ANN401 - an address or a Dask client
    progress: bool = True,
    **options: Any,  # noqa: ANN401 - the fields of BuildOptions
) -> Store:
    """Build a store, or resume an interrupted build, and return the store.

    Parameters
    ----------
    city
        SpaceNet city, or several; give either this or ``images``.
    images
        Pattern, folder or archive of other imagery, or several.
    scheduler
        Address of a Dask scheduler, or a ``distributed.Client``. None: builds on this machine.
    progress
        Whether to show progress bars and notes.
    source, product, labels, out, overwrite, drop_source, workers, **options
        As of `build_store`.

    Returns
    -------
    Store
        Its ``summary`` lists the scenes that failed, with reasons.

    Raises
    ------
    GeoprepError
        As `build_store`.
    """
    from geoprep.api.stores import Store, open_store

    several: Sequence[Any] = [images] if isinstance(images, str | os.PathLike) else images
    place = None if out is None else os.fspath(out)
    observer = ProgressBars() if progress else BuildObserver()
    summary, notes = build_store(
        cities=[city] if isinstance(city, str) else city,
        source=None if source is None else os.fspath(source),
        product=product,
        images=[os.fspath(one) for one in several],
        labels=None if labels is None else os.fspath(labels),
        out=place if place is None or "://" in place else Path(place),
        overwrite=overwrite,
        drop_source=drop_source,
        workers=workers,
        scheduler=scheduler,
        observer=observer,
        **options,
    )
    for note in notes:
        observer.message(f"note: {note}")
    for warning in summary.warnings:  # as warnings, which are seen without progress bars too
        warnings.warn(warning, stacklevel=2)
    return Store(open_store(summary.store).reader, summary)


def plan_build(
    *,
    cities: Sequence[str] = (),
    source: str | None = None,
    product: str | None = None,
    images: Sequence[str] = (),
    labels: str | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    observer: BuildObserver | None = None,
    **options: Any,  # noqa: ANN401 - the fields of BuildOptions
) -> tuple[DryRun, Notes]:
    """Estimate a build without running it: its tiles, size, duration and failing scenes.

    Parameters are those of `build_store`.

    Returns
    -------
    DryRun
        The estimate.
    tuple of str
        Notes for the user.

    Raises
    ------
    GeoprepError
        As `build_store`.
    """
    given = _Request(tuple(cities), source, product, tuple(images), labels, out, options)
    given.check(workers=workers, scheduler=None)
    checked = BuildOptions(**options)
    found, names, place = given.find(observer or BuildObserver())
    executor = Threads(workers)
    plan = make_plan(found, names, checked, executor, read_inputs=False)
    return dry_run(plan, place, executor.workers), _notes(found, plan)


class _Request:
    """The sources, target and options of a build, as they were given."""

    def __init__(
        self,
        cities: tuple[str, ...],
        source: str | None,
        product: str | None,
        images: tuple[str, ...],
        labels: str | None,
        out: str | Path | None,
        options: dict[str, Any],
    ) -> None:
        self._cities = cities
        self._source = source
        self._product = product
        self._images = images
        self._labels = labels
        self._out = out
        self._options = options

    def check(self, *, workers: int | None, scheduler: object) -> None:
        """Check that no parameter is without effect because of another.

        Raises
        ------
        UsageError
            Naming both.
        """
        options = self._options
        if bool(self._cities) == bool(self._images):
            raise UsageError("give either `cities` or `images` (with or without `labels`)")
        for name, value in (("source", self._source), ("product", self._product)):
            if self._images and value is not None:
                raise UsageError(f"`{name}` needs `cities`; `images` are found by their own paths")
        if scheduler and workers:
            raise UsageError("`workers` are threads of this machine: leave it out with `scheduler`")
        if self._labels and not self._images:
            raise UsageError("`labels` needs `images`; labels of `cities` are found by their names")
        if self._images and self._out is None:
            raise UsageError("`images` needs `out`, the name of the store")
        if options.get("speed_field") and options.get("speed_from") == "attributes":
            raise UsageError("`speed_field` reads given speeds: leave out `speed_from` attributes")
        if "speed_unit" in options and not options.get("speed_field"):
            raise UsageError("`speed_unit` is the unit of `speed_field`: give the field too")
        for name in _OF_SHARES:
            if options.get("split_file") and name in options:
                raise UsageError(f"`split_file` assigns all splits: leave out `{name}`")
        for name in _OF_SHARES[1:]:
            if options.get("split_by") == "folder" and name in options:
                raise UsageError(f"`split_by` folder assigns all splits: leave out `{name}`")
        if "block_km" in options and options.get("split_by") != "block":
            raise UsageError("`block_km` needs `split_by` block")
        rasters = next((name for name in _OF_RASTERS if options.get(name)), None)
        for name in _OF_VECTORS:
            if rasters and name in options:
                raise UsageError(
                    f"`{name}` is for vector labels, `{rasters}` for raster labels: leave out one "
                    "of them"
                )

    def check_target(self) -> None:
        """Check that a bucket can be reached before sources that take long are read.

        Sources that do not exist are reported first, so nothing is asked for them.

        Raises
        ------
        OutputError
            The bucket does not exist or refuses access.
        """
        named = [one for one in (self._source, *self._images, self._labels) if one]
        if self._out is not None and any(map(_takes_long, named)):
            check_reachable(self._out)

    def find(self, observer: BuildObserver) -> tuple[list[SourceScenes], list[str], str | Path]:
        """Return the scenes by source, the name of every source, and where the store goes."""
        if self._images:
            assert self._out is not None  # checked
            rasters = any(self._options.get(name) for name in _OF_RASTERS)
            images, labels = self._local_patterns(self._out, observer)
            return [images_and_labels(images, labels, masks=rasters)], ["custom"], self._out
        cities = list(dict.fromkeys(get_city(name) for name in self._cities))
        product = self._product or PRODUCT
        with observer.counting("extracting") as report:
            found = [find_scenes(city, self._source, product, report=report) for city in cities]
        names = [city.name for city in cities]
        return found, names, self._out or Path("-".join(names) + ".zarr")

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

        images = [local(pattern) for pattern in self._images]
        return images, self._labels and local(self._labels)


def _takes_long(source: str) -> bool:
    """Return whether a source is on a server, or is an archive."""
    place = source.partition(INSIDE)[0]
    return "://" in place or (place.lower().endswith(SUFFIXES) and Path(place).is_file())


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


def _executor(
    workers: int | None,
    scheduler: Any,  # noqa: ANN401 - an address or a Dask client
    stack: ExitStack,
    observer: BuildObserver,
) -> Executor:
    """Return the executor of a build; the stack closes a connection to a cluster."""
    if scheduler is None:
        return Threads(workers)
    if not isinstance(scheduler, str):
        return Dask(scheduler)
    executor = Dask.connect(scheduler)
    stack.callback(executor.close)
    observer.message(f"{executor.workers} threads of {scheduler}; {executor.dashboard}")
    return executor


def _notes(found: Sequence[SourceScenes], plan: Plan) -> Notes:
    return (*(note for one in found for note in one.notes), *plan.notes)
