"""Checks of a store: a store in, a report of every damaged byte out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError
from geoprep.executors.threads import Threads
from geoprep.storage.places import Files
from geoprep.store.layout import MISSING, PixelLayout, pixel_layouts
from geoprep.store.reader import StoreReader
from geoprep.store.schema import FILL_VALUES, TILE_COLUMNS, StoreMeta, table_arrays
from geoprep.store.shards import digest
from geoprep.store.tables import header_of

DOCUMENT = "zarr.json"
UNLISTED = (DOCUMENT, f"ledger/{DOCUMENT}")
"""Files without a digest: these two contain the digests of all others, and of each other."""
# Keys that consolidation adds; the copy of a nested group has an empty one.
CONSOLIDATED = {"kind": "inline", "must_understand": False}
GROUP = {"zarr_format": 3, "node_type": "group"}

Report = Callable[[int, int], None]
"""Called with the number of shards that have been read, and of all shards."""

Tables = dict[str, NDArray[Any]]
"""Arrays without pixels, by name; only those that can be read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a store and its location.

    Attributes
    ----------
    array
        Path in the store, such as ``650/image`` or ``scenes/id``; ``.`` is the store itself.
    shard
        Number of the shard of a pixel array; None for other arrays.
    chunk
        Row of the tile in the tile table; None for a whole shard or array.
    scene
        Id of the tile's scene; None if unknown.
    message
        What is wrong, without the location.
    """

    array: str
    shard: int | None
    chunk: int | None
    scene: str | None
    message: str

    @classmethod
    def of(cls, array: str, message: str) -> Problem:
        """Return a problem of a whole array or table."""
        return cls(array, None, None, None, message)

    @classmethod
    def of_file(cls, name: str, message: str) -> Problem:
        """Return a problem of a file, located by its array and, for pixels, its shard."""
        array, _, chunk = name.partition("/c/")
        array = array.removesuffix(DOCUMENT).rstrip("/") or "."
        first = chunk.split("/")[0]
        pixels = array.rpartition("/")[2] in FILL_VALUES and array.split("/")[0].isdigit()
        shard = int(first) if pixels and first.isdigit() else None
        return cls(array, shard, None, None, message)

    def __str__(self) -> str:
        place = [self.array]
        if self.shard is not None:
            place.append(f"shard {self.shard}")
        if self.chunk is not None:
            place.append(f"tile {self.chunk}")
        if self.scene is not None:
            place.append(f"scene {self.scene}")
        return f"{', '.join(place)}: {self.message}"


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
    ledger. Every chunk of pixels must match its checksum and be decodable. All problems are
    reported.

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
    tables, expected = _readable_tables(store), _expected_files(store.meta)
    tiles = _tile_count(store, tables)
    # Where the tables cannot be read, an array may claim any number of tiles.
    claimed = -(-tiles // store.meta.shard_tiles)
    numbers = range(min(claimed, len(files.sizes) + 1))
    jobs = [(layout, number) for layout in pixel_layouts(store.meta).values() for number in numbers]
    problems = [*_check_documents(files)]
    damaged = {problem.array for problem in problems}
    problems += (p for p in _check_digests(store, files, expected) if p.array not in damaged)
    problems += _check_names(files, expected | {layout.key(number) for layout, number in jobs})
    jobs = [(layout, number) for layout, number in jobs if layout.key(number) in files.sizes]
    check = partial(_check_shard, files=files, tiles=tiles, tables=tables)
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
        problems=tuple(problems),
        tiles=tiles,
        scenes=len(tables.get("scenes/id", ())),
        shards=len(jobs),
        chunks=chunks,
        files=len(files.sizes),
        bytes=sum(files.sizes.values()),
        seconds=time.perf_counter() - start,
    )


def _readable_tables(store: StoreReader) -> Tables:
    """Return the tables that can be read; of the others, files differ from their digests."""
    tables: Tables = {}
    for name, column in table_arrays(store.meta).items():
        with suppress(StoreError):
            tables[name] = store.read(name, *column)
    return tables


def _tile_count(store: StoreReader, tables: Tables) -> int:
    """Return the number of tiles of most columns; what an array claims if none can be read."""
    lengths = [len(tables[name]) for name in TILE_COLUMNS if name in tables]
    return max(lengths, key=lengths.count, default=0) or store.image().shape[0]


def _chunk_of(array: str, axes: int) -> str:
    """Return the path of the only chunk of a table array."""
    return "/".join([array, "c", *["0"] * axes])


def _check_documents(files: Files) -> Iterator[Problem]:
    """Check that every ``zarr.json`` can be read and equals its copy in the root's."""
    documents: dict[str, Any] = {}
    for name in files.sizes:
        if name.rpartition("/")[2] == DOCUMENT:
            try:
                documents[name.removesuffix(DOCUMENT).rstrip("/")] = json.loads(files.read(name))
            except (StoreError, ValueError) as error:
                yield Problem.of_file(name, f"{DOCUMENT} is damaged: {error}")
    root = documents.pop("", None)
    if root is None:
        return
    try:
        copies = root["consolidated_metadata"].pop("metadata")
        for copy in copies.values():
            if _same(copy.get("consolidated_metadata"), {**CONSOLIDATED, "metadata": {}}):
                del copy["consolidated_metadata"]
    except (KeyError, TypeError, AttributeError):
        yield Problem.of(".", f"{DOCUMENT} has no consolidated metadata of the arrays")
        return
    expected = {**GROUP, "consolidated_metadata": CONSOLIDATED}
    if not _same(root, {**expected, "attributes": root.get("attributes")}):
        yield Problem.of(".", f"{DOCUMENT} has unexpected keys or values")
    for node in sorted(documents.keys() | copies.keys()):
        if not _same(documents.get(node), copies.get(node)):
            yield Problem.of(node, f"{DOCUMENT} differs from its copy in the root's metadata")


