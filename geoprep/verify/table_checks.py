"""Checks of the tables: readable, and consistent with each other and with the rules of the grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyproj
import shapely
import zarr
from numpy.typing import NDArray
from pyproj.exceptions import CRSError

from geoprep.errors import StoreError
from geoprep.grid import Grid, tile_windows
from geoprep.store import (
    SCENE_COLUMNS,
    SPLIT_NAMES,
    SPLITS,
    STATUSES,
    TILE_COLUMNS,
    StoreMeta,
    StoreReader,
    grid_of,
    shape_within,
    tiles_of,
)
from geoprep.store import SceneTable as Scenes
from geoprep.store import TileTable as Tiles
from geoprep.verify.metadata_checks import Problem, chunk_of, table_arrays

WITH_PIXELS = ("ok", "unlabelled")
GSD_TOLERANCE = 1e-3
"""Relative; the attribute is rounded to 0.1 mm."""
OFFSET_TOLERANCE = 1e-3
"""In pixels; degrees of longitude are known to 1e-8 of a SpaceNet pixel."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a store; None for one that cannot be read."""

    tiles: Tiles | None
    scenes: Scenes | None
    arrays: dict[str, NDArray[Any]]

    def scene_of(self, tile: int) -> str | None:
        """Return the id of a tile's scene; None if the tables cannot be read."""
        if self.tiles is None or self.scenes is None or tile >= len(self.tiles):
            return None
        index = int(self.tiles.scene[tile])
        return str(self.scenes.id[index]) if index < len(self.scenes) else None

    def status_of(self, tile: int) -> str | None:
        """Return the status of a tile's scene; None if the tables cannot be read."""
        if self.tiles is None or self.scenes is None:
            return None
        index = int(self.tiles.scene[tile])
        return str(self.scenes.status[index]) if index < len(self.scenes) else None

    def split_of(self, tile: int) -> int | None:
        """Return the split of a tile; None if the table cannot be read."""
        return None if self.tiles is None else int(self.tiles.split[tile])

    def digest_of(self, array: str, shard: int) -> str | None:
        """Return the XXH3-128 of a shard as hex; None if the ledger cannot be read."""
        ledger = self.arrays.get(f"ledger/{array}")
        if ledger is None or ledger.ndim != 2 or shard >= len(ledger):
            return None
        return bytes(ledger[shard]).hex()


def read_tables(store: StoreReader) -> tuple[Tables, list[Problem]]:
    """Read every table array on its own; return the tables and problems."""
    arrays: dict[str, NDArray[Any]] = {}
    problems: list[Problem] = []
    for name, (dtype, dims) in table_arrays(store.meta).items():
        try:
            array = store.root[name]
            if not isinstance(array, zarr.Array) or array.ndim != len(dims):
                raise ValueError(f"not an array of {len(dims)} axes")
            values = np.asarray(array[...])
        except StoreError:  # our own zarr store raises it for missing files only
            problems.append(Problem.of(name, f"the file {chunk_of(name, len(dims))} is missing"))
            continue
        except Exception as error:  # damaged bytes can make a codec raise anything
            problems.append(Problem.of(name, _why(error)))
            continue
        arrays[name] = values.astype(object) if dtype == "str" else values
    problems += _check_lengths(arrays)
    broken = {problem.array for problem in problems}
    sound = {name: values for name, values in arrays.items() if name not in broken}
    tiles = {name: sound[name] for name in TILE_COLUMNS if name in sound}
    scenes = {n: sound[f"scenes/{n}"] for n in SCENE_COLUMNS if f"scenes/{n}" in sound}
    return Tables(
        Tiles(**tiles) if len(tiles) == len(TILE_COLUMNS) else None,
        Scenes(**scenes) if len(scenes) == len(SCENE_COLUMNS) else None,
        arrays,
    ), problems


def _why(error: Exception) -> str:
    if "checksum" in str(error):
        return "the chunk does not match its checksum"
    return f"cannot be read: {error}"


def _check_lengths(arrays: dict[str, NDArray[Any]]) -> Iterator[Problem]:
    """Check that all columns of a table have equally many rows."""
    for table in (list(TILE_COLUMNS), [f"scenes/{name}" for name in SCENE_COLUMNS]):
        lengths = {name: len(arrays[name]) for name in table if name in arrays}
        for name, length in lengths.items():
            if length != lengths[min(lengths)]:
                yield Problem.of(name, f"{length} rows, not the {lengths[min(lengths)]} of others")


