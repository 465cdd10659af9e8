"""Files of maps and masks to one road network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
import shapely

from geoprep.crs import LONLAT, transformer, utm_crs
from geoprep.errors import SourceError, UsageError
from geoprep.executors import Threads, usable_cores
from geoprep.grid import Grid
from geoprep.roads.centrelines import RoadRaster, Tracing, open_raster
from geoprep.roads.centrelines.pixels import Files
from geoprep.roads.centrelines.rasters import MOST_MPH, Kind, as_speeds, described
from geoprep.roads.formats.csv_writer import ImageRoads, image_id
from geoprep.roads.ground import in_crs
from geoprep.roads.network import RoadNetwork
from geoprep.roads.tracing.merging import Sheet, merged
from geoprep.roads.tracing.mosaics import mosaic, mosaics
from geoprep.roads.tracing.steps import Advance, trace

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
    workers: int | None = None,
    advance: Advance | None = None,
) -> RoadNetwork:
    """Return one road network of maps, masks or probability rasters, connected across borders.

    Parameters
    ----------
    paths
        Rasters of neighbouring or overlapping ground. Those on one grid of pixels are traced as one
        raster; of others the networks are joined. Where they overlap, the first one counts.
    options, kind, band, pixel_size_m
        As in `trace` and `centrelines.open_raster`, the same for all.
    workers
        Threads; default: one per core. The network is the same however many there are.
    advance
        Called with rasters done and in all; for those of one grid that touch, with their blocks.

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
    with closing(Files()) as files:
        rasters = [
            described(path, files, kind=kind, band=band, pixel_size_m=pixel_size_m)
            for path in paths
        ]
        if len(rasters) == 1:
            return trace(rasters[0], options, workers=_threads(workers), advance=advance)
        grids = [_placed(raster) for raster in rasters]
        rasters = rasters if kind else _alike(rasters)
        parts = mosaics(rasters)
        whole = [mosaic([rasters[number] for number in part]) for part in parts]
        networks = _each(whole, options, _threads(workers), advance)
    crs = _common_crs(grids)
    return merged(
        [
            Sheet(in_crs(network, crs), shapely.union_all([_outline(grids[i], crs) for i in part]))
            for network, part in zip(networks, parts, strict=True)
        ],
        motorway_mph=(options or Tracing()).motorway_mph,
    )


def _alike(rasters: Sequence[RoadRaster]) -> list[RoadRaster]:
    """Return rasters of which what looks like a mask holds one speed if others hold several."""
    if all(raster.kind != "speed" for raster in rasters):
        return list(rasters)
    return [
        as_speeds(raster) if raster.kind == "mask" and raster.one <= MOST_MPH else raster
        for raster in rasters
    ]


def _threads(workers: int | None) -> int:
    return workers or usable_cores()


def _each(
    rasters: Sequence[RoadRaster], options: Tracing | None, workers: int, advance: Advance | None
) -> list[RoadNetwork]:
    """Return the networks of rasters, several at a time; where they are few, blocks of each."""
    if len(rasters) < workers:
        tell = advance if len(rasters) == 1 else None
        return [trace(one, options, workers=workers, advance=tell) for one in rasters]

    def traced(number: int) -> tuple[int, RoadNetwork]:
        return number, trace(rasters[number], options)

    found: dict[int, RoadNetwork] = {}
    for number, network in Threads(workers).map_unordered(traced, range(len(rasters))):
        found[number] = network
        if advance is not None:
            advance(len(found), len(rasters))
    return [found[number] for number in range(len(rasters))]


def vectorize_apart(
    paths: Sequence[Path],
    options: Tracing | None = None,
    *,
    kind: Kind | None = None,
    band: int | None = None,
    pixel_size_m: float | None = None,
    workers: int | None = None,
    advance: Advance | None = None,
) -> Iterator[ImageRoads]:
    """Yield the network of every raster by itself, as SpaceNet's tables hold them.

    Their pixels are those of the image that a map was made of, where it was resampled.

    Parameters and errors are those of `vectorize`; rasters need no place on the ground.
    """

    def alone(path: Path) -> ImageRoads:
        with open_raster(path, kind=kind, band=band, pixel_size_m=pixel_size_m) as raster:
            network = trace(raster, options)
            place, gsd = raster.image
            return ImageRoads(image_id(path.name), network, gsd, place)

    some = 4 * _threads(workers)
    for first in range(0, len(paths), some):
        yield from Threads(_threads(workers)).map_ordered(alone, paths[first : first + some])
        if advance is not None:
            advance(min(first + some, len(paths)), len(paths))


def blank_rasters(
    paths: Sequence[Path],
    *,
    kind: Kind | None = None,
    band: int | None = None,
    pixel_size_m: float | None = None,
) -> list[Path]:
    """Return the rasters all of whose pixels are NaN or no data; parameters as of `vectorize`."""
    found = []
    for path in paths:
        with open_raster(path, kind=kind, band=band, pixel_size_m=pixel_size_m) as raster:
            if raster.is_blank():
                found.append(path)
    return found


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
