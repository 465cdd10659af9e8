"""Files of maps and masks to one road network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import shapely

from geoprep.crs import LONLAT, transformer
from geoprep.errors import SourceError, UsageError
from geoprep.grid import Grid
from geoprep.roads.centrelines import RoadRaster, Tracing, open_raster
from geoprep.roads.centrelines.rasters import Kind
from geoprep.roads.formats.spacenet import ImageRoads, image_id
from geoprep.roads.ground import in_crs, utm_crs
from geoprep.roads.network import RoadNetwork
from geoprep.roads.tracing.merging import Sheet, merged
from geoprep.roads.tracing.steps import trace

GEOTIFF: Final = (".tif", ".tiff")
SUFFIXES: Final = (*GEOTIFF, ".png", ".jp2", ".vrt", ".img")
_EDGE_POINTS: Final = 5


def rasters_in(path: Path) -> list[Path]:
    """Return a file as it is, or the rasters in a folder, in order of their names.

    Pictures beside GeoTIFFs, such as the overlays of maps, are passed over.

    Raises
    ------
    SourceError
        There is no such file, or the folder has no raster.
    """
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
        if not found:
            raise SourceError(f"{path}: no raster in it ({', '.join(SUFFIXES)})")
        return [p for p in found if p.suffix.lower() in GEOTIFF] or found
    if not path.exists():
        raise SourceError(f"{path}: no such file or folder")
    return [path]


def vectorize(
    paths: Sequence[Path],
    options: Tracing | None = None,
    *,
    kind: Kind | None = None,
    band: int | None = None,
    pixel_size_m: float | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> RoadNetwork:
    """Return one road network of maps, masks or probability rasters, connected across borders.

    Parameters
    ----------
    paths
        Rasters of neighbouring or overlapping ground; where they overlap, the first one counts.
    options, kind, band, pixel_size_m
        As in `trace` and `open_raster`, the same for all.
    advance
        Called with rasters done and in all; for a single one, with its blocks.

    Returns
    -------
    RoadNetwork
        In the UTM zone of the middle of all rasters; a raster without a place, in its own plane.

    Raises
    ------
    UsageError
        Several rasters, one of them without a place on the ground.
    ImageError
        A raster is damaged, noise, road all over, or of bands that nobody can tell apart.
    """
    sheets: list[tuple[RoadNetwork, Grid]] = []
    for done, path in enumerate(paths, 1):
        alone = len(paths) == 1
        with open_raster(path, kind=kind, band=band, pixel_size_m=pixel_size_m) as raster:
            if not alone:
                _placed(raster)
            network = trace(raster, options, advance=advance if alone else None)
            if alone:
                return network
            sheets.append((network, _placed(raster)))
        if advance is not None:
            advance(done, len(paths))
    crs = _common_crs([grid for _, grid in sheets])
    return merged([Sheet(in_crs(network, crs), _outline(grid, crs)) for network, grid in sheets])


def vectorize_apart(
    paths: Sequence[Path],
    options: Tracing | None = None,
    *,
    kind: Kind | None = None,
    band: int | None = None,
    pixel_size_m: float | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> Iterator[ImageRoads]:
    """Yield the network of every raster by itself, as SpaceNet's tables hold them.

    Their pixels are those of the image that a map was made of, where it was resampled.

    Parameters and errors are those of `vectorize`; rasters need no place on the ground.
    """
    for done, path in enumerate(paths, 1):
        with open_raster(path, kind=kind, band=band, pixel_size_m=pixel_size_m) as raster:
            network = trace(raster, options)
            place, gsd = raster.image
            yield ImageRoads(image_id(path.name), network, gsd, place)
        if advance is not None:
            advance(done, len(paths))


def _placed(raster: RoadRaster) -> Grid:
    if raster.place is None:
        raise UsageError(
            f"{raster.name}: has no place on the ground, so nobody knows how it borders on the "
            "others: vectorize it alone"
        )
    return raster.place


def _outline(grid: Grid, crs: str) -> shapely.Polygon:
    """Return the ground of a raster as a polygon, its sides followed at a few points each."""
    share = np.linspace(0, 1, _EDGE_POINTS)[:-1]
    x = np.concatenate([share, np.ones_like(share), 1 - share, np.zeros_like(share)]) * grid.width
    y = np.concatenate([np.zeros_like(share), share, np.ones_like(share), 1 - share]) * grid.height
    a, b, c, d, e, f = grid.transform[:6]
    corners = transformer(grid.crs, crs).transform(a * x + b * y + c, d * x + e * y + f)
    return shapely.Polygon(np.column_stack(corners))


def _common_crs(grids: Sequence[Grid]) -> str:
    """Return the UTM zone of the middle of all rasters, whichever way around the Earth is less."""
    middles = []
    for grid in grids:
        middle = grid.transform * (grid.width / 2, grid.height / 2)
        middles.append(transformer(grid.crs, LONLAT).transform(*middle))
    lon, lat = np.array(middles).T
    east = np.exp(1j * np.radians(lon)).mean()
    return utm_crs(math.degrees(math.atan2(east.imag, east.real)), float(lat.mean()))
