"""One shard file: its content hash, its index, and the place and checksum of every chunk."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError
from geoprep.storage.files import StoreFiles
from geoprep.store.layout import CRC_BYTES, ENTRY_BYTES, MISSING, compressor
from geoprep.store.schema import StoreMeta
from geoprep.store.shards import digest

Report = Callable[[int | None, str], None]
"""Told the tile, or None for the whole shard, and what is wrong."""


@dataclass(frozen=True, slots=True)
class ShardJob:
    """The tiles ``first`` to ``stop`` of one level: one shard of images and one of masks."""

    level: int
    shard: int
    first: int
    stop: int

    def path(self, name: str) -> str:
        """Return the file of ``image`` or ``speed``, relative to the store."""
        return f"{self.level}/{name}/c/{self.shard}" + "/0" * (3 if name == "image" else 2)


def plan_jobs(meta: StoreMeta, tiles: int) -> list[ShardJob]:
    """Return the jobs that together read every pixel once."""
    step = meta.shard_tiles
    return [
        ShardJob(level, shard, shard * step, min((shard + 1) * step, tiles))
        for level in meta.levels
        for shard in range(-(-tiles // step))
    ]


class ShardReader:
    """Reads a shard whole and checks all of its bytes; then decodes tile by tile.

    Parameters
    ----------
    job, name
        Which shard: ``image`` or ``speed`` of a job.
    files, meta
        The store.
    expected
        XXH3-128 as hex from the ledger; None where the ledger cannot be read.
    report
        Told of everything that is wrong, once for each cause.
    """

    def __init__(
        self,
        job: ShardJob,
        name: str,
        files: StoreFiles,
        meta: StoreMeta,
        expected: str | None,
        report: Report,
    ) -> None:
        sides = (job.level, job.level)
        self._shape = (*sides, len(meta.bands)) if name == "image" else sides
        self._decode = compressor(meta.codec).decode
        self._first = job.first
        self._faults = 0
        self._tell = report
        self._chunks: dict[int, tuple[int, int]] = {}
        self.data = b""
        path = job.path(name)
        if path not in files.sizes:
            self._report(None, f"the file {path} is missing")
            return
        try:
            self.data = files.read(path)
        except StoreError as error:
            self._report(None, str(error))
            return
        index = self._read_index(meta.shard_tiles)
        if index is not None:
            self._check_chunks(job, index)
        # A finer report than "some byte" has been given where there was one to give.
        if not self._faults and expected is not None and digest(self.data) != expected:
            self._report(None, "the file is not the one in the ledger, though its checksums fit")

    def tile(self, tile: int) -> NDArray[np.uint8] | None:
        """Return the pixels of a tile; None where its chunk was, or now is, reported."""
        if tile not in self._chunks:
            return None
        offset, size = self._chunks[tile]
        body = memoryview(self.data)[offset : offset + size - CRC_BYTES]
        try:
            values = np.frombuffer(self._decode(body), np.uint8)
        except (RuntimeError, ValueError) as error:
            self._report(tile, f"the chunk cannot be decompressed: {error}")
            return None
        if values.size != math.prod(self._shape):
            self._report(
                tile, f"the chunk holds {values.size} pixel bytes, not {math.prod(self._shape)}"
            )
            return None
        return values.reshape(self._shape)

    def _report(self, tile: int | None, message: str) -> None:
        self._faults += 1
        self._tell(tile, message)

    def _read_index(self, entries: int) -> NDArray[np.uint64] | None:
        """Return uint64 (chunk, 2), offset and length, or None where it cannot be trusted."""
        size = entries * ENTRY_BYTES
        if len(self.data) < size + CRC_BYTES:
            self._report(None, f"the file is cut short: {len(self.data)} bytes")
            return None
        index = self.data[-size - CRC_BYTES : -CRC_BYTES]
        if google_crc32c.value(index) != int.from_bytes(self.data[-CRC_BYTES:], "little"):
            self._report(None, "the index does not match its checksum")
            return None
        return np.frombuffer(index, "<u8").reshape(-1, 2)

    def _check_chunks(self, job: ShardJob, index: NDArray[np.uint64]) -> None:
        end = len(self.data) - len(index) * ENTRY_BYTES - CRC_BYTES
        count = job.stop - job.first
        if (index[count:] != MISSING).any():
            self._report(None, "the index lists chunks past the last tile")
        for tile, (offset, size) in enumerate(index[:count].tolist(), start=job.first):
            if MISSING in (offset, size):
                self._report(tile, "the chunk is missing")
            elif size < CRC_BYTES or offset + size > end:
                self._report(tile, "the chunk lies outside its shard")
            elif not self._checksum_fits(offset, size):
                self._report(tile, "the chunk does not match its checksum")
            else:
                self._chunks[tile] = offset, size

    def _checksum_fits(self, offset: int, size: int) -> bool:
        body = self.data[offset : offset + size - CRC_BYTES]
        stored = self.data[offset + size - CRC_BYTES : offset + size]
        return bool(google_crc32c.value(body) == int.from_bytes(stored, "little"))
