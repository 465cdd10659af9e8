"""Whether a store is what its build wrote: every byte, every table, every pixel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from geoprep.executors import Threads
from geoprep.storage import StoreFiles
from geoprep.store import PIXEL_ARRAYS, Store
from geoprep.verify import metadata_checks as metadata
from geoprep.verify.metadata_checks import Problem
from geoprep.verify.pixel_checks import Findings, check_job, check_statistics
from geoprep.verify.shard_checks import ShardJob, plan_jobs
from geoprep.verify.table_checks import Tables, check_tables, read_tables

__all__ = ["Problem", "VerifyReport", "print_report", "verify"]

MOST_LISTED = 50

Report = Callable[[int, int], None]
"""Told how many shards have been read and how many there are."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was read and what is wrong with it.

    Attributes
    ----------
    problems
        Empty for a sound store.
    tiles, scenes
        Rows of the tables; 0 where they cannot be read.
    """

    store: str
    problems: tuple[Problem, ...]
    tiles: int
    scenes: int
    shards: int
    chunks: int
    files: int
    bytes: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {**asdict(self), "ok": self.ok}


def verify(
    store_path: str | Path, *, workers: int | None = None, report: Report | None = None
) -> VerifyReport:
    """Read a whole store and check it.

    Every ``zarr.json`` must equal its copy in the root's, every table must pass its checksum, and
    every file the content hash in the ledger; then tables must fit one another, pixels the rules
    of the format, and statistics the pixels. Damage in one place hides none in another.

    Parameters
    ----------
    store_path
        A finished store, in a folder or on an object store.
    workers
        Threads; each holds one shard of images, one of masks and one tile of pixels. Default: one
        for every core.
    report
        Called in this thread after every shard.

    Raises
    ------
    StoreError
        There is no store, it is incomplete, of another schema, or its root metadata are broken.
    """
    start = time.perf_counter()
    store, files = Store.open(store_path), StoreFiles(store_path)
    tables, unreadable = read_tables(store)
    problems = [*metadata.check_documents(files), *metadata.check_meta(store), *unreadable]
    # A finer report than "some byte" has been given where there was one to give.
    damaged = {problem.array for problem in problems}
    problems += (p for p in metadata.check_digests(store, files) if p.array not in damaged)
    tiles = _tile_count(store, tables)
    jobs = plan_jobs(store.meta, tiles)
    problems += metadata.check_arrays(store, tiles)
    problems += metadata.check_names(store, files, _paths(jobs))
    if tables.tiles is not None and tables.scenes is not None:
        problems += check_tables(store, tables.tiles, tables.scenes)
    found = _check_pixels(jobs, store, files, tables, workers, report)
    problems += found.problems
    problems += check_statistics(found, tables)
    return VerifyReport(
        store=str(store_path),
        problems=tuple(_unique(problems)),
        tiles=tiles,
        scenes=0 if tables.scenes is None else len(tables.scenes),
        shards=found.shards,
        chunks=found.chunks,
        files=len(files.sizes),
        bytes=sum(files.sizes.values()),
        seconds=time.perf_counter() - start,
    )


def print_report(result: VerifyReport) -> None:
    """Print what is wrong, one line per problem, or that nothing is."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    for problem in result.problems[:MOST_LISTED]:
        console.print(f"[red]damaged[/] {escape(str(problem))}", soft_wrap=True)
    if len(result.problems) > MOST_LISTED:
        console.print(f"and {len(result.problems) - MOST_LISTED} more: --json lists all")
    verdict = (
        f"[red]{len(result.problems)} problem(s)[/] in" if result.problems else "[green]sound[/]"
    )
    rate = result.bytes / max(result.seconds, 1e-9) / 1e6
    console.print(
        f"{verdict} {escape(result.store)}: {result.files:,} files, {result.shards:,} shards, "
        f"{result.chunks:,} chunks, {result.bytes / 1e6:,.1f} MB read in {result.seconds:.1f} s "
        f"({rate:,.0f} MB/s)",
        soft_wrap=True,
    )


def _paths(jobs: Iterable[ShardJob]) -> Iterator[str]:
    return (job.path(name) for job in jobs for name in PIXEL_ARRAYS)


def _tile_count(store: Store, tables: Tables) -> int:
    """Return how many tiles there are: by the tile table or, failing that, by the pixels."""
    return len(tables.tiles) if tables.tiles is not None else store.image().shape[0]


def _check_pixels(
    jobs: list[ShardJob],
    store: Store,
    files: StoreFiles,
    tables: Tables,
    workers: int | None,
    report: Report | None,
) -> Findings:
    """Run all jobs; memory does not grow with the store, but by two numbers per tile."""
    found = Findings()
    check = partial(check_job, files=files, meta=store.meta, tables=tables)
    for done, one in enumerate(Threads(workers).map_unordered(check, jobs), start=1):
        found.add(one)
        if report:
            report(done * len(PIXEL_ARRAYS), len(jobs) * len(PIXEL_ARRAYS))
    found.problems.sort(key=lambda p: (p.array, p.shard or 0, -1 if p.chunk is None else p.chunk))
    return found


def _unique(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Drop what two checks found alike: a shard that is missing, a table that is not there."""
    seen = set()
    for problem in problems:
        key = problem.array, problem.shard, problem.chunk, problem.message
        if key not in seen:
            seen.add(key)
            yield problem
