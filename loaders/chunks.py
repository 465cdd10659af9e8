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
from geoprep.store import MISSING, REPAIR, PixelLayout, Store, without_checksum
from loaders.ahead import Ahead, Progress

Bytes = NDArray[np.uint8]

Ranges = Sequence[tuple[int, int]]
"""First byte of each range, and the byte after its last."""


def by_shard(tiles: NDArray[np.int64], shard_tiles: int) -> list[list[int]]:
    """Cut ascending rows of a store where a shard of so many tiles ends."""
    cuts = np.flatnonzero(np.diff(tiles // shard_tiles)) + 1
    return [rows.tolist() for rows in np.split(tiles, cuts) if len(rows)]


@dataclass(frozen=True, slots=True)
class Decoder:
    """How a chunk as it is stored becomes a tile.

    Attributes
    ----------
    layout
        Of the array.
    bands
        Which of its bands to keep, in this order; None for all as they are.
    """

    layout: PixelLayout
    bands: tuple[int, ...] | None = None

    def __call__(self, chunk: Bytes, out: Bytes) -> None:
        """Check a chunk against its checksum and decompress it.

        Parameters
        ----------
        chunk
            Read-only, the checksum at its end.
        out
            uint8 (y, x, band) or (y, x), C-contiguous; written.

        Raises
        ------
        ValueError, RuntimeError
            It is damaged.
        """
        if self.bands is None:
            self.layout.decode(chunk, out)
            return
        whole = _wholes.take(self.layout.tile_bytes).reshape(self.layout.tile_shape)
        self.layout.decode(chunk, whole)
        np.take(whole, self.bands, -1, out, mode="clip")  # "raise" would buffer


class PixelArray:
    """Images or masks of one level of a store, read from any number of threads.

    Parameters
    ----------
    location
        Of the store, for messages.
    decode
        How its chunks are laid out and become tiles.
    files
        Where they are.
    """

    def __init__(self, location: str, decode: Decoder, files: _LocalFiles | _RemoteFiles) -> None:
        self.decode = decode
        self.layout = decode.layout
        self._location = location
        self._files = files
        self._found: dict[int, NDArray[np.uint64]] = {}
        self._asked: dict[tuple[int, int], threading.Lock] = {}

    def read(self, rows: Sequence[int], out: Bytes) -> None:
        """Read tiles of one shard, ascending rows of the store.

        Parameters
        ----------
        rows
            Which.
        out
            uint8 (tile, y, x, band) or (tile, y, x), one place per row; written.

        Raises
        ------
        StoreError
            A chunk is corrupted or missing; array and shard are named.
        """
        self._each(rows, lambda i, chunk: self.decode(chunk, out[i]))

    def read_stored(self, rows: Sequence[int], out: Sequence[Bytes]) -> None:
        """Read the chunks of tiles as they are, each checked against its checksum.

        Parameters
        ----------
        rows
            Which, as for `read`.
        out
            uint8, a place for each, of its `stored_sizes`; written.
        """

        def keep(i: int, chunk: Bytes) -> None:
            without_checksum(chunk)
            out[i][:] = chunk

        self._each(rows, keep)

    def stored_sizes(self, rows: Sequence[int]) -> NDArray[np.uint64]:
        """Return the bytes that tiles have as stored, uint64 (tile,), from the shard's index.

        Raises
        ------
        StoreError
            As `read`.
        """
        with self._named(rows):
            return self._entries(rows)[:, 1]

    def _each(self, rows: Sequence[int], use: Callable[[int, Bytes], None]) -> None:
        """Call with number and bytes of every chunk of some rows of one shard."""
        left = list(rows)
        with self._named(left):
            for i, chunk in enumerate(self._chunks(rows)):
                use(i, chunk)
                del left[0]

    @contextmanager
    def _named(self, rows: Sequence[int]) -> Iterator[None]:
        """Say of an error which array, shard and tiles cannot be read."""
        try:
            yield
        except (MemoryError, StoreError):  # the second says which file, and what to do
            raise
        except Exception as error:  # codecs raise RuntimeError or ValueError, stores their own
            name = self.layout.array
            shard = self.layout.key(self.layout.place(rows[0])[0]).removeprefix(f"{name}/")
            raise StoreError(
                f"{self._location}: array {name}, shard {shard} (tiles {rows[0]} to {rows[-1]}) "
                f"cannot be read: {error}. {REPAIR}"
            ) from error

    def _chunks(self, rows: Sequence[int]) -> Iterator[Bytes]:
        """Yield the bytes of tiles of one shard, ascending rows, read in as few calls as can be."""
        ranges = [(at, at + size) for at, size in self._entries(rows).tolist()]
        key = self.layout.key(self.layout.place(rows[0])[0])
        step = max(1, self._files.call_bytes // self.layout.tile_bytes)
        done = 0
        while done < len(rows):
            # A call spans so many tiles, wanted or not: a server may send what lies between.
            stop = bisect_left(rows, rows[done] + step)
            yield from self._files.ranges(key, ranges[done:stop])
            done = stop

    def _entries(self, rows: Sequence[int]) -> NDArray[np.uint64]:
        """Return offset and size of the chunks of tiles of one shard, uint64 (tile, 2)."""
        shard, first = self.layout.place(rows[0])
        if shard not in self._found:
            # One thread asks and the others wait. A fork does not inherit a lock that is taken.
            with self._asked.setdefault((os.getpid(), shard), threading.Lock()):
                if shard not in self._found:
                    self._found[shard] = self._index(shard)
        found: NDArray[np.uint64] = self._found[shard][np.asarray(rows) - (rows[0] - first)]
        if (found[:, 0] == MISSING).any():
            raise ValueError("a chunk is missing")
        return found

    def _index(self, shard: int) -> NDArray[np.uint64]:
        try:
            tail = self._files.end(self.layout.key(shard), self.layout.index_bytes)
        except FileNotFoundError as error:
            raise ValueError("it is missing") from error
        return self.layout.read_index(tail).copy()


class _Kept(threading.local):
    """What each thread reads into: fresh memory for every read would cost a tenth of its time."""

    buffer = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        """Return so many bytes, with whatever they held."""
        if len(self.buffer) < nbytes:
            self.buffer = np.empty(nbytes, np.uint8)
        return self.buffer[:nbytes]


_kept, _wholes = _Kept(), _Kept()
"""What was read, and tiles of which not all bands are kept."""


class _LocalFiles:
    """A folder of this machine. What it returns is valid until the thread reads again.

    Attributes
    ----------
    call_bytes
        Decoded bytes that one read spans, about.
    """

    call_bytes = 16 << 20  # little beside the tiles

    def __init__(self, root: Path) -> None:
        self._root = root

    def ranges(self, key: str, ranges: Ranges) -> list[Bytes]:
        """Return the bytes of ranges of a file."""
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
        """Return the last bytes of a file, or raise FileNotFoundError."""
        size = (self._root / key).stat().st_size
        return self.ranges(key, [(max(0, size - nbytes), size)])[0]


class _RemoteFiles:
    """An object store, whose calls let other threads run; otherwise as `_LocalFiles`."""

    call_bytes = 48 << 20  # a shard of 32 tiles of 650 x 650 x 3 in one request
    gap_bytes = 5 << 20  # between two ranges: sooner sent along than asked for once more

    def __init__(self, store: Store) -> None:
        self._files = store.files()

    def ranges(self, key: str, ranges: Ranges) -> list[Bytes]:
        starts, ends = [a for a, _ in ranges], [b for _, b in ranges]
        # All gaps together are no wider than what is wanted: that bounds what is held.
        gaps = max(1, sum(map(ne, ends, starts[1:])))
        gap = min(self.gap_bytes, (sum(ends) - sum(starts)) // gaps)
        found = self._files.ranges(key, ranges, gap)
        return [np.frombuffer(one, np.uint8) for one in found]

    def end(self, key: str, nbytes: int) -> Bytes:
        return np.frombuffer(self._files.end(key, nbytes), np.uint8)


Arrays = tuple[PixelArray, PixelArray]
"""Images and masks."""


def open_arrays(store: Store, level: int, bands: Sequence[str]) -> Arrays:
    """Open the pixels of a level.

    Parameters
    ----------
    store
        Where from.
    level
        Tile side in pixels.
    bands
        Names of the bands to keep, in the order wanted.

    Raises
    ------
    StoreError
        A pixel array is not laid out as schema 1 has it.
    """
    places = tuple(map(store.meta.bands.index, bands))
    kept = None if places == tuple(range(len(store.meta.bands))) else places
    remote = "://" in store.location
    files = _RemoteFiles(store) if remote else _LocalFiles(Path(store.location))
    decoders = Decoder(store.layout(level, "image"), kept), Decoder(store.layout(level, "speed"))
    image, speed = (PixelArray(store.location, decode, files) for decode in decoders)
    return image, speed


@dataclass(frozen=True, slots=True)
class Part:
    """Tiles of one shard, and their places among all that are loaded."""

    arrays: Arrays
    rows: list[int]
    places: slice


def read_all(
    parts: Sequence[Part],
    read: Callable[[Part], None],
    *,
    threads: int,
    progress: Progress | None = None,
) -> None:
    """Read many parts from several threads; the first error ends it.

    Parameters
    ----------
    parts
        What.
    read
        Reads one, in a thread.
    threads
        How many.
    progress
        Called after every part.
    """
    total, done = sum(len(part.rows) for part in parts), 0
    finished = Ahead(read, parts, threads=threads, ahead=4 * threads)
    for part, _ in zip(parts, finished, strict=True):
        done += len(part.rows)
        if progress is not None:
            progress(done, total)
