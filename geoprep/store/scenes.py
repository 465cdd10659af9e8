"""A scene put back together from its tiles, with its place on the ground."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from affine import Affine
from numpy.typing import NDArray

from geoprep.errors import StoreError
from geoprep.grid import Grid
from geoprep.store.reader import Store
from geoprep.store.schema import PIXEL_ARRAYS, SceneTable, TileTable


def tiles_of(tiles: TileTable, scene: int) -> slice:
    """Return the rows of a scene's tiles: they are neighbours in the table."""
    first, last = np.searchsorted(tiles.scene, np.array([scene, scene + 1], np.uint32))
    return slice(int(first), int(last))


def scene_grid(store: Store, scene: int) -> Grid | None:
    """Return the grid of a scene at the finest level; None where its image had none."""
    return grid_of(store.tiles, store.scenes, scene, store.meta.tile)


def grid_of(tiles: TileTable, scenes: SceneTable, scene: int, tile: int) -> Grid | None:
    """Return a scene's grid from the affine of its first tile and from its bounds.

    Parameters
    ----------
    tile
        Side of a tile, which stands in where the bounds do not give the shape.
    """
    rows, bounds = tiles_of(tiles, scene), scenes.bounds[scene]
    first = rows.start
    if not np.isfinite([*tiles.transform[first], *bounds]).all():
        return None
    offset = Affine.translation(-int(tiles.col[first]), -int(tiles.row[first]))
    transform = Affine(*tiles.transform[first].tolist()) * offset
    shape = shape_within(transform, tuple(bounds.tolist()))
    if shape is None:  # turned by 45 degrees: all that the tiles cover, padding too
        shape = int(tiles.row[rows].max()) + tile, int(tiles.col[rows].max()) + tile
    return Grid(*shape, transform, str(scenes.crs[scene]))


def valid_share(store: Store, scene: int) -> float:
    """Return the share of a scene's pixels that hold imagery, what pads its tiles left out.

    Where tiles overlap, their pixels count twice.
    """
    tiles, side, grid = store.tiles, store.meta.tile, scene_grid(store, scene)
    rows = tiles_of(tiles, scene)
    valid = tiles.valid_fraction[rows].sum(dtype=np.float64)
    if grid is None:
        return float(valid / (rows.stop - rows.start))
    height = np.minimum(side, grid.height - tiles.row[rows].astype(np.int64))
    width = np.minimum(side, grid.width - tiles.col[rows].astype(np.int64))
    return float(valid * side**2 / (height * width).sum())


def scene_splits(store: Store) -> NDArray[np.uint8]:
    """Return uint8 (scene): the split of each scene, which is that of its tiles."""
    firsts = np.searchsorted(store.tiles.scene, np.arange(len(store.scenes), dtype=np.uint32))
    splits: NDArray[np.uint8] = store.tiles.split[firsts]
    return splits


def scene_roads(store: Store) -> NDArray[np.float64]:
    """Return float64 (scene): the share of each scene's valid pixels that is road."""
    tiles, scenes = store.tiles, len(store.scenes)
    valid = np.bincount(tiles.scene, tiles.valid_fraction, scenes)
    roads = np.bincount(tiles.scene, tiles.road_fraction * tiles.valid_fraction, scenes)
    return np.divide(roads, valid, out=np.zeros(scenes), where=valid > 0)


def shape_within(
    transform: Affine, bounds: tuple[float, float, float, float]
) -> tuple[int, int] | None:
    """Return (height, width) of the grid with this affine that fills these bounds.

    The bounding box of a turned grid is ``|a| width + |b| height`` wide and
    ``|d| width + |e| height`` high; at 45 degrees this has no single solution, hence None.
    """
    left, bottom, right, top = bounds
    sides = np.abs([[transform.a, transform.b], [transform.d, transform.e]])
    scale = sides.sum()
    if scale == 0 or abs(np.linalg.det(sides / scale)) < 1e-6:
        return None
    width, height = np.linalg.solve(sides, [right - left, top - bottom])
    return max(1, round(height)), max(1, round(width))


def level_grid(store: Store, scene: int, level: int) -> Grid | None:
    """Return the grid of a scene at a level; its last pixels may reach past the scene."""
    grid, factor = scene_grid(store, scene), store.meta.tile // level
    if grid is None:
        return None
    height, width = -(-grid.height // factor), -(-grid.width // factor)
    return Grid(height, width, grid.transform * Affine.scale(factor), grid.crs)


def is_aligned(store: Store, scene: int, level: int) -> bool:
    """Return whether a scene's tiles lie on one lattice of pixels at a level.

    Always so at the finest. Elsewhere a tile that was shifted inwards by an odd number of pixels
    lies half a pixel off its neighbours.
    """
    rows, factor = tiles_of(store.tiles, scene), store.meta.tile // level
    return not ((store.tiles.row[rows] % factor).any() or (store.tiles.col[rows] % factor).any())


def read_image(store: Store, scene: int, level: int | None = None) -> NDArray[np.uint8]:
    """Return a scene's image, uint8 (y, x, band), padding left out, 0 where there is no data.

    Where tiles are not aligned (:func:`is_aligned`), they are moved by less than one pixel.

    Raises
    ------
    StoreError
        The store is damaged here, or has no such level.
    """
    return _assemble(store, scene, store.check_level(level), "image")


def read_speed(store: Store, scene: int, level: int | None = None) -> NDArray[np.uint8]:
    """Return a scene's speed mask, uint8 (y, x); otherwise as :func:`read_image`."""
    return _assemble(store, scene, store.check_level(level), "speed")


def _assemble(store: Store, scene: int, level: int, name: str) -> NDArray[np.uint8]:
    # zarr-python's own pipeline: zarrs 0.2.3 does not look at the checksums of chunks when it
    # reads part of a shard, and a scene is part of one.
    array = store.root[f"{level}/{name}"]
    if not isinstance(array, zarr.Array):
        raise StoreError(f"{store.location} lacks the array {level}/{name}; it is damaged")
    tiles, factor = store.tiles, store.meta.tile // level
    rows = tiles_of(tiles, scene)
    # Rounded up: a tile shifted to end at the scene's edge still ends there.
    tops = -(-tiles.row[rows].astype(np.int64) // factor)
    lefts = -(-tiles.col[rows].astype(np.int64) // factor)
    grid = level_grid(store, scene, level)
    height, width = (
        (grid.height, grid.width)
        if grid is not None
        else (int(tops.max()) + level, int(lefts.max()) + level)
    )
    out = np.full((height, width, *array.shape[3:]), PIXEL_ARRAYS[name], np.uint8)
    for i, top, left in zip(range(rows.start, rows.stop), tops, lefts, strict=True):
        target = out[top : top + level, left : left + level]
        target[...] = _read_tile(store, f"{level}/{name}", array, i)[
            : target.shape[0], : target.shape[1]
        ]
    return out


def _read_tile(store: Store, name: str, array: zarr.Array[Any], tile: int) -> NDArray[np.uint8]:
    try:
        pixels: NDArray[np.uint8] = np.asarray(array[tile])
    except (ValueError, RuntimeError, OSError) as error:
        shard = tile // store.meta.shard_tiles
        raise StoreError(
            f"{store.location}/{name}: shard {shard} is damaged ({error}); "
            "`geoprep verify` lists all that is"
        ) from error
    return pixels
