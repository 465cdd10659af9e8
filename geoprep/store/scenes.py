"""A scene put back together from its tiles, with its place on the ground."""

from __future__ import annotations

from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.store.reader import Store
from geoprep.store.schema import SPLIT_NAMES, SceneTable, TileTable
from geoprep.store.tiles import TileReader

SHOWN = 5
"""Scenes that an error names."""


def tiles_of(tiles: TileTable, scene: int) -> slice:
    """Return the rows of a scene's tiles: they are neighbours in the table."""
    first, last = np.searchsorted(tiles.scene, np.array([scene, scene + 1], np.uint32))
    return slice(int(first), int(last))


def find_scene(store: Store, name: str) -> int:
    """Return the index of the scene named by its id or by the end of it (``chip12``).

    An end has to begin where a word or a number begins: ``chip1`` is not the end of
    ``AOI_7_Moscow_chip11``, and ``2`` is not the end of ``chip12``.

    Raises
    ------
    UsageError
        No scene, or more than one, is named so.
    """
    ids = [str(one) for one in store.scenes.id]
    if name in ids:
        return ids.index(name)
    hits = [i for i, one in enumerate(ids) if name and _ends_with(one.lower(), name.lower())]
    if len(hits) == 1:
        return hits[0]
    shown = ", ".join(ids[i] for i in (hits or range(len(ids)))[:SHOWN])
    if hits:
        raise UsageError(f"scene {name!r} could be one of {len(hits)}, {shown}: give more of it")
    raise UsageError(
        f"no scene {name!r} among the {len(ids)} of {store.location}, which begin with {shown}: "
        "`geoprep info --scenes` lists them"
    )


def _ends_with(name: str, end: str) -> bool:
    if not name.endswith(end) or len(name) == len(end):
        return name == end
    before, first = name[-len(end) - 1], end[0]
    same_word = before.isalpha() and first.isalpha()
    same_number = before.isdecimal() and first.isdecimal()
    return not (same_word or same_number)


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
    """Return the share of a scene's own pixels that hold imagery; what pads its tiles is none.

    Exact where tiles do not overlap, or are valid from edge to edge. Where they overlap, every
    pixel counts once, with the share of the tile whose centre is nearest: an estimate.
    """
    tiles, side, grid = store.tiles, store.meta.tile, scene_grid(store, scene)
    rows = tiles_of(tiles, scene)
    valid = tiles.valid_fraction[rows].astype(np.float64)
    if grid is None:
        return float(valid.mean())
    tall, own_tall = _sides(tiles.row[rows], side, grid.height)
    wide, own_wide = _sides(tiles.col[rows], side, grid.width)
    shares = valid * side**2 / (tall * wide)
    return float(np.average(shares, weights=own_tall * own_wide))


