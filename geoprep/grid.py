"""Arithmetic of rasters: shape, transform and CRS, and the tiles cut from them. No files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyproj
from affine import Affine
from numpy.typing import NDArray

from geoprep.crs import (
    LONLAT,
    Bounds,
    beside,
    boxes_around,
    moved,
    reproject,
    reproject_area,
    to_lonlat,
    transformer,
    turn_of,
    utm_crs,
    valid_polygons,
)
from geoprep.errors import UsageError

if TYPE_CHECKING:
    import shapely

PREFERRED_TILE = 512
"""Tile side that ``auto`` stays near: large enough for context, small enough for a batch."""

MIXED_SIZES = 1.5
"""Ratio of the largest to the smallest pixel size of images above which both are reported."""

_SIDE_POINTS = 1024
"""Points on a side of a box around a grid: the curve between two is off by a millionth of it."""

_GEOD = pyproj.Geod(ellps="WGS84")


@dataclass(frozen=True, slots=True)
class Grid:
    """A raster's shape in pixels and its georeference.

    Points are (..., 2): columns and rows of pixel corners, or x and y in the CRS.

    Examples
    --------
    >>> grid = Grid(400, 600, Affine(0.5, 0, 412_000, 0, -0.5, 6_174_000), "EPSG:32637")
    >>> grid.bounds
    (412000.0, 6173800.0, 412300.0, 6174000.0)
    >>> grid.to_pixels(np.array([412_010.0, 6_173_990.0])).tolist()
    [20.0, 20.0]
    >>> grid.coarser(2).shape
    (200, 300)
    """

    height: int
    width: int
    transform: Affine  # pixel corner (column, row) -> CRS coordinate
    crs: str  # EPSG:4326 or WKT; "" for an image that is not georeferenced

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.height, self.width

    @property
    def georeferenced(self) -> bool:
        """True if the grid has a CRS; otherwise coordinates are metres from the upper left."""
        return bool(self.crs)

    # Other grids of the same ground

    def window(self, row: float, col: float, height: int, width: int) -> Grid:
        """Return the grid of a window; it may extend beyond the edge."""
        return Grid(height, width, self.transform * Affine.translation(col, row), self.crs)

    def scaled(self, height: int, width: int, down: float, right: float) -> Grid:
        """Return a grid from the same corner on, whose pixels are longer by two factors."""
        return Grid(height, width, self.transform * Affine.scale(right, down), self.crs)

    def resized(self, height: int, width: int) -> Grid:
        """Return the grid of the same extent in another number of pixels."""
        return self.scaled(height, width, self.height / height, self.width / width)

    def coarser(self, factor: int) -> Grid:
        """Return the grid of a coarser level; its last pixels may extend beyond the extent."""
        height, width = -(-self.height // factor), -(-self.width // factor)
        return self.scaled(height, width, factor, factor)

    def at_gsd(self, metres: float) -> Grid:
        """Return the same extent at a ground sample distance, to within half a pixel per side."""
        gsd_x, gsd_y = self.gsd_m()
        height, width = self.height * gsd_y / metres, self.width * gsd_x / metres
        return self.resized(max(1, round(height)), max(1, round(width)))

    # Pixels and coordinates

    def to_xy(self, pixels: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return columns and rows as coordinates, float64 (..., 2)."""
        col, row = np.moveaxis(np.asarray(pixels, np.float64), -1, 0)
        a, b, c, d, e, f = self.transform[:6]
        return np.moveaxis(np.array([a * col + b * row + c, d * col + e * row + f]), 0, -1)

    def to_crs(self, pixels: NDArray[np.floating[Any]], crs: str) -> NDArray[np.float64]:
        """Return columns and rows, (point, 2), as coordinates in another CRS."""
        return moved(self.to_xy(pixels), self.crs, crs)

    def to_pixels(self, xy: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return coordinates as columns and rows, float64 (..., 2)."""
        # The origin is subtracted first: degrees are some ten million pixels from zero, and the
        # inverse transform would lose eight digits.
        a, b, c, d, e, f = self.transform[:6]
        x, y = np.moveaxis(np.asarray(xy, np.float64), -1, 0)
        east, south = x - c, y - f
        determinant = a * e - b * d
        cols = (e * east - b * south) / determinant
        rows = (a * south - d * east) / determinant
        return np.moveaxis(np.array([cols, rows]), 0, -1)

    def centres(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return x of every column and y of every row, at the centres of pixels, unrotated."""
        cols, rows = np.arange(self.width) + 0.5, np.arange(self.height) + 0.5
        xs = self.to_xy(np.column_stack([cols, np.full_like(cols, 0.5)]))[:, 0]
        return xs, self.to_xy(np.column_stack([np.full_like(rows, 0.5), rows]))[:, 1]

    @property
    def corners(self) -> NDArray[np.float64]:
        """Coordinates of upper left, upper right, lower right and lower left, float64 (4, 2)."""
        width, height = self.width, self.height
        return self.to_xy(np.array([(0, 0), (width, 0), (width, height), (0, height)]))

    @property
    def centre(self) -> tuple[float, float]:
        """Coordinates of the middle."""
        x, y = self.to_xy(np.array([self.width / 2, self.height / 2])).tolist()
        return x, y

    @property
    def bounds(self) -> Bounds:
        """Left, bottom, right, top in the CRS, also of a rotated raster."""
        (left, bottom), (right, top) = self.corners.min(axis=0), self.corners.max(axis=0)
        return float(left), float(bottom), float(right), float(top)

    def outline(self) -> shapely.Polygon:
        """Return the rectangle in the CRS, counterclockwise."""
        import shapely  # a store is read without it

        return shapely.geometry.polygon.orient(shapely.Polygon(self.corners))

    def outline_in(self, crs: str) -> shapely.Polygon:
        """Return the footprint in another CRS, where its straight sides are curved."""
        import shapely

        return reproject_area(shapely.Polygon(self.corners), self.crs, crs)

    def box_around(self, other: Grid) -> tuple[int, int, int, int] | None:
        """Return top, left, bottom and right around another grid, in pixels of this one.

        None if a part of the other has no coordinates in this CRS.
        """
        import shapely

        xy = shapely.get_coordinates(other.outline_in(self.crs))
        left, _, right, _ = self.bounds
        xy[:, 0] = beside(xy[:, 0], self.crs, (left + right) / 2)
        if not np.isfinite(xy).all():
            return None
        pixels = self.to_pixels(xy)
        left, top = np.floor(pixels.min(axis=0)).astype(int).tolist()
        right, bottom = np.ceil(pixels.max(axis=0)).astype(int).tolist()
        return top, left, bottom, right

    def areas_near(
        self, areas: NDArray[np.object_], crs: str, target: str | None = None
    ) -> NDArray[np.object_]:
        """Return what of polygons is near the grid, in the CRS of the grid or another one.

        This is the one way to put polygons on a grid:

        1. In their own CRS they are cut to a box around the grid, on either side of 180 degrees.
        2. Sides that become curves get points, a thousandth of the box apart.
        3. They are transformed to ``target`` (default: the CRS of the grid), where points outside
           of its domain are left out, and moved by whole turns around the Earth next to the grid.
        4. Polygons that cross themselves are repaired. Lines that this leaves are dropped.

        Parameters
        ----------
        areas
            Polygons and multipolygons, object (area,).

        Returns
        -------
        A valid polygon or multipolygon of each area, object (area,); empty if none of it is near.
        """
        import shapely

        target = self.crs if target is None else target
        boxes = self._boxes_in(crs) or [tuple(shapely.total_bounds(areas))]
        turn = turn_of(crs)
        found, owners = [np.empty(0, object)], [np.empty(0, np.intp)]
        bounds = shapely.bounds(areas)
        for box in boxes:
            for shift in {0.0, -turn, turn}:
                left, bottom, right, top = np.add(box, (shift, 0, shift, 0))
                west, south, east, north = bounds.T
                near = (west <= right) & (east >= left) & (south <= top) & (north >= bottom)
                inside = (west >= left) & (east <= right) & (south >= bottom) & (north <= top)
                chosen = np.flatnonzero(near)
                cut, across = areas[chosen], ~inside[chosen]
                cut[across] = shapely.intersection(
                    shapely.make_valid(cut[across]), shapely.box(left, bottom, right, top)
                )
                if crs != target:
                    cut = shapely.segmentize(cut, max(right - left, top - bottom) / _SIDE_POINTS)
                cut = shapely.set_coordinates(cut, shapely.get_coordinates(cut) - (shift, 0))
                found.append(reproject(cut, crs, target))
                owners.append(chosen)
        polygons, owner = valid_polygons(np.concatenate(found))
        owner = np.concatenate(owners)[owner]
        if turn_of(target) and len(polygons):
            west, _, east, _ = shapely.bounds(polygons).T
            middle, _ = transformer(self.crs, target).transform(*self.centre)
            moves = beside((west + east) / 2, target, middle) - (west + east) / 2
            xy, number = shapely.get_coordinates(polygons, return_index=True)
            xy[:, 0] += moves[number]
            polygons = shapely.set_coordinates(polygons, xy)
        result = np.full(len(areas), shapely.MultiPolygon())
        order = np.argsort(owner, kind="stable")
        ends = np.flatnonzero(np.diff(owner[order])) + 1
        for parts, number in zip(np.split(polygons[order], ends), np.unique(owner), strict=False):
            result[number] = shapely.union_all(parts) if len(parts) > 1 else parts[0]
        return result

    def _boxes_in(self, crs: str) -> list[Bounds]:
        """Return boxes around the grid in another CRS, with a margin; none outside its domain."""
        longest = max(np.multiply(self.gsd_m(), self.shape[::-1]))
        with suppress(pyproj.exceptions.ProjError):
            return boxes_around(self.bounds, self.crs, crs, longest / 100)
        return []

    def has_corners_of(self, other: Grid, tolerance: float) -> bool:
        """Return whether the corners of both agree to within a number of pixels."""
        width, height = other.width, other.height
        expected = [(0, 0), (width, 0), (width, height), (0, height)]
        return bool((np.abs(self.to_pixels(other.corners) - expected) < tolerance).all())

    def shape_within(self, bounds: Bounds) -> tuple[int, int] | None:
        """Return height and width of the grid of such pixels that fills bounds; None at 45 degrees.

        ``bounds`` are left, bottom, right and top of the box around the grid.
        """
        # The box is |a| width + |b| height wide and |d| width + |e| height high.
        left, bottom, right, top = bounds
        sides = np.abs(np.array(self.transform[:6]).reshape(2, 3)[:, :2])
        scale = sides.sum()
        if scale == 0 or abs(np.linalg.det(sides / scale)) < 1e-6:
            return None
        width, height = np.linalg.solve(sides, [right - left, top - bottom])
        return max(1, round(height)), max(1, round(width))

    def gsd_m(self) -> tuple[float, float]:
        """Return the ground sample distance in metres along x and y, at the centre, on WGS 84."""
        if not self.georeferenced:
            a, b, _, d, e, _ = tuple(self.transform)[:6]
            return math.hypot(a, d), math.hypot(b, e)
        x, y = self.width / 2, self.height / 2
        xs, ys = self.to_xy(np.array([(x, y), (x + 1, y), (x, y + 1)])).T
        lon, lat = to_lonlat(self.crs).transform(xs, ys)
        _, _, metres = _GEOD.inv([lon[0], lon[0]], [lat[0], lat[0]], lon[1:], lat[1:])
        return float(metres[0]), float(metres[1])


def local_grid(height: int, width: int, pixel_size_m: float) -> Grid:
    """Return the grid of an image that is not georeferenced: metres right of, above its corner."""
    return Grid(height, width, Affine.scale(pixel_size_m, -pixel_size_m), "")


def utm_crs_of(*grids: Grid) -> str:
    """Return the UTM zone of the mean centre of grids, the shorter way around the Earth."""
    lon, lat = np.array([transformer(one.crs, LONLAT).transform(*one.centre) for one in grids]).T
    east = np.exp(1j * np.radians(lon)).mean()
    return utm_crs(float(np.degrees(np.angle(east))), float(lat.mean()))


def auto_tile(shapes: Iterable[tuple[int, int]], overlap: int, divisor: int) -> int:
    """Return the tile side nearest 512 that covers most scenes without gap or padding, or 512.

    These are scenes of one shape. It is a multiple of ``divisor``, so that every coarser level has
    whole pixels.
    """
    counts = Counter(shapes)
    longest = max(max(shape) for shape in counts)
    (height, width), count = counts.most_common(1)[0]
    if 2 * count > counts.total():
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
            "tile",
            f"{tile} cannot be halved {levels - 1} times for {levels} levels: use a `tile` "
            f"of {nearest}, or fewer `levels`",
        )
    return tuple(tile >> i for i in range(levels))


