"""Tiles from a store straight into their final place in memory, in parallel.

Runs of neighbouring tiles are read shard by shard and decoded without a second copy. (Reading
single tiles by integer index through zarr is 200 times slower.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from loaders.chunks import ChunkReader

Progress = Callable[[int, int], None]
"""Called with tiles read and tiles in all, in the thread that loads."""

CALL_BYTES = 16 << 20
"""Encoded bytes read at a time, about: one request to a server, little beside the tiles."""


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
        Tiles in a shard.
    at
        Where the first of them goes.
    """
    cuts = np.flatnonzero((np.diff(tiles) != 1) | (tiles[1:] % shard_tiles == 0)) + 1
    starts = np.concatenate([[0], cuts])
    for first, last in zip(starts, [*cuts, len(tiles)], strict=True):
        if last > first:
            yield Piece(int(tiles[first]), int(tiles[last - 1]) + 1, at + int(first))


def read_all(
    work: Sequence[tuple[ChunkReader, Piece]],
    image: NDArray[np.uint8],
    speed: NDArray[np.uint8],
    *,
    threads: int,
    progress: Progress | None = None,
) -> None:
    """Read many pieces from several threads; the first error ends it."""
    total = sum(piece.stop - piece.start for _, piece in work)
    done = 0
    pool = ThreadPoolExecutor(threads, "loaders-read")
    try:
        futures = {pool.submit(r.read, piece, image, speed): piece for r, piece in work}
        for future in as_completed(futures):
            future.result()
            piece = futures.pop(future)
            done += piece.stop - piece.start
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
