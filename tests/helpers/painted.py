"""Small stores whose pixels encode their position, to detect swapped tiles, rows or bands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.store.schema import FILL_VALUES, Codec
from geoprep.store.writer import create_store
from helpers.stores import store_meta, write_tables, write_tiles
from loaders.batch import FLIP_X, FLIP_Y, TRANSPOSE

TILES_PER_SCENE = 4


def paint(tiles: int, side: int, bands: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return image and speed whose pixels encode tile, row, column; valid pixels are never 0."""
    tile, y, x = np.meshgrid(np.arange(tiles), np.arange(side), np.arange(side), indexing="ij")
    told = (1 + y % 255, 1 + x % 255, 1 + tile % 255)
    image = np.stack([told[band % 3] for band in range(bands)], axis=-1).astype(np.uint8)
    return image, painted_speed(tile, y, x)


def symmetry(array: NDArray[Any], op: int) -> NDArray[Any]:
    """Return a view of (side, side, ...) under a symmetry 0..7."""
    if op & TRANSPOSE:
        array = array.swapaxes(0, 1)
    if op & FLIP_Y:
        array = array[::-1]
    if op & FLIP_X:
        array = array[:, ::-1]
    return array


def painted_speed(tile: Any, y: Any, x: Any) -> NDArray[np.uint8]:
    """Return the mask byte of a painted pixel: all bytes occur, with nodata and background."""
    return ((31 * tile + 7 * y + 13 * x + y * x) % 256).astype(np.uint8)


def write_store(
    path: Path,
    *,
    scenes: int = 10,
    levels: Sequence[int] = (32, 16),
    bands: Sequence[str] = ("red", "green", "blue"),
    shard_tiles: int = 8,
    status: Sequence[str] = (),
    splits: Sequence[int] = (0, 0, 0, 0, 1),
    prefix: str = "AOI_0_Test_chip",
    complete: bool = True,
    codec: Codec = "lz4",
) -> Path:
    """Write a store of painted tiles; ``status`` and ``splits`` repeat over the scenes."""
    tiles = scenes * TILES_PER_SCENE
    meta = store_meta(bands, levels, shard_tiles=shard_tiles, codec=codec)
    create_store(path, meta, tiles)
    states = [status[i % len(status)] if status else "ok" for i in range(scenes)]
    labelled = np.repeat([s == "ok" for s in states], TILES_PER_SCENE)
    seen = np.repeat([s in ("ok", "unlabelled") for s in states], TILES_PER_SCENE)
    finest = paint(tiles, levels[0], len(bands))
    for level in levels:
        image, speed = paint(tiles, level, len(bands))
        image[~seen], speed[~labelled] = FILL_VALUES["image"], FILL_VALUES["speed"]
        write_tiles(path, f"{level}/image", image, meta)
        write_tiles(path, f"{level}/speed", speed, meta)
    if complete:
        road = np.where(labelled, ((finest[1] > 0) & (finest[1] < 255)).mean(axis=(1, 2)), 0)
        transform = np.stack([_transform(i) for i in range(tiles)])
        write_tables(path, meta, *finest, road, transform, states, splits=splits, prefix=prefix)
    return path


def _transform(tile: int) -> NDArray[np.float64]:
    return np.array([0.5, 0.0, 400_000.0 + 16 * tile, 0.0, -0.5, 6_000_000.0 - 16 * tile])
