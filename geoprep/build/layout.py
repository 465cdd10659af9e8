"""Layout of the tiles: their side, the shape of scenes at the finest level, and limits of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from geoprep.build.options import BuildOptions
from geoprep.errors import UsageError
from geoprep.grid import Grid, auto_tile, level_sides, tile_windows

MOST_TILE_BYTES: Final = 256 << 20
"""A tile is one chunk, which is read whole; every thread of a build holds those of a scene."""
MOST_FINER: Final = 10
"""Largest ratio of an image's pixel size to that of the finest level."""


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

    def shape(self, grid: Grid | None) -> tuple[int, int]:
        """Return height and width of a scene; the most frequent ones for None."""
        return self.usual if grid is None else _finest_shape(grid, self.options)

    def windows(self, grid: Grid | None) -> tuple[tuple[int, int], ...]:
        """Return the (row, col) of every tile, in pixels of the finest level."""
        return _windows(self.shape(grid), self.tile, self.options.overlap)


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
