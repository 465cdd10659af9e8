"""Read whole scenes from a store: pixels assembled from tiles, grids, shares and splits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.store.reader import StoreReader
from geoprep.store.schema import SPLIT_NAMES, SPLITS, TileTable
from geoprep.store.tiles import TileReader

MOST_NAMED = 5
"""Number of scenes that an error lists."""

Span = range | None
"""Rows or columns of a scene; None: all."""


def tiles_of(tiles: TileTable, scene: int) -> slice:
    """Return the rows of a scene's tiles, which are consecutive in the tile table."""
    first, last = np.searchsorted(tiles.scene, np.array([scene, scene + 1], np.uint32))
    return slice(int(first), int(last))


def find_scene(store: StoreReader, name: str) -> int:
    """Return the index of the scene with this id, or that ends in these words (``chip12``)."""
    ids = [str(scene_id) for scene_id in store.scenes.id]
    if name in ids:
        return ids.index(name)
    hits = [
        i for i, scene_id in enumerate(ids) if name and _ends_with(scene_id.lower(), name.lower())
    ]
    if len(hits) == 1:
        return hits[0]
    shown = ", ".join(ids[i] for i in (hits or range(len(ids)))[:MOST_NAMED])
    if hits:
        raise UsageError(
            f"scene {name!r} matches {len(hits)} scenes ({shown}). Give more of the id"
        )
    raise UsageError(
        f"{store.location} has no scene {name!r}. `geoprep info --scenes` lists its {len(ids)} "
        f"scenes; the first are {shown}"
    )


def _ends_with(name: str, end: str) -> bool:
    if not name.endswith(end) or len(name) == len(end):
        return name == end
    before, first = name[-len(end) - 1], end[0]
    same_word = before.isalpha() and first.isalpha()
    same_number = before.isdecimal() and first.isdecimal()
    return not (same_word or same_number)


def scene_grid(store: StoreReader, scene: int) -> Grid | None:
    """Return the grid of a scene at the finest level; None if its image has none.

    It follows from the bounds of the scene and the affine of its first tile.
    """
    tiles = store.tiles
    rows, bounds = tiles_of(tiles, scene), store.scenes.bounds[scene]
    first = rows.start
    if not np.isfinite([*tiles.transform[first], *bounds]).all():
        return None
    side = store.meta.tile
    tile = Grid(side, side, Affine(*tiles.transform[first].tolist()), str(store.scenes.crs[scene]))
    shape = tile.shape_within(tuple(bounds.tolist()))
    if shape is None:  # rotated by 45 degrees: the tiles with their padding
        shape = int(tiles.row[rows].max()) + side, int(tiles.col[rows].max()) + side
    return tile.window(-int(tiles.row[first]), -int(tiles.col[first]), *shape)


def valid_share(store: StoreReader, scene: int) -> float:
    """Return the share (0..1) of a scene's pixels that hold imagery, padding of tiles left out.

    An estimate where tiles overlap: each pixel has the share of the tile with the nearest centre.
    """
    tiles, side, grid = store.tiles, store.meta.tile, scene_grid(store, scene)
    rows = tiles_of(tiles, scene)
    valid = tiles.valid_fraction[rows].astype(np.float64)
    if grid is None:
        return float(valid.mean())
    tall, own_tall = _sides(tiles.row[rows], side, grid.height)
    wide, own_wide = _sides(tiles.col[rows], side, grid.width)
    shares = valid * side**2 / (tall * wide)
    # At most 1 in spite of the rounding of float32.
    return min(1.0, float(np.average(shares, weights=own_tall * own_wide)))


