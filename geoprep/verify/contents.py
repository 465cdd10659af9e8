"""Checks of tables and shards: readable, of equal length, and equal to the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from geoprep.errors import StoreError
from geoprep.storage.places import Files
from geoprep.store.layout import MISSING, PixelLayout, pixel_layouts
from geoprep.store.reader import StoreReader, read_table
from geoprep.store.schema import HASH_BYTES, SCENE_COLUMNS, TILE_COLUMNS, table_arrays
from geoprep.store.shards import digest
from geoprep.verify.documents import Problem, chunk_of


class Tables:
    """The tables of a store that can be read, and the problems of the others."""

    def __init__(self, store: StoreReader) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self.problems: list[Problem] = []
        for name, (dtype, dims) in table_arrays(store.meta).items():
            try:
                array = store.root[name]
                if not isinstance(array, zarr.Array):
                    raise TypeError("not an array")
                self.arrays[name] = read_table(array, dtype, dims)
            except StoreError:  # our own zarr store raises it for missing files only
                message = f"the file {chunk_of(name, len(dims))} is missing"
                self.problems.append(Problem.of(name, message))
            except Exception as error:  # damaged bytes can make a codec raise anything
                self.problems.append(Problem.of(name, f"cannot be read: {error}"))
        self.tiles = self._length([*TILE_COLUMNS], store.image().shape[0])
        self.scenes = self._length([f"scenes/{name}" for name in SCENE_COLUMNS], 0)
        shards = -(-self.tiles // store.meta.shard_tiles)
        for name in store.meta.pixel_arrays():
            self._check_shape(f"ledger/{name}", (shards, HASH_BYTES))
        self._check_shape("histogram/band", (len(store.meta.bands), 256))
        self._check_shape(f"histogram/{store.meta.label_array}", (256,))
        self._check_shape("class_pixels", (self.tiles, len(store.meta.class_names)))

    def _length(self, columns: list[str], otherwise: int) -> int:
        """Return the number of rows of a table; columns of other lengths are problems."""
        lengths = {name: len(self.arrays[name]) for name in columns if name in self.arrays}
        usual = max(lengths.values(), key=list(lengths.values()).count, default=otherwise)
        for name, length in lengths.items():
            if length != usual:
                self.problems.append(Problem.of(name, f"{length} rows, not the {usual} of others"))
        return usual

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        array = self.arrays.get(name)
        if array is not None and array.shape != shape:
            self.problems.append(Problem.of(name, f"shape is {array.shape}, not {shape}"))
            del self.arrays[name]

    def scene_of(self, tile: int) -> str | None:
        """Return the id of a tile's scene; None if the tables cannot be read."""
        try:
            return str(self.arrays["scenes/id"][self.arrays["scene"][tile]])
        except (KeyError, IndexError):
            return None


def check_layouts(store: StoreReader, tiles: int) -> Iterator[Problem]:
    """Check shape, chunks, dtype and codecs of every pixel array."""
    for name, layout in pixel_layouts(store.meta).items():
        array = store.root.get(name)
        if not isinstance(array, zarr.Array):
            yield Problem.of(name, "the array is missing")
        elif not layout.matches(array) or array.shape[0] != tiles:
            expected = layout.describe(tiles)["shape"]
            yield Problem.of(
                name, f"shape {array.shape} or codecs are not those of the store: {expected}"
            )


def check_shard(
    shard: tuple[PixelLayout, int], files: Files, tables: Tables
) -> tuple[int, list[Problem]]:
    """Read a shard, decode each of its chunks, and compare its digest with the ledger.

    Return the number of intact chunks, and the problems.
    """
    (layout, number), chunks = shard, 0
    problems: list[Problem] = []

    def report(tile: int | None, message: str) -> None:
        scene = None if tile is None else tables.scene_of(tile)
        problems.append(Problem(layout.array, number, tile, scene, message))

    try:
        data = files.read(layout.key(number))
    except StoreError as error:
        report(None, str(error))
        return chunks, problems
    first = number * layout.shard_tiles
    for tile, message in _faults(layout, range(first, tables.tiles)[: layout.shard_tiles], data):
        if message:
            report(tile, message)
        else:
            chunks += 1
    ledger = tables.arrays.get(f"ledger/{layout.array}")
    # Only if no more specific problem was found, and the ledger can be read.
    if not problems and ledger is not None and digest(data) != bytes(ledger[number]).hex():
        report(None, "the file differs from the ledger, although its checksums match")
    return chunks, problems


def _faults(layout: PixelLayout, tiles: range, data: bytes) -> Iterator[tuple[int | None, str]]:
    """Yield the tile, or None for the whole shard, and its problem; "" for an intact tile."""
    size = layout.index_bytes
    if len(data) < size:
        yield None, f"the file is cut short: {len(data)} bytes"
        return
    try:
        index = layout.read_index(data[-size:])
    except ValueError:
        yield None, "the index does not match its checksum"
        return
    if (index[len(tiles) :] != MISSING).any():
        yield None, "the index lists chunks past the last tile"
    pixels = np.empty(layout.tile_shape, np.uint8)
    for tile, (offset, length) in zip(tiles, index.tolist(), strict=False):
        if MISSING in (offset, length):
            yield tile, "the chunk is missing"
        elif offset + length > len(data) - size:
            yield tile, "the chunk is outside its shard"
        else:
            try:
                layout.decode(data[offset : offset + length], pixels)
            except (RuntimeError, ValueError) as error:
                yield tile, f"the chunk cannot be decoded: {error}"
            else:
                yield tile, ""
