"""Rows of scenes: each is decoded once for all tiles, of all shards, or windows that show it."""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import ExitStack
from types import TracebackType
from typing import Final

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.io import DatasetReader
from rasterio.windows import Window

from geoprep.errors import ImageError
from geoprep.executors.shared import Shared
from geoprep.imagery.decoding import ImageWindow, decided, joined, read_pixels
from geoprep.imagery.scenes import OpenScene
from geoprep.imagery.validity import read_bits
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


def row_bytes(scene: OpenScene) -> int:
    """Return the bytes of a row of pixels in memory."""
    return np.dtype(held_dtype(scene.dtype)).itemsize * len(scene.bands) * scene.grid.width


def fits_memory(scene: OpenScene) -> bool:
    """Return whether strips of a scene stay in memory from its survey to its tiles."""
    return scene.grid.height * row_bytes(scene) <= _MOST_BYTES


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


class HeldStrips(Shared[ImageWindow]):
    """Strips in memory, of some bytes at most; threads share them."""

    def __init__(self, most: int = _MOST_BYTES) -> None:
        super().__init__(most, lambda strip: strip.nbytes)


_scenes: Final = HeldStrips(_MOST_BYTES)
_shared: Final = HeldStrips(_SHARED_BYTES)


def release_rows() -> None:
    """Release the strips that this process holds, at the end of a build."""
    _scenes.clear()
    _shared.clear()


class SceneRows:
    """Reads a scene strip by strip; its image is opened once, if at all.

    Parameters
    ----------
    scene, version
        Strips of one version of a scene are shared.
    mask
        File with the pixels that hold imagery, as the whole scene decides it, see `write_bits`; "":
        all do. None: they are read with the values.
    held
        Where strips stay. None: those of builds in this process.
    narrow
        Whether strips have the columns of a window only, of an image that is read in part.
    """

    def __init__(
        self,
        scene: OpenScene,
        version: object,
        mask: str | None = None,
        *,
        held: HeldStrips | None = None,
        narrow: bool = False,
    ) -> None:
        self._scene, self._version, self._mask, self._narrow = scene, version, mask, narrow
        self._held = held or (_scenes if fits_memory(scene) else _shared)
        self._open = ExitStack()
        self._dataset: DatasetReader | None = None
        self._last: dict[object, ImageWindow] = {}  # strips of the last rows

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
                raise ImageError(f"{scene.address} changed its size while it was read")
        return self._dataset

    def whole(self) -> ImageWindow:
        """Return all pixels, with those that hold imagery."""
        return read_pixels(self.dataset, self._scene.bands, nodata=self._scene.nodata)

    def surveyed(self, first: int, last: int) -> ImageWindow:
        """Return a strip with the pixels that hold imagery, as far as it shows them.

        The strips of a scene that fits into memory are kept for its tiles.
        """
        cols = slice(0, self._scene.grid.width)
        pixels = self._read(slice(first, last), cols, None)
        if fits_memory(self._scene):
            kept = pixels if self._mask is None else ImageWindow(pixels.values)
            self._held.keep(self._key(first, cols), kept)
        return pixels

    def pixels(self, rows: slice, cols: slice) -> ImageWindow:
        """Return a window, with the pixels that hold imagery."""
        width = self._scene.grid.width
        read = cols if self._narrow else slice(0, width)
        inner = slice(cols.start - read.start, cols.stop - read.start)
        parts, last_strips = [], {}
        for first, last in self._below(rows):
            strip = self._strip(first, last, read)
            parts.append(strip.part(slice(max(rows.start - first, 0), rows.stop - first), inner))
            # The next window is beside or below this one: of a strip that ends with it another
            # task may know.
            if last > rows.stop:
                last_strips[self._key(first, read)] = strip
        self._last = last_strips
        pixels = joined(parts)
        if self._mask:
            return decided(pixels, read_bits(self._mask, width, rows, cols))
        return pixels

    def again(self) -> SceneRows:
        """Return another reader of the same strips: an open image must not change threads."""
        return SceneRows(
            self._scene, self._version, self._mask, held=self._held, narrow=self._narrow
        )

    def decode_ahead(self, pool: Executor, row: int) -> None:
        """Let threads decode some strips from a row on, for windows that follow."""

        def decode(first: int, last: int) -> None:
            with self.again() as own:
                own._strip(first, last, slice(0, self._scene.grid.width))

        rows = 0 if self._narrow else _MOST_BYTES // 2 // row_bytes(self._scene)
        for strip in self._below(slice(row, row + rows)):
            pool.submit(decode, *strip)

    def _below(self, rows: slice) -> list[tuple[int, int]]:
        """Return the first row of every strip below some rows, and the one after its last."""
        return [(a, b) for a, b in strips(self._scene) if rows.start < b and a < rows.stop]

    def _strip(self, first: int, last: int, cols: slice) -> ImageWindow:
        key = self._key(first, cols)
        if key in self._last:
            return self._last[key]
        known = None if self._mask is None else np.ones((1, 1), np.uint8)
        return self._held.get(key, lambda: self._read(slice(first, last), cols, known))

    def _read(self, rows: slice, cols: slice, mask: NDArray[np.uint8] | None) -> ImageWindow:
        scene, shape = self._scene, (cols.stop - cols.start, rows.stop - rows.start)
        window = Window(cols.start, rows.start, *shape)
        return read_pixels(self.dataset, scene.bands, window, nodata=scene.nodata, mask=mask)

    def _key(self, first: int, cols: slice) -> object:
        return self._scene, self._version, first, cols.start, cols.stop