def _sides(
    starts: NDArray[np.uint32], side: int, length: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return per tile, along one axis, its pixels within the scene and the pixels nearest to it."""
    firsts = np.unique(starts).astype(np.int64)
    lasts = np.minimum(firsts + side, length)
    cuts = np.concatenate([[0], (firsts[1:] + lasts[:-1]) / 2, [length]])
    at = np.searchsorted(firsts, starts)
    return (lasts - firsts)[at], np.diff(cuts)[at]


def valid_pixels(store: StoreReader) -> NDArray[np.float64]:
    """Return float64 (scene, 3): valid and all pixels of each scene, and the km2 of the valid."""
    counts = np.zeros((len(store.scenes), 3))
    for scene in range(len(counts)):
        grid = scene_grid(store, scene)
        if grid is not None:
            pixels = grid.height * grid.width
            valid = valid_share(store, scene) * pixels
            counts[scene] = valid, pixels, valid * math.prod(grid.gsd_m()) / 1e6
    return counts


def valid_fraction(store: StoreReader) -> float:
    """Return the share (0..1) of all scenes' pixels that hold imagery; 0 without pixels."""
    valid, pixels, _ = valid_pixels(store).sum(axis=0)
    return float(valid / pixels) if pixels else 0.0


def scene_splits(store: StoreReader) -> NDArray[np.uint8]:
    """Return uint8 (scene): the most frequent split of each scene's tiles."""
    counts = np.zeros((len(store.scenes), len(SPLIT_NAMES)), np.int64)
    np.add.at(counts, (store.tiles.scene, store.tiles.split), 1)
    most: NDArray[np.uint8] = counts.argmax(axis=1).astype(np.uint8)
    return most


def scenes_in_split(store: StoreReader, split: str) -> list[str]:
    """Return the ids of the scenes that have tiles of a split, and of no other.

    Raises UsageError if there are none.
    """
    wanted = SPLIT_NAMES.index(split)
    other = (store.tiles.split != wanted) & (store.tiles.split < len(SPLITS))
    rows = np.setdiff1d(store.tiles.scene[store.tiles.split == wanted], store.tiles.scene[other])
    if not len(rows):
        names = sorted({split_names(store, scene) for scene in range(len(store.scenes))})
        raise UsageError(
            f"{store.location} has no scene whose tiles are all {split}; scenes are "
            f"{'; '.join(names)}"
        )
    return [str(store.scenes.id[row]) for row in rows]


def split_names(store: StoreReader, scene: int) -> str:
    """Return the names of the splits of a scene's tiles, such as ``train`` or ``train, val``."""
    there = np.unique(store.tiles.split[tiles_of(store.tiles, scene)])
    return ", ".join(SPLIT_NAMES[split] for split in there)


def road_shares(
    tiles: TileTable, groups: NDArray[np.integer[Any]], count: int
) -> NDArray[np.float64]:
    """Return float64 (group): the share of road among the valid pixels of each group's tiles."""
    valid = np.bincount(groups, tiles.valid_fraction, count)
    weighted = tiles.road_fraction * tiles.valid_fraction.astype(np.float64)
    roads = np.bincount(groups, weighted, count)
    return np.divide(roads, valid, out=np.zeros(count), where=valid > 0)


def scene_roads(store: StoreReader) -> NDArray[np.float64]:
    """Return float64 (scene): the share of road among each scene's valid pixels."""
    return road_shares(store.tiles, store.tiles.scene, len(store.scenes))


def class_counts(store: StoreReader) -> dict[str, dict[str, int]]:
    """Return split -> class -> pixels at the finest level, of usable tiles; {} for speeds."""
    if not store.meta.has_classes:
        return {}
    of_split, usable = {}, usable_tiles(store)
    for number, split in enumerate(SPLIT_NAMES):
        rows = (store.tiles.split == number) & usable
        if rows.any():
            counts = store.class_pixels[rows].sum(axis=0, dtype=np.int64).tolist()
            of_split[split] = dict(zip(store.classes.names, counts, strict=True))
    return of_split


def usable_tiles(store: StoreReader) -> NDArray[np.bool_]:
    """Return bool (tile): whether a tile has valid pixels and its scene is ``ok``."""
    mask: NDArray[np.bool_] = (store.scenes.status == "ok")[store.tiles.scene]
    return mask & (store.tiles.valid_fraction > 0)


def road_fraction(store: StoreReader, chosen: NDArray[np.bool_] | None = None) -> float:
    """Return the share of road among the valid pixels of chosen tiles (None: `usable_tiles`)."""
    chosen = usable_tiles(store) if chosen is None else chosen
    return float(road_shares(store.tiles, chosen.astype(np.int64), 2)[1])


def scene_issues(store: StoreReader) -> list[tuple[str, str, str]]:
    """Return (id, status, reason) of scenes not built as planned: unlabelled too, if any is ok."""
    status = store.scenes.status
    fine = ("ok",) if (status == "ok").any() else ("ok", "unlabelled")
    rows = zip(store.scenes.id, status, store.scenes.reason, strict=True)
    return [
        (str(name), str(scene_status), str(reason))
        for name, scene_status, reason in rows
        if scene_status not in fine
    ]


def level_grid(store: StoreReader, scene: int, level: int) -> Grid | None:
    """Return the grid of a scene at a level; its last pixels may extend beyond the scene."""
    grid, factor = scene_grid(store, scene), store.meta.tile // level
    return grid and grid.coarser(factor)


def level_step(store: StoreReader, level: int) -> int:
    """Return the pixels of a level from one tile to the next: its side without the overlap."""
    return level - store.meta.overlap * level // store.meta.tile


def is_aligned(store: StoreReader, scene: int, level: int) -> bool:
    """Return whether all tiles of a scene share one pixel grid at a level."""
    # A tile that was shifted inwards by an odd number of pixels lies half a coarser pixel off.
    rows, factor = tiles_of(store.tiles, scene), store.meta.tile // level
    return not ((store.tiles.row[rows] % factor).any() or (store.tiles.col[rows] % factor).any())


def read_image(
    store: StoreReader, scene: int, level: int | None = None, rows: Span = None, cols: Span = None
) -> NDArray[np.uint8]:
    """Return a scene's image, uint8 (y, x, band), without padding; 0 is nodata.

    ``rows`` and ``cols`` choose a window. Tiles that are not aligned (:func:`is_aligned`) are
    shifted by less than one pixel.
    """
    return _assemble(store, scene, store.check_level(level), "image", rows, cols)


def read_label(
    store: StoreReader, scene: int, level: int | None = None, rows: Span = None, cols: Span = None
) -> NDArray[np.uint8]:
    """Return a scene's label, speeds or classes, uint8 (y, x); see :func:`read_image`."""
    return _assemble(store, scene, store.check_level(level), store.meta.label_array, rows, cols)


def scene_shape(store: StoreReader, scene: int, level: int) -> tuple[int, int]:
    """Return (height, width) of a scene at a level; without a grid, of the area of its tiles."""
    grid = level_grid(store, scene, level)
    if grid is not None:
        return grid.height, grid.width
    tops, lefts = _corners(store, scene, level)
    return int(tops.max()) + level, int(lefts.max()) + level


def _corners(
    store: StoreReader, scene: int, level: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row and column of a scene's tiles, in pixels of a level."""
    tiles, rows, factor = store.tiles, tiles_of(store.tiles, scene), store.meta.tile // level
    # Rounded up, so that a tile that ends at the scene's edge still does.
    tops = -(-tiles.row[rows].astype(np.int64) // factor)
    return tops, -(-tiles.col[rows].astype(np.int64) // factor)


def _assemble(
    store: StoreReader, scene: int, level: int, name: str, rows: Span, cols: Span
) -> NDArray[np.uint8]:
    reader = TileReader(store, level, name)
    height, width = scene_shape(store, scene, level)
    rows = range(height) if rows is None else range(rows.start, min(rows.stop, height))
    cols = range(width) if cols is None else range(cols.start, min(cols.stop, width))
    shape = (len(rows), len(cols), *reader.layout.tile_shape[2:])
    out = np.full(shape, reader.layout.fill, np.uint8)
    first = tiles_of(store.tiles, scene).start
    for i, (top, left) in enumerate(zip(*_corners(store, scene, level), strict=True)):
        begin, end = max(top, rows.start), min(top + level, rows.stop)
        west, east = max(left, cols.start), min(left + level, cols.stop)
        if begin < end and west < east:
            target = out[
                begin - rows.start : end - rows.start, west - cols.start : east - cols.start
            ]
            target[...] = reader.read(first + i)[begin - top : end - top, west - left : east - left]
    return out