def check_tables(store: StoreReader, tiles: Tiles, scenes: Scenes) -> Iterator[Problem]:
    """Check the tile table, the scene table, and that each fits the other."""
    if (np.diff(tiles.scene.astype(np.int64)) < 0).any():
        yield Problem.of("scene", "tiles are not in the order of their scenes")
        return
    if set(range(len(scenes))) != set(tiles.scene.tolist()):
        yield Problem.of(
            "scene", f"tiles refer to other scenes than the {len(scenes)} of the scene table"
        )
        return
    if (tiles.split >= len(SPLIT_NAMES)).any():
        yield Problem.of("split", f"values above {len(SPLIT_NAMES) - 1}")
        return
    if len(set(scenes.id.tolist())) != len(scenes):
        yield Problem.of("scenes/id", "two scenes have the same id")
    for name in ("road_fraction", "valid_fraction"):
        values = getattr(tiles, name)
        if not ((values >= 0) & (values <= 1)).all():
            yield Problem.of(name, "values outside 0 to 1")
    gsds: list[tuple[float, float]] = []
    for index in range(len(scenes)):
        for array, message in _check_scene(store.meta, tiles, scenes, index, gsds):
            yield Problem(array, None, None, str(scenes.id[index]), message)
    if gsds and not np.allclose(np.median(gsds, axis=0), store.meta.gsd_m, rtol=GSD_TOLERANCE):
        yield Problem.of(".", f"gsd_m {store.meta.gsd_m} is not the median of the scenes'")


def _check_scene(
    meta: StoreMeta, tiles: Tiles, scenes: Scenes, index: int, gsds: list[tuple[float, float]]
) -> Iterator[tuple[str, str]]:
    """Yield (array, message) for one scene; append its ground sample distance."""
    rows, status = tiles_of(tiles, index), scenes.status[index]
    if status not in STATUSES:
        yield "scenes/status", f"unknown status {status!r}"
    if status != "ok" and not scenes.reason[index]:
        yield "scenes/reason", f"{status} without a reason"
    if _in_two_splits(tiles, rows, meta.tile):
        yield "split", "tiles that overlap are in different splits"
    if status in WITH_PIXELS and not np.isfinite(scenes.limits[index]).all():
        yield "scenes/limits", f"no limits, though the scene is {status}"
    place = np.append(tiles.transform[rows].ravel(), scenes.bounds[index])
    if np.isnan(place).all():
        if status in WITH_PIXELS:
            yield "transform", f"no affine, though the scene is {status}"
        return
    if not np.isfinite(place).all():
        yield "transform", "affine and bounds are incomplete"
        return
    grid = grid_of(tiles, scenes, index, meta.tile)
    try:
        if str(scenes.crs[index]) or (grid is not None and not _is_local(grid)):
            pyproj.CRS.from_user_input(str(scenes.crs[index]))
    except CRSError:
        yield "scenes/crs", f"no known CRS: {str(scenes.crs[index])[:60]!r}"
        return
    if grid is not None:
        faults = list(_check_grid(meta, tiles, rows, grid, scenes.bounds[index]))
        yield from faults
        if not faults:
            gsds.append(grid.gsd_m())


def _in_two_splits(tiles: Tiles, rows: slice, tile: int) -> bool:
    """Return whether a pixel of a scene is in tiles of two splits; unused tiles do not count."""
    used = np.flatnonzero(tiles.split[rows] < len(SPLITS)) + rows.start
    if len(set(tiles.split[used].tolist())) < 2:
        return False
    box = [tiles.row[used].astype(float), tiles.col[used].astype(float)]
    # Boxes are smaller by a quarter of a pixel, since touching is no overlap.
    ground = shapely.box(box[1] + 0.25, box[0] + 0.25, box[1] + tile - 0.25, box[0] + tile - 0.25)
    one, other = shapely.STRtree(ground).query(ground, predicate="intersects")
    return bool((tiles.split[used][one] != tiles.split[used][other]).any())


def _is_local(grid: Grid) -> bool:
    """Return whether an affine is that of a grid without CRS: metres from its upper left corner."""
    a, b, c, d, e, f = tuple(grid.transform)[:6]
    return a > 0 > e and not any((b, c, d, f))


def _check_grid(
    meta: StoreMeta, tiles: Tiles, rows: slice, grid: Grid, bounds: NDArray[np.float64]
) -> Iterator[tuple[str, str]]:
    """Check tile offsets and affines of a scene against its bounds and the rules of the grid."""
    if grid.transform.is_degenerate:
        yield "transform", "the affine is singular"
        return
    windows = list(zip(tiles.row[rows].tolist(), tiles.col[rows].tolist(), strict=True))
    pixel = np.abs(tiles.transform[rows.start, [0, 1, 3, 4]]).max()
    expected = np.array([grid.window(*window, 1, 1).transform[:6] for window in windows])
    if np.abs(tiles.transform[rows] - expected).max() > OFFSET_TOLERANCE * pixel:
        yield "transform", "affines of the tiles do not match their offsets"
    known = shape_within(grid.transform, tuple(bounds.tolist())) is not None
    if known and np.abs(np.subtract(grid.bounds, bounds)).max() > OFFSET_TOLERANCE * pixel:
        yield "scenes/bounds", "bounds are not those of whole pixels of the tiles"
    elif windows != tile_windows((grid.height, grid.width), meta.tile, meta.overlap):
        size = f"{grid.width} x {grid.height}"
        yield "row", f"rows and columns are not those of the tiles of a scene of {size}"
