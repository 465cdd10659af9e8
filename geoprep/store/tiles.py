"""Read single tiles of a store with every checksum verified. Loaders have a faster reader."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import StoreError
from geoprep.storage.places import Files
from geoprep.store.layout import MISSING
from geoprep.store.reader import StoreReader
from geoprep.store.schema import REPAIR


class TileReader:
    """Read tiles of one pixel array. Consecutive tiles of a shard share one read of its index."""

    def __init__(self, store: StoreReader, level: int | None, name: str) -> None:
        self.layout = store.layout(level, name)
        self._files = Files(store.location)
        self._shard = -1
        self._index: NDArray[np.uint64] = np.empty((0, 2), np.uint64)

    def read(self, tile: int) -> NDArray[np.uint8]:
        """Return a tile, uint8 (y, x, band) or (y, x)."""
        shard, row = self.layout.place(tile)
        try:
            offset, length = self._entry(shard, row)
            chunk = self._files.read_range(self.layout.key(shard), offset, offset + length)
            out = np.empty(self.layout.tile_shape, np.uint8)
            self.layout.decode(chunk, out)
        except StoreError as error:
            raise StoreError(f"{error}. {REPAIR}") from error
        except (ValueError, RuntimeError) as error:
            raise StoreError(
                f"{self._files.location}/{self.layout.key(shard)}: tile {tile} cannot be read "
                f"({error}). {REPAIR}"
            ) from error
        return out

    def _entry(self, shard: int, row: int) -> tuple[int, int]:
        if shard != self._shard:
            tail = bytes(self._files.end(self.layout.key(shard), self.layout.index_bytes))
            self._index, self._shard = self.layout.read_index(tail), shard
        offset, length = self._index[row].tolist()
        if MISSING in (offset, length):
            raise ValueError("the chunk is missing")
        return offset, length
