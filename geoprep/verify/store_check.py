"""The check of a whole store: every file, every table, every chunk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from geoprep.executors.threads import Threads
from geoprep.storage.places import Files
from geoprep.store.layout import pixel_layouts
from geoprep.store.reader import StoreReader
from geoprep.verify.contents import Tables, check_layouts, check_shard
from geoprep.verify.documents import (
    Problem,
    check_digests,
    check_documents,
    check_names,
    expected_files,
)

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

    Every ``zarr.json`` must equal its copy in the root's, and every file its content hash in the
    ledger. Every table must be readable, with as many rows as the others, and every chunk of
    pixels must match its checksum and be decodable. All problems are reported.

    Parameters
    ----------
    store_path
        A complete store, in a folder or in a bucket.
    workers
        Threads, each of which holds a shard and one tile; None for one per core.
    report
        Called in this thread after every shard.

    Raises
    ------
    StoreError
        There is no store, or it is incomplete, of another schema, or its root metadata are damaged.
    """
    start = time.perf_counter()
    store, files = StoreReader.open(store_path), Files(store_path)
    tables = Tables(store)
    problems = [*check_documents(files), *tables.problems]
    expected = expected_files(store.meta)
    # Only where no more specific problem was found.
    damaged = {problem.array for problem in problems}
    problems += (p for p in check_digests(store, files, expected) if p.array not in damaged)
    problems += check_layouts(store, tables.tiles)
    # Where the tables cannot be read, an array may claim any number of tiles.
    claimed = -(-tables.tiles // store.meta.shard_tiles)
    numbers = range(min(claimed, len(files.sizes) + 1))
    jobs = [(layout, number) for layout in pixel_layouts(store.meta).values() for number in numbers]
    problems += check_names(files, expected | {layout.key(number) for layout, number in jobs})
    jobs = [(layout, number) for layout, number in jobs if layout.key(number) in files.sizes]
    check = partial(check_shard, files=files, tables=tables)
    of_shards: list[Problem] = []
    chunks = 0
    results = Threads(workers).map_unordered(check, jobs)
    for done, (intact, of_shard) in enumerate(results, start=1):
        of_shards += of_shard
        chunks += intact
        if report:
            report(done, len(jobs))
    problems += sorted(of_shards, key=lambda p: (p.array, p.shard or 0, p.chunk or 0))
    return VerifyReport(
        store=str(store_path),
        problems=tuple(dict.fromkeys(problems)),  # two checks find a missing table
        tiles=tables.tiles,
        scenes=tables.scenes,
        shards=len(jobs),
        chunks=chunks,
        files=len(files.sizes),
        bytes=sum(files.sizes.values()),
        seconds=time.perf_counter() - start,
    )
