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
from dataclasses import dataclass
from operator import ne
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError
from geoprep.store import MISSING, REPAIR, PixelLayout, Store, without_checksum
from loaders.ahead import Ahead, Progress

Bytes = NDArray[np.uint8]

Ranges = Sequence[tuple[int, int]]
"""First byte of each range, and the byte after its last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tiles of one shard: these rows of the store, ascending, go to ``at`` onwards."""

    rows: Sequence[int]
    at: int

    @property
    def target(self) -> slice:
        """Where its tiles go."""
        return slice(self.at, self.at + len(self.rows))


def pieces(tiles: NDArray[np.int64], shard_tiles: int, at: int = 0) -> Iterator[Piece]:
    """Cut ascending tiles where a shard ends.

    Parameters
    ----------
    tiles
        int64, ascending rows of the store.
    shard_tiles
        Tiles per shard.
    at
        Where the first of them goes.
    """
    cuts = np.flatnonzero(np.diff(tiles // shard_tiles)) + 1
    for part in np.split(tiles, cuts) if len(tiles) else ():
        yield Piece(part.tolist(), at)
        at += len(part)


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

    def __call__(self, chunk: Bytes, out: NDArray[np.uint8]) -> None:
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

    Attributes
    ----------
    decoders
        Of images and of masks.

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
        layouts = store.layout(level, "image"), store.layout(level, "speed")
        self.decoders = Decoder(layouts[0], self.bands), Decoder(layouts[1])
        remote = "://" in store.location
        files: _Files = _RemoteFiles(store) if remote else _LocalFiles(Path(store.location))
        self._image, self._speed = (_Shards(layout, files) for layout in layouts)

    def read(self, piece: Piece, image: NDArray[np.uint8], speed: NDArray[np.uint8]) -> None:
        """Read a piece into its place, rows ``piece.target`` of image and speed.

        Raises
        ------
        StoreError
            A chunk is corrupted or missing; array and shard are named.
        """
        decode, out = self.decoders[0], image[piece.target]
        self._each(self._image, piece.rows, lambda i, chunk: decode(chunk, out[i]))
        self.read_speed(piece, speed)

    def read_speed(self, piece: Piece, speed: NDArray[np.uint8]) -> None:
        """Read the masks of a piece into rows ``piece.target``."""
        decode, out = self.decoders[1], speed[piece.target]
        self._each(self._speed, piece.rows, lambda i, chunk: decode(chunk, out[i]))

    def stored_sizes(self, piece: Piece) -> NDArray[np.int64]:
        """Return the bytes that images and masks of a piece have as stored, int64 (tile, 2).

        Raises
        ------
        StoreError
            As `read`; of the shards nothing but their index is read.
        """
        sizes = []
        for shards in (self._image, self._speed):
            try:
                sizes.append(shards.entries(piece.rows)[:, 1].astype(np.int64))
            except StoreError:
                raise
            except Exception as error:
                raise self._unreadable(shards, piece.rows, error) from error
        return np.stack(sizes, axis=1)

    def read_stored(self, piece: Piece, bounds: NDArray[np.int64], out: Bytes) -> None:
        """Read the chunks of a piece as they are, each checked against its checksum.

        Parameters
        ----------
        piece
            Which.
        bounds
            int64 (tile, 2, 2), first byte and the one after the last of images and masks.
        out
            uint8, where they go.
        """
        for kind, shards in enumerate((self._image, self._speed)):
            places = bounds[piece.target, kind].tolist()

            def keep(i: int, chunk: Bytes, places: list[list[int]] = places) -> None:
                without_checksum(chunk)
                out[slice(*places[i])] = chunk

            self._each(shards, piece.rows, keep)

    def _each(
        self, shards: _Shards, rows: Sequence[int], use: Callable[[int, Bytes], None]
    ) -> None:
        """Call with number and bytes of every chunk of some rows of one shard."""
        done = 0
        try:
            for chunk in shards.chunks(rows):
                use(done, chunk)
                done += 1
        except (MemoryError, StoreError):  # the second says which file, and what to do
            raise
        except Exception as error:  # codecs raise RuntimeError or ValueError, stores their own
            raise self._unreadable(shards, rows[done:], error) from error

    def _unreadable(self, shards: _Shards, rows: Sequence[int], error: Exception) -> StoreError:
        layout = shards.layout
        shard = layout.key(layout.place(rows[0])[0]).removeprefix(f"{layout.array}/")
        return StoreError(
            f"{self.store.location}: array {layout.array}, shard {shard} (tiles {rows[0]} to "
            f"{rows[-1]}) cannot be read: {error}. {REPAIR}"
        )


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
        self._asked: dict[tuple[int, int], threading.Lock] = {}

    def chunks(self, rows: Sequence[int]) -> Iterator[Bytes]:
        """Yield the bytes of tiles of one shard, ascending rows, read in as few calls as can be."""
        if not rows:
            return
        ranges = [(at, at + size) for at, size in self.entries(rows).tolist()]
        key = self.layout.key(self.layout.place(rows[0])[0])
        step = max(1, self._files.call_bytes // self.layout.tile_bytes)
        done = 0
        while done < len(rows):
            # A call spans so many tiles, wanted or not: a server may send what lies between.
            stop = bisect_left(rows, rows[done] + step)
            yield from self._files.ranges(key, ranges[done:stop])
            done = stop

    def entries(self, rows: Sequence[int]) -> NDArray[np.uint64]:
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


class _Files(Protocol):
    """Where the bytes of shards come from.

    Attributes
    ----------
    call_bytes
        Decoded bytes that one read spans, about.
    """

    call_bytes: int

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


_kept, _wholes = _Kept(), _Kept()
"""What was read, and tiles of which not all bands are kept."""


class _LocalFiles:
    """A folder of this machine. What it returns is valid until the thread reads again."""

    call_bytes = 16 << 20  # little beside the tiles

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
    """An object store, whose calls let other threads run."""

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


def read_all(
    work: Sequence[tuple[ChunkReader, Piece]],
    read: Callable[[ChunkReader, Piece], None],
    *,
    threads: int,
    progress: Progress | None = None,
) -> None:
    """Read many pieces from several threads; the first error ends it.

    Parameters
    ----------
    work
        What, and by whom.
    read
        Reads one, in a thread.
    threads
        How many.
    progress
        Called after every piece.
    """

    def one(part: tuple[ChunkReader, Piece]) -> int:
        read(*part)
        return len(part[1].rows)

    total, done = sum(len(piece.rows) for _, piece in work), 0
    for count in Ahead(one, work, threads=threads, ahead=4 * threads):
        done += count
        if progress is not None:
            progress(done, total)
