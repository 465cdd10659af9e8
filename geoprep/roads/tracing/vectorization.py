"""Raster files of roads to road networks: one network of all, or one of each."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from geoprep.cpus import usable_cpus
from geoprep.errors import GeoprepWarning, ImageError, SourceError
from geoprep.executors.threads import Threads
from geoprep.grid import utm_crs_of
from geoprep.roads.centrelines.opening import of_one_kind, open_raster
from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.centrelines.thinning import DENSEST
from geoprep.roads.formats.spacenet_csv import ImageRoads
from geoprep.roads.graph import side_by_side
from geoprep.roads.names import GEOTIFF_SUFFIXES, RASTER_SUFFIXES, image_id
from geoprep.roads.network import RoadGraph, in_crs
from geoprep.roads.options import RasterOptions, Tracing
from geoprep.roads.tracing.mosaics import grid_of, mosaic, mosaics
from geoprep.roads.tracing.steps import Advance, trace

_MANY_EDGES: Final = 1000
"""Networks of fewer edges may have any density: a small raster may be one crossing."""


def rasters_in(path: Path) -> list[Path]:
    """Return the rasters of a folder in order of their names, or a file itself.

    If the folder has GeoTIFFs, other images (such as previews of predictions) are omitted.
    """
    if path.is_dir():
        rasters = sorted(p for p in path.iterdir() if p.suffix.lower() in RASTER_SUFFIXES)
        if not rasters:
            raise SourceError(f"{path}: the folder has no raster ({', '.join(RASTER_SUFFIXES)})")
        return [p for p in rasters if p.suffix.lower() in GEOTIFF_SUFFIXES] or rasters
    if not path.exists():
        raise SourceError(f"{path}: no such file or folder; check the path")
    return [path]


def vectorize(
    paths: Sequence[Path],
    options: Tracing | None = None,
    reading: RasterOptions | None = None,
    *,
    workers: int | None = None,
    advance: Advance = lambda done, total: None,
) -> RoadGraph:
    """Return one road network of predictions, masks or probability rasters.

    Roads are connected across the borders of rasters.
    """
    threads = workers or usable_cpus()
    rasters = [open_raster(path, reading) for path in paths]
    if len(rasters) == 1:
        network = trace(rasters[0], options, workers=threads, advance=advance)
    else:
        rasters = rasters if reading and reading.kind else of_one_kind(rasters)
        crs = utm_crs_of(*map(grid_of, rasters))
        whole = [mosaic([rasters[number] for number in group]) for group in mosaics(rasters)]
        networks = _trace_each(whole, options, threads, advance)
        network = side_by_side([in_crs(network, crs) for network in networks])
    for message in _warnings(rasters, network, options or Tracing()):
        _warn(message)
    return network


def vectorize_each(
    paths: Sequence[Path],
    options: Tracing | None = None,
    reading: RasterOptions | None = None,
    *,
    workers: int | None = None,
    advance: Advance = lambda done, total: None,
) -> Iterator[ImageRoads]:
    """Yield the network of every raster separately, as SpaceNet's tables hold them.

    Pixel coordinates are those of the image that a prediction was made from.
    """
    threads = workers or usable_cpus()

    def traced(path: Path) -> tuple[ImageRoads, list[str]]:
        raster = open_raster(path, reading)
        network = trace(raster, options)
        grid, gsd = raster.image
        roads = ImageRoads(image_id(path.name), network, gsd, grid)
        return roads, list(_warnings([raster], network))

    some = 4 * threads  # rasters whose networks are in memory at a time
    for first in range(0, len(paths), some):
        for roads, messages in Threads(threads).map_ordered(traced, paths[first : first + some]):
            for message in messages:
                _warn(message)
            yield roads
        advance(min(first + some, len(paths)), len(paths))


def _warn(message: str) -> None:
    warnings.warn(message, GeoprepWarning, stacklevel=3)


def _trace_each(
    rasters: Sequence[RoadRaster], options: Tracing | None, workers: int, advance: Advance
) -> list[RoadGraph]:
    """Return the networks of rasters: several at a time, or several blocks of each if few."""
    few = len(rasters) < workers

    def traced(number: int) -> tuple[int, RoadGraph]:
        return number, trace(rasters[number], options, workers=workers if few else 1)

    networks: dict[int, RoadGraph] = {}
    numbers = range(len(rasters))
    # Memory that this thread frees is used again; that of a new thread is new.
    each = map(traced, numbers) if few else Threads(workers).map_unordered(traced, numbers)
    for number, network in each:
        networks[number] = network
        advance(len(networks), len(rasters))
    return [networks[number] for number in numbers]


def _hint(names: str, first: RoadRaster, best: float, options: Tracing) -> str:
    """Return why rasters with roads may have given none."""
    low, high = options.thresholds(first.threshold)
    if first.kind == "probability" and best < max(low, high):
        return (
            f"{names}: no roads found. The highest probability is {best:.2f}; roads need {low:.3g} "
            f"everywhere and {high:.3g} at one pixel. Lower `threshold` and `high_threshold`."
        )
    return (
        f"{names}: no roads found. All are shorter than {options.min_length_m:g} m, smaller than "
        f"{options.min_area_m2:g} m2 or doubtful. Lower `min_length_m`, `spur_m` or "
        "`min_confidence`, or check `kind` and the pixel size."
    )


def _warnings(
    rasters: Sequence[RoadRaster], network: RoadGraph, options: Tracing | None = None
) -> Iterator[str]:
    """Yield why rasters may have lost their roads, or have too many; ImageError if all are lost."""
    edges = len(network.ends)
    names = rasters[0].name + (f" and {len(rasters) - 1} more" if len(rasters) > 1 else "")
    doubtful = [raster.warning for raster in rasters if raster.warning]
    if doubtful and not edges:
        raise ImageError(doubtful[0])
    yield from doubtful
    if not edges:
        highest = {raster.name: raster.highest() for raster in rasters}
        for name, probability in highest.items():
            if probability is None:
                yield f"{name}: has only nodata pixels, so it has no roads"
        if options is not None and (best := max(filter(None, highest.values()), default=0)):
            yield _hint(names, rasters[0], best, options)
    density = float(network.length_m.sum()) / max(sum(raster.area_m2 for raster in rasters), 1e-9)
    if edges > _MANY_EDGES and density > DENSEST:
        yield (
            f"{names}: {density * 1000:.0f} km of road per square kilometre "
            f"({edges:,} edges), more than in any city. This is probably noise: try a higher "
            "`threshold`, or check `kind` and `band`."
        )
