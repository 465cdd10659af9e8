"""The check of a whole store: every byte, every table, every pixel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from geoprep.executors import Threads
from geoprep.storage import StoreFiles
from geoprep.store import StoreReader
from geoprep.verify import metadata_checks as metadata
from geoprep.verify.metadata_checks import Problem
from geoprep.verify.pixel_checks import Findings, check_job, check_statistics
from geoprep.verify.shard_checks import ShardJob, plan_jobs
from geoprep.verify.table_checks import Tables, check_tables, read_tables

Report = Callable[[int, int], None]
"""Called with the number of shards that have been read, and of all shards."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of checking a store.

    Attributes
    ----------
    problems
        Empty for an intact store.
    tiles, scenes
        Rows of the tables; 0 if they cannot be read.
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
        """Whether the store is intact."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {**asdict(self), "ok": self.ok}


def verify(
    store_path: str | Path, *, workers: int | None = None, report: Report | None = None
) -> VerifyReport:
    """Read a whole store and check it.

    Every ``zarr.json`` must equal its copy in the root's, every table must match its checksum, and
    every file its content hash in the ledger. Tables must be consistent, pixels must follow the
    rules of the format, and statistics must match the pixels. All problems are reported.

    Parameters
    ----------
    store_path
        A complete store, in a folder or in a bucket.
    workers
        Threads, each of which holds a shard of images, one of labels and one tile; None for one
        per core.
    report
        Called in this thread after every pair of shards.

    Raises
    ------
    StoreError
        There is no store, or it is incomplete, of another schema, or its root metadata are damaged.
    """
    start = time.perf_counter()
    store, files = StoreReader.open(store_path), StoreFiles(store_path)
    tables, unreadable = read_tables(store)
    problems = [*metadata.check_documents(files), *metadata.check_meta(store), *unreadable]
    # Only where no more specific problem was found.
    damaged = {problem.array for problem in problems}
    problems += (p for p in metadata.check_digests(store, files) if p.array not in damaged)
    tiles = _tile_count(store, tables)
    jobs = plan_jobs(store.meta, tiles)
    problems += metadata.check_arrays(store, tiles)
    problems += metadata.check_names(store, files, _paths(jobs, store))
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


def _paths(jobs: Iterable[ShardJob], store: StoreReader) -> Iterator[str]:
    return (job.path(name) for job in jobs for name in store.meta.array_names)


def _tile_count(store: StoreReader, tables: Tables) -> int:
    """Return the number of tiles by the tile table or, if it is damaged, by the pixels."""
    return len(tables.tiles) if tables.tiles is not None else store.image().shape[0]


def _check_pixels(
    jobs: list[ShardJob],
    store: StoreReader,
    files: StoreFiles,
    tables: Tables,
    workers: int | None,
    report: Report | None,
) -> Findings:
    """Run all jobs; memory grows by two numbers per tile only."""
    found = Findings()
    check = partial(check_job, files=files, meta=store.meta, tables=tables)
    for done, one in enumerate(Threads(workers).map_unordered(check, jobs), start=1):
        found.add(one)
        if report:
            arrays = len(store.meta.array_names)
            report(done * arrays, len(jobs) * arrays)
    found.problems.sort(key=lambda p: (p.array, p.shard or 0, -1 if p.chunk is None else p.chunk))
    return found


def _unique(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield each problem once: two checks find a missing shard or table."""
    seen = set()
    for problem in problems:
        key = problem.array, problem.shard, problem.chunk, problem.message
        if key not in seen:
            seen.add(key)
            yield problem
