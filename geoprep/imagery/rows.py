"""Rows of large scenes: each is decoded once for all tiles, of all shards, that show it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.io import DatasetReader
from rasterio.windows import Window

from geoprep.errors import ImageError
from geoprep.imagery.decoding import ImageWindow, read_pixels
from geoprep.imagery.scenes import OpenScene
from geoprep.imagery.wide import held_dtype
from geoprep.storage.inputs import open_image

_STRIP_VALUES = 32 << 20
_STRIP_ROWS = 512
"""Strips have this many rows or twice as many, or whole rows of blocks, if these are higher."""
_MOST_BYTES: Final = 256 << 20
"""Bytes of a scene whose strips stay in memory from its survey to its tiles."""
_SHARED_BYTES: Final = 32 << 20
"""Bytes of strips of larger scenes that stay for the next shard, or one strip."""
_BLOCK_BYTES: Final = 16 << 20
"""Bytes of blocks that GDAL keeps of an open image; by default it takes 5 % of the memory."""


def strips(scene: OpenScene) -> list[tuple[int, int]]:
    """Return the first row of every strip of a scene, and the one after its last.

    They end with a row of blocks where they can, as compressed blocks are decoded whole.
    """
    height, width = scene.grid.shape
    values, blocks = width * len(scene.bands), scene.block_rows
    step = _STRIP_ROWS if values * 2 * _STRIP_ROWS > _STRIP_VALUES else 2 * _STRIP_ROWS
    if blocks <= step:
        step -= step % blocks
    elif values * blocks <= 2 * _STRIP_VALUES:
        step = blocks
    return [(row, min(row + step, height)) for row in range(0, height, step)]


class _Slot:
    """The values of a strip, once they are decoded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: NDArray[Any] | None = None


class _Held:
    """Strips in memory, of some bytes at most: the tasks of a process share them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._slots: dict[object, _Slot] = {}  # the most recently used last

    def get(self, key: object, decode: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return the values of a strip; the first call decodes them, others wait for it."""
        with self._lock:
            slot = self._slots[key] = self._slots.pop(key) if key in self._slots else _Slot()
        with slot.lock:
            if slot.values is None:
                slot.values = decode()
            values = slot.values
        with self._lock:
            left = self._bytes() - self._most
            for other, old in [*self._slots.items()]:
                if left > 0 and old.values is not None and old is not slot:
                    left -= old.values.nbytes
                    del self._slots[other]
        return values

    def keep(self, key: object, values: NDArray[Any]) -> None:
        """Keep the values of a strip if there is space, without a loss of others."""
        with self._lock:
            if self._bytes() + values.nbytes <= self._most:
                slot = self._slots.setdefault(key, _Slot())
                slot.values = values

    def clear(self) -> None:
        """Release the strips."""
        with self._lock:
            self._slots.clear()

    def _bytes(self) -> int:
        return sum(slot.values.nbytes for slot in self._slots.values() if slot.values is not None)


_scenes: Final = _Held(_MOST_BYTES)
_shared: Final = _Held(_SHARED_BYTES)


def release_rows() -> None:
    """Release the strips that this process holds, at the end of a build."""
    _scenes.clear()
    _shared.clear()


class SceneRows:
    """Reads a scene strip by strip; its image is opened once, if at all.

    Strips of one ``version`` of a scene are shared.
    """

    def __init__(self, scene: OpenScene, version: object) -> None:
        self._scene, self._version = scene, version
        pixel = np.dtype(held_dtype(scene.dtype)).itemsize * len(scene.bands)
        self._held = _scenes if math.prod(scene.grid.shape) * pixel <= _MOST_BYTES else _shared
        self._open = ExitStack()
        self._dataset: DatasetReader | None = None
        self._last: dict[int, NDArray[Any]] = {}  # values of the strips of the last rows

    def __enter__(self) -> SceneRows:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)  # errors of GDAL become those that name the image

    @property
    def dataset(self) -> DatasetReader:
        """The open image."""
        if self._dataset is None:
            scene = self._scene
            self._open.enter_context(rasterio.Env(GDAL_CACHEMAX=_BLOCK_BYTES))
            self._dataset = self._open.enter_context(open_image(scene.address))
            if self._dataset.shape != scene.grid.shape:
                raise ImageError(f"{scene.address} changed its size while the store was built")
        return self._dataset

    def whole(self) -> ImageWindow:
        """Return all pixels, with those that hold imagery."""
        return read_pixels(self.dataset, self._scene.bands, nodata=self._scene.nodata)

    def surveyed(self, first: int, last: int) -> ImageWindow:
        """Return a strip with the pixels that hold imagery, as far as it shows them.

        The strips of a scene that fits into memory are kept for its tiles.
        """
        pixels = self._read(first, last, None)
        if self._held is _scenes:
            _scenes.keep(self._key(first), pixels.values)
        return pixels

    def values(self, rows: slice, cols: slice) -> NDArray[Any]:
        """Return the values of a window, (y, x, band)."""
        of_window = dict(self._strips(rows))
        joined = [
            values[max(rows.start - first, 0) : rows.stop - first, cols]
            for first, values in of_window.items()
        ]
        # The next window is beside or below this one: of a strip that ends with it another task
        # may know.
        self._last = {first: v for first, v in of_window.items() if first + len(v) > rows.stop}
        return np.ascontiguousarray(joined[0]) if len(joined) == 1 else np.concatenate(joined)

    def _strips(self, rows: slice) -> Iterator[tuple[int, NDArray[Any]]]:
        for first, last in strips(self._scene):
            if rows.start < last and first < rows.stop:
                values = self._last.get(first)
                if values is None:
                    values = self._held.get(self._key(first), lambda: self._values(first, last))  # noqa: B023 - called at once
                yield first, values

    def _values(self, first: int, last: int) -> NDArray[Any]:
        return self._read(first, last, np.ones((1, 1), np.uint8)).values

    def _read(self, first: int, last: int, mask: NDArray[np.uint8] | None) -> ImageWindow:
        scene = self._scene
        window = Window(0, first, self.dataset.width, last - first)
        return read_pixels(self.dataset, scene.bands, window, nodata=scene.nodata, mask=mask)

    def _key(self, first: int) -> object:
        return self._scene, self._version, first
