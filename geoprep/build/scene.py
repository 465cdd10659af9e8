"""The record of one scene, from its header to its tiles, and the layout of the tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from geoprep.build.options import BuildOptions
from geoprep.errors import UsageError
from geoprep.grid import Grid, auto_tile, level_sides, tile_windows
from geoprep.labels import Schema
from geoprep.sources import Scene

TRAIN, VAL, TEST, UNUSED = 0, 1, 2, 3

MOST_TILE_BYTES: Final = 256 << 20
"""A tile is one chunk, which is read whole; every thread of a build holds those of a scene."""
MOST_FINER: Final = 10
"""Largest ratio of an image's pixel size to that of the finest level."""


@dataclass(frozen=True, slots=True)
class PlannedScene(Scene):
    """A scene of a source, which planning completes step by step.

    ``label`` becomes the file shared by all scenes where the scene has none of its own.
    """

    city: int = 0  # index of the source that the scene is from
    # By its header
    grid: Grid | None = None  # of the image; None if it cannot be used
    dtype: str = ""  # of the selected bands
    bands: tuple[int, ...] = ()  # selected ones, numbered from 1
    band_names: tuple[str, ...] = ()
    failure: str = ""  # why the scene cannot be built
    # For the digest of the inputs, until the plan is complete
    files: tuple[str, ...] = ()  # addresses of all files of the image, the image itself first
    facts: str = ""  # shape, CRS, transform, nodata and band meanings by GDAL, as text
    digest: int = 0  # 64 bits, of the image's bytes; 0: not known
    # In the store
    schema: Schema = "auto"  # of the road attributes
    labelled: bool = False  # whether it counts as labelled where scenes are divided into splits
    shape: tuple[int, int] = (0, 0)  # height and width in pixels of the finest level
    windows: tuple[tuple[int, int], ...] = ()  # (row, col) of every tile, as above
    first_tile: int = 0  # row of the first tile in the store's tile table
    splits: tuple[int, ...] = ()  # of every tile: 0 train, 1 val, 2 test, 3 unused

    @property
    def target(self) -> Grid | None:
        """The grid of the finest level."""
        return None if self.grid is None else self.grid.resized(*self.shape)

    def tiles(self, first: int, stop: int) -> PlannedScene:
        """Return the scene with only the tiles from ``first`` to before ``stop``."""
        return replace(
            self,
            windows=self.windows[first:stop],
            splits=self.splits[first:stop],
            first_tile=self.first_tile + first,
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """Sides of the tiles and their windows in a scene."""

    tile: int  # side in pixels of the finest level
    levels: tuple[int, ...]  # side at every level
    options: BuildOptions
    usual: tuple[int, int]  # most frequent shape of a scene, for images that cannot be opened

    @classmethod
    def of(cls, grids: Sequence[Grid | None], bands: int, options: BuildOptions) -> Layout:
        """Return the layout for these images; None stands for one that cannot be opened."""
        shapes = [_finest_shape(grid, options) for grid in grids if grid is not None]
        tile = _resolve_tile(shapes, options)
        if tile**2 * bands > MOST_TILE_BYTES:
            raise UsageError(
                f"a tile of {tile} x {tile} pixels in {bands} bands has "
                f"{tile**2 * bands / 2**20:,.0f} MiB, more than {MOST_TILE_BYTES >> 20} MiB: use a "
                "smaller `tile` or `resize`"
            )
        usual = Counter(shapes).most_common(1)[0][0]
        return cls(tile, level_sides(tile, options.levels), options, usual)

    def tiled(self, scene: PlannedScene, first_tile: int) -> PlannedScene:
        """Return a scene with its tiles; one that cannot be opened has those of most scenes."""
        shape = self.usual if scene.grid is None else _finest_shape(scene.grid, self.options)
        windows = _windows(shape, self.tile, self.options.overlap)
        return replace(scene, shape=shape, windows=windows, first_tile=first_tile)


@lru_cache(maxsize=1024)  # scenes of one shape share a tuple: there may be a million
def _windows(shape: tuple[int, int], tile: int, overlap: int) -> tuple[tuple[int, int], ...]:
    return tuple(tile_windows(shape, tile, overlap))


def _finest_shape(grid: Grid, options: BuildOptions) -> tuple[int, int]:
    if options.resize is not None:
        return options.resize, options.resize
    if options.gsd is None:
        return grid.shape
    finest = min(grid.gsd_m())
    if options.gsd * MOST_FINER < finest:
        raise UsageError(
            f"`gsd` {options.gsd:g} m is {finest / options.gsd:,.0f} times as fine as the images, "
            f"whose pixels are {finest:.3g} m: use at least a {MOST_FINER}th of that"
        )
    return grid.at_gsd(options.gsd).shape


def _resolve_tile(shapes: Sequence[tuple[int, int]], options: BuildOptions) -> int:
    if options.resize is not None:
        return options.resize
    if options.tile is not None:
        return options.tile
    return auto_tile(shapes, options.overlap, 2 ** (options.levels - 1))
