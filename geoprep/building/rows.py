"""Rows of large scenes: each is decoded once for all tiles, of all shards, that show it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rasterio.io import DatasetReader
from rasterio.windows import Window

from geoprep.building.scene import PlannedScene
from geoprep.errors import ImageError
from geoprep.imagery.decoding import ImageWindow, read_pixels
from geoprep.storage.inputs import open_image

_STRIP_VALUES = 32 << 20
_STRIP_ROWS = 512
"""Strips have this many rows or twice as many, or whole rows of blocks, if these are higher."""
_MOST_BYTES: Final = 256 << 20
"""Bytes of strips that stay in memory after their use."""


def strips(scene: PlannedScene) -> list[tuple[int, int]]:
    """Return the first row of every strip of a scene, and the one after its last.

    They end with a row of blocks where they can, as compressed blocks are decoded whole.
    """
    assert scene.grid is not None  # only scenes that can be opened are read
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
    """Strips in memory: the tasks of a process share them."""

    def __init__(self) -> None:
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
            left = self._bytes() - _MOST_BYTES
            for other, old in [*self._slots.items()]:
                if left > 0 and old.values is not None:
                    left -= old.values.nbytes
                    del self._slots[other]
        return values

    def keep(self, key: object, values: NDArray[Any]) -> None:
        """Keep the values of a strip if there is space, without a loss of others."""
        with self._lock:
            if self._bytes() + values.nbytes <= _MOST_BYTES:
                slot = self._slots.setdefault(key, _Slot())
                slot.values = values

    def clear(self) -> None:
        """Release the strips."""
        with self._lock:
            self._slots.clear()

    def _bytes(self) -> int:
        return sum(slot.values.nbytes for slot in self._slots.values() if slot.values is not None)


_held: Final = _Held()


def release_rows() -> None:
    """Release the strips that this process holds, at the end of a build."""
    _held.clear()


class SceneRows:
    """Reads a scene strip by strip; its image is opened once, if at all."""

    def __init__(self, scene: PlannedScene) -> None:
        self._scene = scene
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
            assert scene.grid is not None  # as above
            self._dataset = self._open.enter_context(open_image(scene.image))
            if self._dataset.shape != scene.grid.shape:
                raise ImageError(f"{scene.image} changed its size while the store was built")
        return self._dataset

    def surveyed(self, first: int, last: int) -> ImageWindow:
        """Return a strip with the pixels that hold imagery, as far as it shows them.

        The strips of a scene that fits into memory are kept for its tiles.
        """
        scene = self._scene
        pixels = self._read(first, last, None)
        assert scene.grid is not None
        if pixels.values[0].nbytes * scene.grid.height <= _MOST_BYTES:
            _held.keep(self._key(first), pixels.values)
        return pixels

    def values(self, rows: slice, cols: slice) -> NDArray[Any]:
        """Return the values of a window, (y, x, band)."""
        self._last = dict(self._strips(rows))
        joined = [
            values[max(rows.start - first, 0) : rows.stop - first, cols]
            for first, values in self._last.items()
        ]
        return np.ascontiguousarray(joined[0]) if len(joined) == 1 else np.concatenate(joined)

    def _strips(self, rows: slice) -> Iterator[tuple[int, NDArray[Any]]]:
        for first, last in strips(self._scene):
            if rows.start < last and first < rows.stop:
                values = self._last.get(first)
                if values is None:
                    values = _held.get(self._key(first), lambda: self._values(first, last))  # noqa: B023 - called at once
                yield first, values

    def _values(self, first: int, last: int) -> NDArray[Any]:
        return self._read(first, last, np.ones((1, 1), np.uint8)).values

    def _read(self, first: int, last: int, mask: NDArray[np.uint8] | None) -> ImageWindow:
        scene = self._scene
        window = Window(0, first, self.dataset.width, last - first)
        return read_pixels(self.dataset, scene.bands, window, nodata=scene.nodata, mask=mask)

    def _key(self, first: int) -> object:
        return self._scene.image, self._scene.bands, self._scene.inputs, first
