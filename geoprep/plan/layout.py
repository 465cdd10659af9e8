"""How scenes are cut: the side of a tile and the pixels of the finest level, within bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from geoprep.errors import UsageError
from geoprep.grid import Grid, at_gsd, auto_tile, level_sides, tile_windows
from geoprep.plan.options import BuildOptions

MOST_TILE_BYTES: Final = 256 << 20
"""A tile is one chunk: it is read whole, and every thread of a build holds a scene's."""
MOST_PIXELS: Final = 1_000_000
MOST_TILES: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """The sides of tiles at every level, and where they lie in a scene."""

    tile: int
    levels: tuple[int, ...]
    options: BuildOptions
    usual: tuple[int, int]

    @classmethod
    def of(cls, grids: Sequence[Grid | None], bands: int, options: BuildOptions) -> Layout:
        """Choose the side that suits all images which could be opened.

        Raises
        ------
        UsageError
            Tiles would be larger, or more, than can be read, or cannot be halved often enough.
        """
        shapes = [_finest_shape(grid, options) for grid in grids if grid is not None]
        tile = _resolve_tile(shapes, options)
        if tile**2 * bands > MOST_TILE_BYTES:
            raise UsageError(
                f"a tile of {tile} x {tile} pixels in {bands} bands has "
                f"{tile**2 * bands / 2**20:,.0f} MiB; one is read whole, so that "
                f"{MOST_TILE_BYTES >> 20} MiB are the most: use a smaller --tile or --resize"
            )
        layout = cls(
            tile, level_sides(tile, options.levels), options, Counter(shapes).most_common(1)[0][0]
        )
        tiles = sum(_tile_count(shape, tile, options.overlap) for shape in shapes)
        if tiles > MOST_TILES:
            raise UsageError(
                f"these images make {tiles:,} tiles of {tile} pixels; {MOST_TILES:,} are the "
                "most: use a larger --tile or --gsd"
            )
        return layout

    def shape(self, grid: Grid | None) -> tuple[int, int]:
        """Return height and width; those of most scenes for one that cannot be opened."""
        return self.usual if grid is None else _finest_shape(grid, self.options)

    def target(self, grid: Grid | None) -> Grid | None:
        """Return the grid of the finest level."""
        return None if grid is None else grid.resized(*self.shape(grid))

    def windows(self, grid: Grid | None) -> tuple[tuple[int, int], ...]:
        """Return the (row, col) of every tile, in pixels of the finest level."""
        return tuple(tile_windows(self.shape(grid), self.tile, self.options.overlap))


def _tile_count(shape: tuple[int, int], tile: int, overlap: int) -> int:
    """Return how many tiles a scene has, without listing them; refused overlaps count as none."""
    step = max(tile - overlap, 1)
    return math.prod(1 + max(0, -(-(length - tile) // step)) for length in shape)


def _finest_shape(grid: Grid, options: BuildOptions) -> tuple[int, int]:
    if options.resize is not None:
        return options.resize, options.resize
    if options.gsd is None:
        return grid.height, grid.width
    grid = at_gsd(grid, options.gsd)
    if max(grid.height, grid.width) > MOST_PIXELS:
        raise UsageError(
            f"--gsd {options.gsd:g} makes scenes of {grid.width} x {grid.height} pixels: use more"
        )
    return grid.height, grid.width


def _resolve_tile(shapes: Sequence[tuple[int, int]], options: BuildOptions) -> int:
    if options.resize is not None:
        return options.resize
    if options.tile is not None:
        return options.tile
    return auto_tile(shapes, options.overlap, 2 ** (options.levels - 1))
