"""Tiles out of shards into their final place in memory, each byte checked against its checksum.

zarrs verifies checksums where it decodes a shard from end to end. Of a part of a shard it hands
out damaged pixels without a word (zarrs 0.2.3, measured), it asks an object store for sizes while
it holds the interpreter's lock, and it hangs in a forked child. Splits and streams read parts of
shards. So here the index of a shard is read once, neighbouring chunks in one request, and every
chunk is verified and decoded straight into its place: for lz4 in three quarters of the processor
time. (Reading single tiles by integer index through zarr is 200 times slower.)
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store as ZarrStore
from zarr.storage import LocalStore, ObjectStore

from geoprep.errors import StoreError
from geoprep.store import MISSING, REPAIR, PixelLayout, Store
from loaders.ahead import Ahead

Progress = Callable[[int, int], None]
"""Called with tiles read and tiles in all, in the thread that loads."""

CALL_BYTES = 16 << 20
"""Encoded bytes read at a time, about: one request to a server, little beside the tiles."""

Bytes = NDArray[np.uint8]

Ranges = Sequence[tuple[int, int]]
"""First byte of each range, and the byte after its last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring tiles of one shard: rows ``start:stop`` of the store go to ``at`` onwards."""

    start: int
    stop: int
    at: int

    @property
    def target(self) -> slice:
        """Where its tiles go."""
        return slice(self.at, self.at + self.stop - self.start)


def pieces(tiles: NDArray[np.int64], shard_tiles: int, at: int = 0) -> Iterator[Piece]:
    """Cut ascending tiles into runs of neighbours that end with their shard.

    Parameters
    ----------
    tiles
        int64, ascending rows of the store.
    shard_tiles
        Tiles per shard.
    at
        Where the first of them goes.
    """
    cuts = np.flatnonzero((np.diff(tiles) != 1) | (tiles[1:] % shard_tiles == 0)) + 1
    starts = np.concatenate([[0], cuts])
    for first, last in zip(starts, [*cuts, len(tiles)], strict=True):
        if last > first:
            yield Piece(int(tiles[first]), int(tiles[last - 1]) + 1, at + int(first))


class ChunkReader:
    """Reads tiles of one level of one store, from any number of threads.

    Parameters
    ----------
    store
        Where from.
    level
        Tile side in pixels.
    bands
        Names of the bands to keep, in the order wanted; None for all as they are.

    Raises
    ------
    StoreError
        A pixel array is not laid out as schema 1 has it.
    """

    def __init__(self, store: Store, level: int, bands: Sequence[str] | None = None) -> None:
        self.store = store
        self.side = level
        names = store.meta.bands
        chosen = None if bands is None else tuple(names.index(band) for band in bands)
        self.bands = None if chosen == tuple(range(len(names))) else chosen
        files = _files(store.root.store)
        self._image, self._speed = (
            _Shards(store.layout(level, name), files) for name in ("image", "speed")
        )

    def read(self, piece: Piece, image: NDArray[np.uint8], speed: NDArray[np.uint8]) -> None:
        """Read a piece into its place, rows ``piece.target`` of image and speed.

        Raises
        ------
        StoreError
            A chunk is corrupted or missing; array and shard are named.
        """
        self._fill(self._image, piece, image[piece.target], self.bands)
        self._fill(self._speed, piece, speed[piece.target], None)

    def read_speed(self, piece: Piece, speed: NDArray[np.uint8]) -> None:
        """Read the masks of a piece into rows ``piece.target``."""
        self._fill(self._speed, piece, speed[piece.target], None)

    def _fill(
        self,
        shards: _Shards,
        piece: Piece,
        out: NDArray[np.uint8],
        bands: tuple[int, ...] | None,
    ) -> None:
        layout, row = shards.layout, piece.start
        step = max(1, CALL_BYTES // layout.tile_bytes)
        whole = None if bands is None else np.empty(layout.tile_shape, np.uint8)
        try:
            while row < piece.stop:
                for chunk in shards.chunks(row, min(row + step, piece.stop)):
                    place = out[row - piece.start]
                    layout.decode(chunk, place if whole is None else whole)
                    if whole is not None:
                        np.take(whole, bands or (), -1, place, mode="clip")  # "raise" would buffer
                    row += 1
        except MemoryError:
            raise
        except Exception as error:  # codecs raise RuntimeError or ValueError, stores their own
            shard = layout.key(layout.place(row)[0]).removeprefix(f"{layout.array}/")
            raise StoreError(
                f"{self.store.location}: array {layout.array}, shard {shard} (tiles {row} to "
                f"{piece.stop - 1}) cannot be read: {error}. {REPAIR}"
            ) from error


class _Shards:
    """The shards of a pixel array.

    Parameters
    ----------
    layout
        How they are cut.
    files
        Where they are.
    """

    def __init__(self, layout: PixelLayout, files: _Files) -> None:
        self.layout = layout
        self._files = files
        self._found: dict[int, NDArray[np.uint64]] = {}

    def chunks(self, start: int, stop: int) -> Iterator[Bytes]:
        """Yield the bytes of tiles of one shard; those of neighbours come in one read."""
        shard, first = self.layout.place(start)
        entries = self._index(shard)[first : first + stop - start].tolist()
        if any(at == MISSING for at, _ in entries):
            raise ValueError("a chunk is missing")
        ranges = [(at, at + size) for at, size in entries]
        joined, parts = _joined(ranges), iter(ranges)
        blocks = self._files.ranges(self.layout.key(shard), joined)
        for (begin, end), block in zip(joined, blocks, strict=True):
            last = -1
            while last != end:
                at, last = next(parts)
                yield block[at - begin : last - begin]

    def _index(self, shard: int) -> NDArray[np.uint64]:
        """Return offset and size of every chunk, uint64 (chunk, 2)."""
        if shard not in self._found:
            try:
                tail = self._files.end(self.layout.key(shard), self.layout.index_bytes)
            except FileNotFoundError as error:
                raise ValueError("it is missing") from error
            self._found[shard] = self.layout.read_index(tail).copy()
        return self._found[shard]


class _Files(Protocol):
    """Where the bytes of shards come from."""

    def ranges(self, key: str, ranges: Ranges) -> list[Bytes]:
        """Return the bytes of ranges of an object."""

    def end(self, key: str, nbytes: int) -> Bytes:
        """Return the last bytes of an object, or raise FileNotFoundError."""


class _Kept(threading.local):
    """What each thread reads into: fresh memory for every read would cost a tenth of its time."""

    buffer = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        """Return so many bytes, with whatever they held."""
        if len(self.buffer) < nbytes:
            self.buffer = np.empty(nbytes, np.uint8)
        return self.buffer[:nbytes]


_kept = _Kept()


class _LocalFiles:
    """A folder of this machine. What it returns is valid until the thread reads again."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def ranges(self, key: str, ranges: Ranges) -> list[Bytes]:
        sizes = [stop - start for start, stop in ranges]
        parts = np.split(_kept.take(sum(sizes)), np.cumsum(sizes)[:-1])
        fd = os.open(self._root / key, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for part, (start, _) in zip(parts, ranges, strict=True):
                if os.preadv(fd, [part.data], start) < len(part):
                    raise ValueError("it is cut short")
                part.flags.writeable = False  # the checksum wants it so
        finally:
            os.close(fd)
        return parts

    def end(self, key: str, nbytes: int) -> Bytes:
        size = (self._root / key).stat().st_size
        return self.ranges(key, [(max(0, size - nbytes), size)])[0]


class _RemoteFiles:
    """An object store, asked through obstore, whose calls let other threads run."""

    def __init__(self, store: Any) -> None:  # noqa: ANN401 - one of obstore's many classes
        self._store = store

    def ranges(self, key: str, ranges: Ranges) -> list[Bytes]:
        import obstore

        starts, ends = [a for a, _ in ranges], [b for _, b in ranges]
        found = obstore.get_ranges(self._store, key, starts=starts, ends=ends)
        return [np.frombuffer(memoryview(one), np.uint8) for one in found]

    def end(self, key: str, nbytes: int) -> Bytes:
        import obstore
        from obstore.exceptions import NotSupportedError

        try:
            found = obstore.get(self._store, key, options={"range": {"suffix": nbytes}})
            return np.frombuffer(memoryview(found.bytes()), np.uint8)
        except NotSupportedError:  # Azure counts no range from the end
            size = int(obstore.head(self._store, key)["size"])
            return self.ranges(key, [(max(0, size - nbytes), size)])[0]


def _files(store: ZarrStore) -> _Files:
    if isinstance(store, LocalStore):
        return _LocalFiles(store.root)
    if isinstance(store, ObjectStore):
        return _RemoteFiles(store.store)
    raise StoreError(f"{store} is neither a folder nor an object store: open it by its address")


def _joined(ranges: Ranges) -> list[tuple[int, int]]:
    """Return ranges with neighbours made one."""
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def read_all(
    work: Sequence[tuple[ChunkReader, Piece]],
    image: NDArray[np.uint8],
    speed: NDArray[np.uint8],
    *,
    threads: int,
    progress: Progress | None = None,
) -> None:
    """Read many pieces from several threads; the first error ends it."""

    def read(one: tuple[ChunkReader, Piece]) -> int:
        reader, piece = one
        reader.read(piece, image, speed)
        return piece.stop - piece.start

    total = sum(piece.stop - piece.start for _, piece in work)
    done = 0
    for count in Ahead(read, work, threads=threads, ahead=4 * threads):
        done += count
        if progress is not None:
            progress(done, total)


@contextmanager
def progress_bar(wanted: bool | Progress | None, title: str) -> Iterator[Progress | None]:
    """Yield what to call with (done, total), or None.

    Parameters
    ----------
    wanted
        True for a bar on standard error, False for none, None for one if that is a terminal; or a
        function, which is used as it is.
    title
        What is going on.
    """
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
