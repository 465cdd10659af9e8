"""Rasters as shape, transform and CRS, and the tiles cut from them. Pure functions, no files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyproj
from affine import Affine

from geoprep.crs import to_lonlat
from geoprep.errors import UsageError

PREFERRED_TILE = 512
"""Tile side that ``auto`` stays near: large enough for context, small enough for a batch."""

_GEOD = pyproj.Geod(ellps="WGS84")


@dataclass(frozen=True, slots=True)
class Grid:
    """A raster's shape in pixels and its georeference."""

    height: int
    width: int
    transform: Affine  # pixel corner (column, row) -> CRS coordinate
    crs: str  # EPSG:4326 or WKT; "" for an image that is not georeferenced

    def window(self, row: float, col: float, height: int, width: int) -> Grid:
        """Return the grid of a window; it may extend beyond the edge."""
        return Grid(height, width, self.transform * Affine.translation(col, row), self.crs)

    def resized(self, height: int, width: int) -> Grid:
        """Return the grid of the same extent in another number of pixels."""
        scale = Affine.scale(self.width / width, self.height / height)
        return Grid(height, width, self.transform * scale, self.crs)

    @property
    def georeferenced(self) -> bool:
        """True if the grid has a CRS; otherwise coordinates are metres from the upper left."""
        return bool(self.crs)

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, bottom, right, top in the CRS, also of a rotated raster."""
        corners = [self.transform * (x, y) for x in (0, self.width) for y in (0, self.height)]
        xs, ys = zip(*corners, strict=True)
        return min(xs), min(ys), max(xs), max(ys)

    def gsd_m(self) -> tuple[float, float]:
        """Return the ground sample distance in metres along x and y, at the centre, on WGS 84."""
        if not self.georeferenced:
            a, b, _, d, e, _ = tuple(self.transform)[:6]
            return math.hypot(a, d), math.hypot(b, e)
        x, y = self.width / 2, self.height / 2
        corners = [self.transform * at for at in ((x, y), (x + 1, y), (x, y + 1))]
        xs, ys = zip(*corners, strict=True)
        lon, lat = to_lonlat(self.crs).transform(xs, ys)
        _, _, metres = _GEOD.inv([lon[0], lon[0]], [lat[0], lat[0]], lon[1:], lat[1:])
        return float(metres[0]), float(metres[1])


def local_grid(height: int, width: int, pixel_size_m: float) -> Grid:
    """Return the grid of an image that is not georeferenced: metres right of, above its corner."""
    return Grid(height, width, Affine.scale(pixel_size_m, -pixel_size_m), "")


def at_gsd(grid: Grid, metres: float) -> Grid:
    """Return the same extent at a ground sample distance, to within half a pixel per side."""
    gsd_x, gsd_y = grid.gsd_m()
    return grid.resized(
        max(1, round(grid.height * gsd_y / metres)), max(1, round(grid.width * gsd_x / metres))
    )


def auto_tile(shapes: Iterable[tuple[int, int]], overlap: int, divisor: int) -> int:
    """Return the tile side nearest 512 that covers equal scenes without gap or padding, or 512.

    It is a multiple of ``divisor``, so that every coarser level has whole pixels.
    """
    unique = set(shapes)
    longest = max(max(shape) for shape in unique)
    if len(unique) == 1:
        height, width = unique.pop()
        low = min(PREFERRED_TILE // 2, height, width)
        fits = [
            side
            for side in range(max(low, overlap + 1), min(height, width, 2 * PREFERRED_TILE) + 1)
            if side % divisor == 0
            and (height - overlap) % (side - overlap) == 0
            and (width - overlap) % (side - overlap) == 0
        ]
        if fits:
            return min(fits, key=lambda side: (abs(side - PREFERRED_TILE), side))
    return min(math.ceil(PREFERRED_TILE / divisor), math.ceil(longest / divisor)) * divisor


def level_sides(tile: int, levels: int) -> tuple[int, ...]:
    """Return the tile side at every level, each half the one before."""
    divisor = 2 ** (levels - 1)
    if levels < 1 or tile % divisor or tile < divisor:
        nearest = max(1, round(tile / divisor)) * divisor
        raise UsageError(
            f"`tile` {tile} cannot be halved {levels - 1} times for {levels} levels: use a `tile` "
            f"of {nearest}, or fewer `levels`"
        )
    return tuple(tile >> i for i in range(levels))


def tile_offsets(length: int, tile: int, overlap: int) -> tuple[int, ...]:
    """Return the first pixel of every tile along one axis; the last tile ends at the edge."""
    if not 0 <= overlap < tile:
        raise UsageError(f"`overlap` {overlap} must be at least 0 and less than the tile, {tile}")
    if length <= tile:
        return (0,)
    starts = range(0, length - tile, tile - overlap)
    return (*starts, length - tile)


def tile_windows(shape: tuple[int, int], tile: int, overlap: int) -> list[tuple[int, int]]:
    """Return the (row, col) of every tile of a scene, row by row."""
    cols = tile_offsets(shape[1], tile, overlap)
    return [(row, col) for row in tile_offsets(shape[0], tile, overlap) for col in cols]


def shard_tiles(tiles_per_scene: Sequence[int], preferred: int) -> int:
    """Return the number of tiles per shard: near ``preferred``, whole scenes where possible."""
    # No scene is then decoded twice.
    counts = set(tiles_per_scene)
    if len(counts) == 1:
        (count,) = counts
        if count <= 2 * preferred:
            return count * max(1, round(preferred / count))
    return preferred