def _sides(
    starts: NDArray[np.uint32], side: int, length: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return along one axis how many pixels of the scene each tile holds, and how many it owns."""
    firsts = np.unique(starts).astype(np.int64)
    lasts = np.minimum(firsts + side, length)
    cuts = np.concatenate([[0], (firsts[1:] + lasts[:-1]) / 2, [length]])
    at = np.searchsorted(firsts, starts)
    return (lasts - firsts)[at], np.diff(cuts)[at]


def valid_pixels(store: Store) -> NDArray[np.float64]:
    """Return float64 (scene, 2): valid pixels and all pixels of each scene, finest level.

    Both are 0 where the image could not be opened, so that its size is not known.
    """
    counts = np.zeros((len(store.scenes), 2))
    for scene in range(len(counts)):
        grid = scene_grid(store, scene)
        if grid is not None:
            pixels = grid.height * grid.width
            counts[scene] = valid_share(store, scene) * pixels, pixels
    return counts


def valid_fraction(store: Store) -> float:
    """Return the share of all scenes' pixels that hold imagery; 0 where there are none."""
    valid, pixels = valid_pixels(store).sum(axis=0)
    return float(valid / pixels) if pixels else 0.0


def scene_splits(store: Store) -> NDArray[np.uint8]:
    """Return uint8 (scene): the split of most of each scene's tiles."""
    counts = np.zeros((len(store.scenes), len(SPLIT_NAMES)), np.int64)
    np.add.at(counts, (store.tiles.scene, store.tiles.split), 1)
    most: NDArray[np.uint8] = counts.argmax(axis=1).astype(np.uint8)
    return most


def split_names(store: Store, scene: int) -> str:
    """Return the splits that a scene's tiles are in, in words: ``train``, or ``train, val``."""
    there = np.unique(store.tiles.split[tiles_of(store.tiles, scene)])
    return ", ".join(SPLIT_NAMES[split] for split in there)


def road_shares(
    tiles: TileTable, groups: NDArray[np.integer[Any]], count: int
) -> NDArray[np.float64]:
    """Return float64 (group): the share of the valid pixels of each group's tiles that is road.

    Parameters
    ----------
    groups
        int (tile), the group of each tile, 0 to ``count - 1``.
    """
    valid = np.bincount(groups, tiles.valid_fraction, count)
    weighted = tiles.road_fraction * tiles.valid_fraction.astype(np.float64)
    roads = np.bincount(groups, weighted, count)
    return np.divide(roads, valid, out=np.zeros(count), where=valid > 0)


def scene_roads(store: Store) -> NDArray[np.float64]:
    """Return float64 (scene): the share of each scene's valid pixels that is road."""
    return road_shares(store.tiles, store.tiles.scene, len(store.scenes))


def usable_tiles(store: Store) -> NDArray[np.bool_]:
    """Return bool (tile): whether it can be trained on, being of a scene that is ``ok``."""
    mask: NDArray[np.bool_] = (store.scenes.status == "ok")[store.tiles.scene]
    return mask


def road_fraction(store: Store, chosen: NDArray[np.bool_] | None = None) -> float:
    """Return the share of valid pixels that is road, over chosen tiles; None: all usable ones."""
    chosen = usable_tiles(store) if chosen is None else chosen
    return float(road_shares(store.tiles, chosen.astype(np.int64), 2)[1])


def scene_issues(store: Store) -> list[tuple[str, str, str]]:
    """Return (id, status, reason) of every scene that is not as it should be.

    Where no scene at all has labels, the store is one of imagery, and ``unlabelled`` is right.
    """
    status = store.scenes.status
    fine = ("ok",) if (status == "ok").any() else ("ok", "unlabelled")
    rows = zip(store.scenes.id, status, store.scenes.reason, strict=True)
    return [(str(name), str(one), str(reason)) for name, one, reason in rows if one not in fine]


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


def read_image(
    store: Store, scene: int, level: int | None = None, rows: range | None = None
) -> NDArray[np.uint8]:
    """Return a scene's image, uint8 (y, x, band), padding left out, 0 where there is no data.

    Where tiles are not aligned (:func:`is_aligned`), they are moved by less than one pixel.

    Parameters
    ----------
    level
        Tile side in pixels; None for the finest.
    rows
        Only these rows of pixels at that level; None for all. Tiles beyond are not read.

    Raises
    ------
    StoreError
        The store is damaged here, or has no such level.
    """
    return _assemble(store, scene, store.check_level(level), "image", rows)


def read_speed(
    store: Store, scene: int, level: int | None = None, rows: range | None = None
) -> NDArray[np.uint8]:
    """Return a scene's speed mask, uint8 (y, x); otherwise as :func:`read_image`."""
    return _assemble(store, scene, store.check_level(level), "speed", rows)


def scene_shape(store: Store, scene: int, level: int) -> tuple[int, int]:
    """Return height and width of a scene at a level; without a grid, all that its tiles cover."""
    grid = level_grid(store, scene, level)
    if grid is not None:
        return grid.height, grid.width
    tops, lefts = _corners(store, scene, level)
    return int(tops.max()) + level, int(lefts.max()) + level


def _corners(store: Store, scene: int, level: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row and column of a scene's tiles, in pixels of a level."""
    tiles, rows, factor = store.tiles, tiles_of(store.tiles, scene), store.meta.tile // level
    # Rounded up: a tile shifted to end at the scene's edge still ends there.
    tops = -(-tiles.row[rows].astype(np.int64) // factor)
    return tops, -(-tiles.col[rows].astype(np.int64) // factor)


def _assemble(
    store: Store, scene: int, level: int, name: str, rows: range | None
) -> NDArray[np.uint8]:
    reader = TileReader(store, level, name)
    height, width = scene_shape(store, scene, level)
    wanted = range(height) if rows is None else range(rows.start, min(rows.stop, height))
    shape = (len(wanted), width, *reader.layout.tile_shape[2:])
    out = np.full(shape, reader.layout.fill, np.uint8)
    first = tiles_of(store.tiles, scene).start
    for i, (top, left) in enumerate(zip(*_corners(store, scene, level), strict=True)):
        begin, end = max(top, wanted.start), min(top + level, wanted.stop)
        if begin < end:
            target = out[begin - wanted.start : end - wanted.start, left : left + level]
            target[...] = reader.read(first + i)[begin - top : end - top, : target.shape[1]]
    return out
