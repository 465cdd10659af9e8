"""One raster to a road network: every step in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.errors import ImageError
from geoprep.grid import Grid, utm_crs_of
from geoprep.roads.centrelines.rasters import RoadRaster, mean_probability
from geoprep.roads.centrelines.thinning import Skeleton, skeleton
from geoprep.roads.graph import subnetwork, with_chains_joined
from geoprep.roads.network import Plane, RoadGraph
from geoprep.roads.options import Tracing
from geoprep.roads.tracing.borders import at_border, cut_off_ends, split_at_border
from geoprep.roads.tracing.bridges import with_bridges
from geoprep.roads.tracing.crossings import with_junctions_merged, with_wide_junctions_merged
from geoprep.roads.tracing.gaps import DeadEnds, Links, with_gaps_closed
from geoprep.roads.tracing.pixel_graph import pixel_network
from geoprep.roads.tracing.probable_paths import links_along_paths
from geoprep.roads.tracing.pruning import (
    ReachAt,
    begun_forward,
    nowhere_wide,
    simplified,
    smoothed,
    without_small_components,
    without_spurs,
)
from geoprep.roads.tracing.speeds import edge_confidence, edge_speeds

Advance = Callable[[int, int], None]

_STAIRCASE_PX: Final = 2.0
"""Smoothing that straightens the staircases of straight roads in any direction, in pixels."""
_FINE: Final = 1.25
"""Pixels of up to this many tolerances need no smoothing: simplification straightens lines."""
_RAGGED_M: Final = 2.0
"""Smoothing that brings the heading error of straight predicted roads below 3 degrees."""
_WIDE_M: Final = 7.0
"""Roads this far from the background, along rows and columns, are wide: 10 to 14 m."""


def trace(
    raster: RoadRaster,
    options: Tracing | None = None,
    *,
    workers: int = 1,
    advance: Advance = lambda done, total: None,
) -> RoadGraph:
    """Return the road network of a raster, with the speeds that it holds."""
    options, raster = options or Tracing(), raster.decoded()
    pixels = skeleton(raster, options, workers=workers, advance=advance)
    reach_at = _wide_areas(pixels)
    network = split_at_border(pixel_network(pixels), raster)
    network = without_spurs(network, options.spur_m, cut_off_ends(network, raster), reach_at)
    network = with_wide_junctions_merged(network, reach_at(network.nodes))
    network = smoothed(network, _smoothing_m(raster, options), min(raster.gsd_m))
    network = simplified(network, options.simplify_m)
    network = with_junctions_merged(network)
    if options.close_gaps:
        network = _with_gaps_closed(network, raster, options)
    probable = raster.kind == "probability"
    if options.min_confidence and probable:
        mean = edge_confidence(network, raster)[:, 0]
        network = with_chains_joined(subnetwork(network, mean >= options.min_confidence))
    network = begun_forward(without_small_components(network, options.min_length_m))
    network = replace(network, speed_mph=edge_speeds(network, raster))
    network = with_bridges(network, options.motorway_mph)
    if probable:
        network = replace(network, confidence=edge_confidence(network, raster))
    return network if raster.grid is None else _in_utm(network, raster, raster.grid)


def _wide_areas(pixels: Skeleton) -> ReachAt:
    """Return a function that tells how far places are from the background in wide areas."""
    from scipy.spatial import cKDTree

    wide = pixels.reach_m > _WIDE_M
    if not wide.any():
        return nowhere_wide
    cells = np.column_stack([pixels.col[wide], pixels.row[wide]]) + 0.5
    tree, reach = cKDTree(Plane(pixels.cell_m).to_metres(cells)), np.append(pixels.reach_m[wide], 0)
    near = 2 * max(pixels.cell_m)

    def reach_at(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        _, nearest = tree.query(xy, distance_upper_bound=near)
        return np.asarray(reach[nearest], np.float64)

    return reach_at


def _smoothing_m(raster: RoadRaster, options: Tracing) -> float:
    """Return the standard deviation in metres that lines of a raster are smoothed by."""
    if options.smoothing_m is not None:
        return options.smoothing_m
    pixel = max(raster.gsd_m)
    coarse = pixel > _FINE * options.simplify_m
    staircase = _STAIRCASE_PX * pixel if coarse else 0.0
    return max(staircase, _RAGGED_M if raster.kind == "probability" else 0.0)


def _with_gaps_closed(network: RoadGraph, raster: RoadRaster, options: Tracing) -> RoadGraph:
    def paths(ends: DeadEnds) -> Links:
        return links_along_paths(network, ends, raster, options, _smoothing_m(raster, options))

    probable = raster.kind == "probability"
    return with_junctions_merged(
        with_gaps_closed(
            network,
            options,
            at_border=at_border(network.nodes, raster),
            mean_probability=partial(mean_probability, raster) if probable else None,
            paths=paths if probable and options.path_m else None,
        )
    )


def _in_utm(network: RoadGraph, raster: RoadRaster, grid: Grid) -> RoadGraph:
    """Return a network of a raster's plane in the UTM zone of the raster's centre."""
    utm = utm_crs_of(grid)
    xy, nodes = (
        grid.to_crs(raster.plane.to_pixels(xy), utm)
        for xy in (shapely.get_coordinates(network.lines), network.nodes)
    )
    if not np.isfinite(xy).all():
        raise ImageError(
            f"{raster.name}: some of its roads have no coordinates in {utm}. Check its CRS and "
            "transform."
        )
    lines = shapely.set_coordinates(network.lines.copy(), xy)
    return replace(network, nodes=nodes, lines=lines, crs=utm)
