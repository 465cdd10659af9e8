"""Build a store from imagery and labels: resolve the sources, plan, build."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from geoprep.building.options import BuildOptions, InputOptions, TargetOptions, WorkOptions
from geoprep.errors import GeoprepWarning, UsageError
from geoprep.options import made, options_of, with_options

if TYPE_CHECKING:
    from geoprep.building.plan import Plan
    from geoprep.building.request import BuildObserver, Request, Sources
    from geoprep.building.summary import DryRun
    from geoprep.executors.threads import Executor
    from geoprep.views.stores import Store


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
@with_options(
    (
        *options_of(InputOptions),
        *options_of(TargetOptions),
        *options_of(WorkOptions),
        *options_of(BuildOptions),
    )
)
def build_zarr(
    city: str | Sequence[str] = (),
    *,
    progress: bool | BuildObserver = True,
    **options: Any,
) -> Store | DryRun:
    """Build a store; resume an interrupted build, or find that the store is complete.

    Parameters
    ----------
    **options
    progress
        Whether to show progress bars and notes; or an observer that receives them.

    Returns
    -------
    Store
        Its ``summary`` lists the scenes that failed, with reasons.
    DryRun
        Of a dry run: scenes, tiles, memory, scenes that would fail, and what is unknown.

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

    Examples
    --------
    >>> import geoprep
    >>> folder = geoprep.synthesize("moscow", scenes=3, out="data", size=128, progress=False)
    >>> plan = build_zarr("moscow", source="data", dry_run=True, progress=False)
    >>> plan.tiles, plan.levels, plan.memory_bytes
    (3, (128, 64), {'128': 196608, '64': 49152})
    >>> store = build_zarr("moscow", source="data", progress=False)
    >>> store.summary.state, store.summary.splits
    ('built', {'train': 2, 'val': 1, 'test': 0})
    """
    from geoprep.building.plan import make_plan
    from geoprep.building.request import BuildObserver, Request
    from geoprep.building.run import build
    from geoprep.labels.coco_files import AUTO, Coco
    from geoprep.sources.local_copies import copies_folder
    from geoprep.storage.addresses import is_bucket
    from geoprep.storage.sinks import check_reachable
    from geoprep.store.classes import BACKGROUND_NAME
    from geoprep.views.stores import Store, open_store

    options["city"] = city
    inputs, target = made(InputOptions, options), made(TargetOptions, options)
    work = made(WorkOptions, options)
    observer = progress
    if not isinstance(observer, BuildObserver):
        observer = BuildObserver(bars=observer, messages=observer)
    if work.scheduler and work.workers:
        raise UsageError("workers", "are threads of this machine: leave it out with `scheduler`")
    address = None if target.out is None else os.fspath(target.out)
    out = address if address is None or "://" in address else Path(address)
    if inputs.images and out is None:
        if not work.dry_run:
            raise UsageError("images", "needs `out`, the name of the store")
        out = Path("dry-run.zarr")  # a dry run writes nothing
    coco = Coco.open(inputs.labels)
    if coco is not None:
        options["classes"] = coco.classes(options.get("classes"))
        options.setdefault("other", BACKGROUND_NAME)
    elif options.get("classes") == AUTO:
        raise UsageError("classes", "auto needs `labels` in the format of COCO: name the classes")
    checked = BuildOptions.given(**options)
    request = Request(inputs, checked, out, coco)
    if work.dry_run:
        return _dry_run(request, work.workers, observer)
    if request.out is not None:
        check_reachable(request.out)  # before sources that take long are read
    sources = request.find(observer)
    with _executor(work.workers, work.scheduler, observer) as executor:
        if work.scheduler is None:  # workers of a scheduler read the sources themselves
            sources = sources.downloaded(observer)
        plan = make_plan(sources.found, sources.names, checked, executor)
        if target.overwrite and is_bucket(sources.out):
            observer.message(f"a store at {sources.out} cannot be read while it is replaced")
        with observer.building() as show:
            summary = build(plan, sources.out, executor, overwrite=target.overwrite, report=show)
    _note(sources, plan, observer)
    copies = copies_folder(sources.out)
    for warning in summary.warnings:
        warnings.warn(warning, GeoprepWarning, stacklevel=3)  # the decorated function's caller
    summary = replace(summary, source_copy=str(copies) if copies.is_dir() else None)
    return Store(open_store(summary.store).reader, summary)


def _dry_run(request: Request, workers: int | None, observer: BuildObserver) -> DryRun:
    from geoprep.building.plan import make_plan
    from geoprep.building.summary import DryRun, summarise_plan, with_mask_failures
    from geoprep.executors.threads import Threads

    if rule := request.options.class_rule:
        texts = (", ".join(values) for values in rule.values)
        named = zip(rule.names, texts, strict=True)
        observer.note("classes: " + ", ".join(f"{n} ({v})" if v else n for n, v in named))
    sources = request.find_in_place(observer)
    if not sources.found:
        return DryRun(unknown=sources.unknown)
    threads = Threads(workers)
    plan = make_plan(sources.found, sources.names, request.options, threads, read_inputs=False)
    _note(sources, plan, observer)
    return summarise_plan(with_mask_failures(plan, threads), sources)


@contextmanager
def _executor(
    workers: int | None,
    scheduler: Any,  # noqa: ANN401 - an address or a Dask client
    observer: BuildObserver,
) -> Iterator[Executor]:
    """Yield the executor of a build; a connection to a cluster is closed afterwards."""
    from geoprep.executors.cluster import Dask
    from geoprep.executors.threads import Threads

    if scheduler is None:
        yield Threads(workers)
    elif not isinstance(scheduler, str):
        yield Dask(scheduler)
    else:
        with closing(Dask.connect(scheduler)) as executor:
            observer.message(f"{executor.workers} threads of {scheduler}; {executor.dashboard}")
            yield executor


def _note(sources: Sources, plan: Plan, observer: BuildObserver) -> None:
    """Give the observer all remarks on the inputs."""
    for line in (*(note for source in sources.found for note in source.notes), *plan.notes):
        observer.note(line)