def tile_offsets(length: int, tile: int, overlap: int) -> tuple[int, ...]:
    """Return the first pixel of every tile along one axis; the last tile ends at the edge."""
    if not 0 <= overlap < tile:
        raise UsageError("overlap", f"{overlap} must be at least 0 and less than the tile, {tile}")
    if length <= tile:
        return (0,)
    starts = range(0, length - tile, tile - overlap)
    return (*starts, length - tile)


class SceneWindow(NamedTuple):
    """A window of a scene in its pixels: first row and column, height and width."""

    row: int
    col: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Windows:
    """The square windows into which a scene is cut, row by row.

    The last of a row or column ends at the edge of the scene. A scene that is smaller than a window
    has one, which extends beyond the edge. Iteration yields first row and column of every window.

    Examples
    --------
    >>> windows = Windows((300, 600), side=256, overlap=0)
    >>> [*windows]
    [(0, 0), (0, 256), (0, 344), (44, 0), (44, 256), (44, 344)]
    >>> windows.around(1, 3)
    SceneWindow(row=0, col=256, height=256, width=344)
    """

    shape: tuple[int, int]  # of the scene, in pixels
    side: int
    overlap: int

    @property
    def corners(self) -> tuple[tuple[int, int], ...]:
        """First row and column of every window."""
        return _corners(self)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.corners)

    def __len__(self) -> int:
        return len(self.corners)

    def around(self, first: int, stop: int) -> SceneWindow:
        """Return the smallest window around those from ``first`` on, cut at the scene's edge."""
        rows, cols = zip(*self.corners[first:stop], strict=True)
        bottom = min(max(rows) + self.side, self.shape[0])
        right = min(max(cols) + self.side, self.shape[1])
        return SceneWindow(min(rows), min(cols), bottom - min(rows), right - min(cols))

    def runs(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return runs of windows to read at once, each as its first and the one after its last.

        Every row of windows is one, since the rectangle around the end of a row and the start of
        the next contains both rows completely. Rows are joined where they overlap so much that
        separate reading would read more pixels.
        """

        def area(first: int, stop: int) -> int:
            around = self.around(first, stop)
            return around.height * around.width

        rows = [row for row, _ in self.corners[first:stop]]
        breaks = [i for i in range(first + 1, stop) if rows[i - first] != rows[i - first - 1]]
        joined: list[tuple[int, int]] = []
        for run in pairwise([first, *breaks, stop]):
            if joined and area(joined[-1][0], run[1]) < area(*joined[-1]) + area(*run):
                joined[-1] = joined[-1][0], run[1]
            else:
                joined.append(run)
        return joined


@lru_cache(maxsize=1024)  # scenes of one shape share a tuple: there may be a million
def _corners(windows: Windows) -> tuple[tuple[int, int], ...]:
    rows, cols = (tile_offsets(length, windows.side, windows.overlap) for length in windows.shape)
    return tuple((row, col) for row in rows for col in cols)


def shard_tiles(tiles_per_scene: Sequence[int], preferred: int) -> int:
    """Return the number of tiles per shard: near ``preferred``, whole scenes where possible."""
    # No scene is then decoded twice.
    counts = set(tiles_per_scene)
    if len(counts) == 1:
        (count,) = counts
        if count <= 2 * preferred:
            return count * max(1, round(preferred / count))
    return preferred
