"""Road rasters drawn for tests."""

import numpy as np
import shapely
from affine import Affine
from rasterio.features import rasterize

from geoprep.roads.centrelines.bands import ArrayBands
from geoprep.roads.centrelines.opening import as_speeds
from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.network import RoadGraph
from geoprep.roads.options import Tracing
from geoprep.roads.tracing.steps import trace


def drawn(lines, shape, *, width=4.0, pixel=1.0, value=1, **ends):
    """Return uint8 (y, x): lines in metres (y up, 0 at the top), burned as a mask.

    ``pixel`` is the side of a pixel, or its width and height; ``ends`` is for Shapely's buffer.
    """
    across, down = pixel if isinstance(pixel, tuple) else (pixel, pixel)
    shapes = [(shapely.LineString(line).buffer(width / 2, **ends), value) for line in lines]
    transform = Affine(across, 0, 0, 0, -down, 0)
    return rasterize(shapes, out_shape=shape, transform=transform, dtype="uint8")


def array_raster(values, *, pixel_size_m=1.0, kind="mask", name="array") -> RoadRaster:
    """Return a raster (y, x) in memory: uint8 of the kind, or floats from 0 to 1."""
    size = pixel_size_m if isinstance(pixel_size_m, tuple) else (pixel_size_m, pixel_size_m)
    full = 255.0 if values.dtype == np.uint8 else 1.0
    raster = RoadRaster(name, ArrayBands(values[None]), size, None, kind, (1,), full_value=full)
    return as_speeds(raster) if kind == "speed" else raster


def traced(lines, shape=(200, 200), *, pixel=1.0, width=4.0, **options) -> RoadGraph:
    """Return the road network of drawn lines."""
    mask = drawn(lines, shape, width=width, pixel=pixel)
    return trace(array_raster(mask, pixel_size_m=pixel, kind="mask"), Tracing(**options))


def network(*lines, speeds=None, crs=None) -> RoadGraph:
    """Return the road network of lines that meet where their ends are equal."""
    made = np.array([shapely.LineString(line) for line in lines], object)
    ends = [tuple(map(float, line[end])) for line in lines for end in (0, -1)]
    nodes = sorted(set(ends))
    number = np.array([nodes.index(end) for end in ends], np.int64).reshape(-1, 2)
    speed = np.full(len(lines), np.nan) if speeds is None else np.array(speeds, float)
    return RoadGraph(np.array(nodes, float).reshape(-1, 2), number, made, speed, crs)


def mixed_network(crs="EPSG:32737", origin=(500_000, 9_000_000), **more) -> RoadGraph:
    """Return a line, two parallel edges and a loop, in metres from an origin; a speed unknown."""
    lines = [[(0, 0), (100, 10)], [(100, 10), (150, 60), (200, 10)], [(100, 10), (200, 10)]]
    lines += [[(200, 10), (230, 40), (230, -20), (200, 10)]]
    placed = [[(origin[0] + x, origin[1] + y) for x, y in line] for line in lines]
    return network(*placed, **{"speeds": [25, 18.75, np.nan, 65], "crs": crs} | more)


def lengths(made: RoadGraph) -> list[float]:
    """Return the lengths of edges in metres, ascending."""
    return sorted(made.length_m.round(6).tolist())


def degree_counts(made: RoadGraph) -> dict[int, int]:
    """Return the number of nodes by degree."""
    degree = np.bincount(made.ends.reshape(-1), minlength=len(made.nodes))
    return {int(d): int(n) for d, n in zip(*np.unique(degree, return_counts=True), strict=True)}
