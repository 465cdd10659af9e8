"""Areas that a person drew to say which ground trains, validates and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, reproject
from geoprep.errors import UsageError
from geoprep.grid import Grid
from geoprep.plan.splits import TRAIN, UNUSED
from geoprep.store import SPLITS

COLUMN = "split"


@dataclass(frozen=True, slots=True)
class Areas:
    """Polygons in longitude and latitude, by split; ``rest`` is the split of other ground."""

    polygons: tuple[shapely.Geometry, ...]
    rest: int

    def splits(
        self, grid: Grid | None, windows: Sequence[tuple[int, int]], tile: int
    ) -> tuple[int, ...]:
        """Return the split of every tile: that of the area in which its centre lies.

        A tile that reaches into an area of another split is unused. Ground in no area trains
        where no area does, and is unused otherwise; so is an image without a place on the ground.
        """
        if grid is None or not grid.georeferenced:
            return (self.rest,) * len(windows)
        ground = _outlines(grid, windows, tile)
        centres = shapely.centroid(ground)
        found = np.full(len(windows), self.rest)
        inside = [shapely.covers(area, centres) for area in self.polygons]
        for split, covered in enumerate(inside):
            found[covered] = split
        for split, area in enumerate(self.polygons):
            found[shapely.intersects(area, ground) & (found != split)] = UNUSED
        return tuple(int(split) for split in found)


def read_areas(path: str) -> Areas:
    """Read the areas of a file with a column ``split`` of train, val or test.

    Raises
    ------
    UsageError
        It cannot be read, has no such column, no CRS, or no area.
    """
    import pyogrio
    from pyogrio.errors import DataLayerError, DataSourceError

    if not Path(path).is_file():
        raise UsageError(f"--split-file {path}: no such file; check the path")
    try:
        meta, _, wkb, values = pyogrio.raw.read(path, columns=[COLUMN], force_2d=True)
        polygons = shapely.make_valid(shapely.from_wkb(wkb))
    except (DataSourceError, DataLayerError, shapely.errors.GEOSException) as error:
        raise UsageError(f"--split-file {path}: cannot be read as vectors ({error})") from error
    if COLUMN not in meta["fields"]:
        raise UsageError(f"--split-file {path}: has no column {COLUMN!r} of train, val or test")
    names = [str(name).strip().lower() for name in values[0]]
    unknown = sorted(set(names) - set(SPLITS))
    if unknown or not names:
        raise UsageError(
            f"--split-file {path}: column {COLUMN!r} holds {', '.join(unknown) or 'nothing'}; "
            f"write {', '.join(SPLITS)}"
        )
    areas = _lonlat(polygons, meta["crs"], path)
    kinds = np.array(names)
    unions = tuple(shapely.union_all(areas[kinds == split]) for split in SPLITS)
    for union in unions:
        shapely.prepare(union)
    return Areas(unions, UNUSED if SPLITS[TRAIN] in names else TRAIN)


def _lonlat(polygons: NDArray[np.object_], crs: str | None, path: str) -> NDArray[np.object_]:
    if crs is None:
        raise UsageError(f"--split-file {path}: has no CRS; write it with one, or as GeoJSON")
    return reproject(polygons, crs, LONLAT)


def _outlines(
    grid: Grid, windows: Sequence[tuple[int, int]], tile: int
) -> NDArray[np.object_]:  # fmt: skip
    """Return the ground of every tile, what pads it left out, in longitude and latitude."""
    top, left = np.array(windows, np.float64).T
    bottom, right = np.minimum(top + tile, grid.height), np.minimum(left + tile, grid.width)
    cols, rows = np.stack([left, right, right, left]), np.stack([top, top, bottom, bottom])
    a, b, c, d, e, f = tuple(grid.transform)[:6]
    xs, ys = a * cols + b * rows + c, d * cols + e * rows + f
    rings = np.asarray(shapely.polygons(np.stack([xs.T, ys.T], axis=-1)), object)
    return reproject(rings, grid.crs, LONLAT)
