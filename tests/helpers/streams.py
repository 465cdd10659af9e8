"""Shared helpers of the tests of streams."""

from __future__ import annotations

import threading
import time
import zlib
from typing import Any

from loaders import Batch, BatchLoader

TILE = 32 * 32 * 4
TRAIN: dict[str, Any] = {"crop": 16, "augment": "d4", "crops_per_tile": 3, "seed": 5}
SMALL: dict[str, Any] = {"lanes": 2, "ram_limit": 40 * TILE}
"""A memory limit far below the size of 200 tiles."""

LARGE: dict[str, Any] = {"scenes": 50, "shard_tiles": 7, "levels": (32,)}
"""A store of 200 tiles, 160 of them for training; shards do not end with scenes."""


def digest(batch: Batch) -> tuple[int, ...]:
    parts = (batch.image, batch.speed, batch.index, batch.where, batch.key)
    return tuple(zlib.crc32(part.contiguous().numpy().tobytes()) for part in parts)


def samples(loader: BatchLoader) -> list[tuple[int, ...]]:
    """Return tile, window, key and bytes of every sample, batch borders ignored."""
    found = []
    for batch in loader:
        for i in range(len(batch)):
            pixels = zlib.crc32(batch.image[i].contiguous().numpy().tobytes())
            place = (int(batch.index[i]), *batch.where[i].tolist(), int(batch.key[i]))
            found.append((*place, pixels, zlib.crc32(batch.speed[i].numpy().tobytes())))
    return found


def loader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("loaders-")]


def threads_end(seconds: float = 300.0) -> bool:
    """Return True if the threads of an abandoned loop end soon."""
    end = time.monotonic() + seconds
    while loader_threads() and time.monotonic() < end:
        time.sleep(0.001)
    return not loader_threads()