def _same(document: Any, other: Any) -> bool:  # noqa: ANN401 - any JSON
    # Compared as text, since 1, 1.0 and True are equal in Python.
    return json.dumps(document, sort_keys=True) == json.dumps(other, sort_keys=True)


def _expected_files(meta: StoreMeta) -> set[str]:
    """Return the names of all files of a store but its shards."""
    arrays = table_arrays(meta)
    groups = {"/".join(name.split("/")[:i]) for name in arrays for i in range(name.count("/") + 1)}
    groups |= {str(level) for level in meta.levels}
    nodes = groups | set(arrays) | set(meta.pixel_arrays())
    chunks = {_chunk_of(name, len(dims)) for name, (_, dims) in arrays.items()}
    return chunks | {f"{node}/{DOCUMENT}".lstrip("/") for node in nodes}


def _check_names(files: Files, expected: Collection[str]) -> Iterator[Problem]:
    """Check that every file of the store exists, and no other."""
    for name in sorted(set(expected) - files.sizes.keys()):
        yield Problem.of_file(name, f"the file {name} is missing")
    for name in sorted(files.sizes.keys() - set(expected)):
        what = (
            "left over from an interrupted build" if ".partial" in name else "not part of the store"
        )
        yield Problem.of_file(name, f"the file {name} is {what}: delete it")


def _check_digests(store: StoreReader, files: Files, expected: Iterable[str]) -> Iterator[Problem]:
    """Check every file without pixels against its digest."""
    digests = header_of(store.document, "ledger")["attributes"].get("files")
    if not isinstance(digests, dict):
        yield Problem.of("ledger", "it has no digests of files")
        return
    for name in sorted(files.sizes.keys() & set(expected) - set(UNLISTED)):
        if name not in digests:
            yield Problem.of_file(name, f"the ledger has no digest of the file {name}")
            continue
        try:
            if digest(files.read(name)) != digests[name]:
                yield Problem.of_file(
                    name, f"the file {name} differs from the one that the build wrote"
                )
        except StoreError as error:
            yield Problem.of_file(name, str(error))


def _check_shard(
    shard: tuple[PixelLayout, int], files: Files, tiles: int, tables: Tables
) -> tuple[int, list[Problem]]:
    """Read a shard, decode each of its chunks, and compare its digest with the ledger.

    Return the number of intact chunks, and the problems.
    """
    (layout, number), chunks = shard, 0
    problems: list[Problem] = []

    def report(tile: int | None, message: str) -> None:
        scene = None
        with suppress(KeyError, IndexError):  # a table that cannot be read
            scene = None if tile is None else str(tables["scenes/id"][tables["scene"][tile]])
        problems.append(Problem(layout.array, number, tile, scene, message))

    try:
        data = files.read(layout.key(number))
    except StoreError as error:
        report(None, str(error))
        return chunks, problems
    first = number * layout.shard_tiles
    for tile, message in _faults(layout, range(first, tiles)[: layout.shard_tiles], data):
        if message:
            report(tile, message)
        else:
            chunks += 1
    # Only if no more specific problem was found, and the ledger can be read.
    ledger = tables.get(f"ledger/{layout.array}", ())
    if not problems and number < len(ledger) and digest(data) != bytes(ledger[number]).hex():
        report(None, "the file differs from the ledger, although its checksums match")
    return chunks, problems


def _faults(layout: PixelLayout, tiles: range, data: bytes) -> Iterator[tuple[int | None, str]]:
    """Yield the tile, or None for the whole shard, and its problem; "" for an intact tile."""
    size = layout.index_bytes
    if len(data) < size:
        yield None, f"the file is cut short: {len(data)} bytes"
        return
    try:
        index = layout.read_index(data[-size:])
    except ValueError:
        yield None, "the index does not match its checksum"
        return
    if (index[len(tiles) :] != MISSING).any():
        yield None, "the index lists chunks past the last tile"
    pixels = np.empty(layout.tile_shape, np.uint8)
    for tile, (offset, length) in zip(tiles, index.tolist(), strict=False):
        if MISSING in (offset, length):
            yield tile, "the chunk is missing"
        elif offset + length > len(data) - size:
            yield tile, "the chunk is outside its shard"
        else:
            try:
                layout.decode(data[offset : offset + length], pixels)
            except (RuntimeError, ValueError) as error:
                yield tile, f"the chunk cannot be decoded: {error}"
            else:
                yield tile, ""
