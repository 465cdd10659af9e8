"""Checks of a shard: its content hash, its index, and position and checksum of every chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError
from geoprep.storage import StoreFiles
from geoprep.store import (
    CRC_BYTES,
    MISSING,
    PixelLayout,
    StoreMeta,
    digest,
    shard_key,
    without_checksum,
)

Report = Callable[[int | None, str], None]
"""Called with the tile, or None for the whole shard, and the problem."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """The tiles ``first`` to ``stop`` of one level: one shard of images and one of masks."""

    level: int
    shard: int
    first: int
    stop: int

    def path(self, name: str) -> str:
        """Return the file of ``image`` or ``speed``, relative to the store."""
        return shard_key(f"{self.level}/{name}", self.shard)


def plan_jobs(meta: StoreMeta, tiles: int) -> list[ShardJob]:
    """Return the jobs that together read every pixel once."""
    step = meta.shard_tiles
    return [
        ShardJob(level, shard, shard * step, min((shard + 1) * step, tiles))
        for level in meta.levels
        for shard in range(-(-tiles // step))
    ]


class ShardReader:
    """Reads a whole shard and checks all of its bytes, then decodes it tile by tile.

    Parameters
    ----------
    job, layout
        Shard and array.
    expected
        XXH3-128 as hex from the ledger; None if the ledger cannot be read.
    report
        Called once for every problem.
    """

    def __init__(
        self,
        job: ShardJob,
        layout: PixelLayout,
        files: StoreFiles,
        expected: str | None,
        report: Report,
    ) -> None:
        self._layout = layout
        self._faults = 0
        self._tell = report
        self._chunks: dict[int, bytes] = {}
        path = layout.key(job.shard)
        self.found = path in files.sizes
        if not self.found:
            self._report(None, f"the file {path} is missing")
            return
        try:
            data = files.read(path)
        except StoreError as error:
            self._report(None, str(error))
            return
        self._read_chunks(job, data)
        # Only if no more specific problem was found.
        if not self._faults and expected is not None and digest(data) != expected:
            self._report(None, "the file differs from the ledger, although its checksums match")

    def tile(self, tile: int) -> NDArray[np.uint8] | None:
        """Return the pixels of a tile; None if its chunk is damaged, which is reported."""
        if tile not in self._chunks:
            return None
        values = np.empty(self._layout.tile_shape, np.uint8)
        try:
            self._layout.decode(self._chunks[tile], values)
        except (RuntimeError, ValueError) as error:
            self._report(tile, f"the chunk cannot be decompressed: {error}")
            return None
        return values

    def _report(self, tile: int | None, message: str) -> None:
        self._faults += 1
        self._tell(tile, message)

    def _read_chunks(self, job: ShardJob, data: bytes) -> None:
        size = self._layout.index_bytes
        if len(data) < size:
            self._report(None, f"the file is cut short: {len(data)} bytes")
            return
        try:
            index = self._layout.read_index(data[-size:])
        except ValueError:
            self._report(None, "the index does not match its checksum")
            return
        count, end = job.stop - job.first, len(data) - size
        if (index[count:] != MISSING).any():
            self._report(None, "the index lists chunks past the last tile")
        for tile, (offset, length) in enumerate(index[:count].tolist(), start=job.first):
            if MISSING in (offset, length):
                self._report(tile, "the chunk is missing")
            elif length < CRC_BYTES or offset + length > end:
                self._report(tile, "the chunk is outside its shard")
            else:
                self._keep(tile, data[offset : offset + length])

    def _keep(self, tile: int, chunk: bytes) -> None:
        try:
            without_checksum(chunk)
        except ValueError:
            self._report(tile, "the chunk does not match its checksum")
        else:
            self._chunks[tile] = chunk
