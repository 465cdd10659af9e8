"""Reading of tiles from shards into their final place in memory, with every checksum verified.

zarrs verifies checksums of whole shards only: from a part it returns damaged pixels without an
error (0.2.3, measured), and it hangs in a forked child. Splits and streams read parts of shards.
"""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import ne
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError
from geoprep.store.classes import ClassTable
from geoprep.store.layout import MISSING, PixelLayout, without_checksum
from geoprep.store.reader import StoreReader
from geoprep.store.schema import REPAIR
from loaders.prefetch import Prefetcher

Bytes = NDArray[np.uint8]

Ranges = Sequence[tuple[int, int]]
"""First byte and end of each range."""

ReportProgress = Callable[[int, int], None]
"""Called with the tiles read and the tiles in all, in the thread that loads."""


def by_shard(tiles: NDArray[np.int64], shard_tiles: int) -> list[list[int]]:
    """Split ascending rows of a store by shard."""
    cuts = np.flatnonzero(np.diff(tiles // shard_tiles)) + 1
    return [rows.tolist() for rows in np.split(tiles, cuts) if len(rows)]


@dataclass(frozen=True, slots=True)
class Decoder:
    """Checks and decodes chunks of one array to tiles; keeps some bands, maps label values."""

    layout: PixelLayout
    bands: tuple[int, ...] | None = None
    values: NDArray[np.uint8] | None = None

    def __call__(self, chunk: Bytes, out: Bytes) -> None:
        """Decode into uint8 (y, x, band) or (y, x); ValueError or RuntimeError if damaged."""
        if self.bands is None:
            self.layout.decode(chunk, out)
            if self.values is not None:
                np.take(self.values, out, out=out, mode="clip")  # mode "raise" would copy
            return
        whole = np.empty(self.layout.tile_shape, np.uint8)
        self.layout.decode(chunk, whole)
        np.take(whole, self.bands, -1, out, mode="clip")  # mode "raise" would copy


class PixelArray:
    """Images or masks of one level of a store, read from any number of threads."""

    def __init__(self, location: str, decode: Decoder, files: _LocalFiles | _RemoteFiles) -> None:
        self.decode = decode
        self.layout = decode.layout
        self._location = location
        self._files = files
        self._indexes: dict[int, NDArray[np.uint64]] = {}
        self._locks: dict[tuple[int, int], threading.Lock] = {}

    def read(self, rows: Sequence[int], out: Bytes) -> None:
        """Read ascending rows of one shard into uint8 (tile, y, x, band) or (tile, y, x)."""
        self._each(rows, lambda i, chunk: self.decode(chunk, out[i]))

    def read_stored(self, rows: Sequence[int], out: Sequence[Bytes]) -> None:
        """Read the chunks of rows as stored, each checked, into one array of its size per chunk."""

        def keep(i: int, chunk: Bytes) -> None:
            without_checksum(chunk)
            out[i][:] = chunk

        self._each(rows, keep)

    def stored_sizes(self, rows: Sequence[int]) -> NDArray[np.uint64]:
        """Return the sizes of chunks in bytes, uint64 (tile,), from the index of their shard."""
        with self._named(rows):
            return self._entries(rows)[:, 1]

    def _each(self, rows: Sequence[int], use: Callable[[int, Bytes], None]) -> None:
        """Call a function with number and bytes of every chunk of some rows of one shard."""
        left = list(rows)
        with self._named(left):
            for i, chunk in enumerate(self._chunks(rows)):
                use(i, chunk)
                del left[0]

    @contextmanager
    def _named(self, rows: Sequence[int]) -> Iterator[None]:
        """Turn errors into a StoreError that names array, shard and tiles."""
        try:
            yield
        except (MemoryError, StoreError):  # a StoreError names the file already
            raise
        except Exception as error:  # codecs raise RuntimeError or ValueError, stores their own
            name = self.layout.array
            shard = self.layout.key(self.layout.place(rows[0])[0]).removeprefix(f"{name}/")
            raise StoreError(
                f"{self._location}: array {name}, shard {shard} (tiles {rows[0]} to {rows[-1]}) "
                f"cannot be read: {error}. {REPAIR}"
            ) from error

    def _chunks(self, rows: Sequence[int]) -> Iterator[Bytes]:
        """Yield the chunks of ascending rows of one shard, read in as few calls as possible."""
        ranges = [(at, at + size) for at, size in self._entries(rows).tolist()]
        key = self.layout.key(self.layout.place(rows[0])[0])
        step = max(1, self._files.call_bytes // self.layout.tile_bytes)
        done = 0
        while done < len(rows):
            # A call spans at most this many tiles: a server may send those in between as well.
            stop = bisect_left(rows, rows[done] + step)
            yield from self._files.ranges(key, ranges[done:stop])
            done = stop

    def _entries(self, rows: Sequence[int]) -> NDArray[np.uint64]:
        """Return offset and size of the chunks of ascending rows of one shard, uint64 (tile, 2)."""
        shard, first = self.layout.place(rows[0])
        if shard not in self._indexes:
            # One thread reads, the others wait. The pid: a forked child must not wait for a lock
            # that a thread of its parent held.
            with self._locks.setdefault((os.getpid(), shard), threading.Lock()):
                if shard not in self._indexes:
                    self._indexes[shard] = self._index(shard)
        entries: NDArray[np.uint64] = self._indexes[shard][np.asarray(rows) - (rows[0] - first)]
        if (entries[:, 0] == MISSING).any():
            raise ValueError("a chunk is missing")
        return entries

    def _index(self, shard: int) -> NDArray[np.uint64]:
        try:
            tail = self._files.end(self.layout.key(shard), self.layout.index_bytes)
        except FileNotFoundError as error:
            raise ValueError("it is missing") from error
        return self.layout.read_index(tail).copy()


class _LocalFiles:
    """Files of a local folder."""

    call_bytes = 16 << 20  # small compared with the tiles

    def __init__(self, root: Path) -> None:
        self._root = root

    def ranges(self, key: str, ranges: Ranges) -> list[Bytes]:
        """Return the bytes of ranges of a file."""
        sizes = [stop - start for start, stop in ranges]
        parts = np.split(np.empty(sum(sizes), np.uint8), np.cumsum(sizes)[:-1])
        fd = os.open(self._root / key, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for part, (start, _) in zip(parts, ranges, strict=True):
                if os.preadv(fd, [part.data], start) < len(part):
                    raise ValueError("it is truncated")
                part.flags.writeable = False  # as the checksum function requires
        finally:
            os.close(fd)
        return parts

    def end(self, key: str, nbytes: int) -> Bytes:
        """Return the last bytes of a file, or raise FileNotFoundError."""
        size = (self._root / key).stat().st_size
        return self.ranges(key, [(max(0, size - nbytes), size)])[0]


class _RemoteFiles:
    """Files of an object store; as `_LocalFiles`."""

    call_bytes = 48 << 20  # a shard of 32 tiles of 650 x 650 x 3 in one request
    gap_bytes = 5 << 20  # between two ranges: cheaper to receive than another request

    def __init__(self, store: StoreReader) -> None:
        self._files = store.files()

    def ranges(self, key: str, ranges: Ranges) -> list[Bytes]:
        starts, ends = [a for a, _ in ranges], [b for _, b in ranges]
        # All gaps together are at most as large as the ranges: this bounds memory.
        gaps = max(1, sum(map(ne, ends, starts[1:])))
        gap = min(self.gap_bytes, (sum(ends) - sum(starts)) // gaps)
        return [np.frombuffer(part, np.uint8) for part in self._files.ranges(key, ranges, gap)]

    def end(self, key: str, nbytes: int) -> Bytes:
        return np.frombuffer(self._files.end(key, nbytes), np.uint8)


Arrays = tuple[PixelArray, PixelArray]
"""Images and labels."""


def open_arrays(
    store: StoreReader, level: int, bands: Sequence[str], classes: Sequence[str] = ()
) -> Arrays:
    """Open images and labels of a level: bands in this order, labels in this order of classes."""
    places = tuple(map(store.meta.bands.index, bands))
    kept = None if places == tuple(range(len(store.meta.bands))) else places
    remote = "://" in store.location
    files = _RemoteFiles(store) if remote else _LocalFiles(Path(store.location))
    decoders = (
        Decoder(store.layout(level, "image"), kept),
        Decoder(store.layout(level, store.meta.label_array), values=class_values(store, classes)),
    )
    image, label = (PixelArray(store.location, decode, files) for decode in decoders)
    return image, label


def class_values(store: StoreReader, classes: Sequence[str]) -> NDArray[np.uint8] | None:
    """Return uint8 (256,), each label byte in another order of its classes; None for the same."""
    if tuple(classes) == tuple(store.meta.class_names):
        return None
    return ClassTable(tuple(classes), ()).lookup(store.meta.class_names)


@dataclass(frozen=True, slots=True)
class ShardRead:
    """Tiles to read from one shard."""

    arrays: Arrays
    rows: list[int]
    places: slice


def read_all(
    reads: Sequence[ShardRead],
    read: Callable[[ShardRead], None],
    *,
    threads: int,
    progress: ReportProgress | None = None,
) -> None:
    """Read from many shards in several threads; the first error ends it."""
    total, done = sum(len(shard.rows) for shard in reads), 0
    finished = Prefetcher(read, reads, threads=threads, prefetch=4 * threads)
    for shard, _ in zip(reads, finished, strict=True):
        done += len(shard.rows)
        if progress is not None:
            progress(done, total)


@contextmanager
def progress_bar(
    wanted: bool | ReportProgress | None, title: str
) -> Iterator[ReportProgress | None]:
    """Yield a function to report progress to, or None; see `RamTiles.load`."""
    if callable(wanted):
        yield wanted
    elif wanted or (wanted is None and sys.stderr.isatty()):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield None
