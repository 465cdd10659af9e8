"""A raster to a network: every step in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, transformer, utm_crs
from geoprep.roads.centrelines.options import Tracing
from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.centrelines.sampling import evidence_along
from geoprep.roads.centrelines.thinning import BLOCK, skeleton
from geoprep.roads.network import RoadNetwork
from geoprep.roads.tracing.borders import at_border, cut_off, parted, straightened
from geoprep.roads.tracing.bridges import separated
from geoprep.roads.tracing.graph import pixel_network
from geoprep.roads.tracing.pruning import (
    simplified,
    without_crumbs,
    without_spurs,
)
from geoprep.roads.tracing.repair import merged_junctions, repaired
from geoprep.roads.tracing.speeds import edge_speeds

Advance = Callable[[int, int], None]


def trace(
    raster: RoadRaster,
    options: Tracing | None = None,
    *,
    block: int = BLOCK,
    workers: int = 1,
    advance: Advance | None = None,
) -> RoadNetwork:
    """Return the road network that a raster shows, with the speeds that it knows.

    Parameters
    ----------
    options
        Default: `Tracing()`.
    block
        Most pixels a side that are thinned at a time.
    workers
        Threads that thin blocks, with the same result however many; each holds a block.
    advance
        Called with blocks done and in all.

    Returns
    -------
    RoadNetwork
        In the UTM zone of the raster's middle; of a raster without a place in its own plane, in
        metres: x to the right, y up, 0 in its upper left corner.

    Raises
    ------
    ImageError
        The raster is damaged, noise, or road all over.
    """
    options = options or Tracing()
    lines = skeleton(raster, options, block=block, workers=workers, advance=advance)
    certain = options.certain if raster.kind == "probability" else 0.0
    network = pixel_network(lines, raster.gsd_m, certain=certain)
    network = parted(network, raster)
    network = without_spurs(network, options.spur_m, cut_off(network, raster))
    network = simplified(straightened(network, raster, options.threshold), options.simplify_m)
    network = merged_junctions(network)
    if options.repair:
        network = _mended(network, raster, options)
    network = without_crumbs(network, options.min_length_m)
    network = replace(network, speed_mph=edge_speeds(network, raster))
    network = separated(network, options.motorway_mph)
    return network if raster.place is None else _on_ground(network, raster)


def _mended(network: RoadNetwork, raster: RoadRaster, options: Tracing) -> RoadNetwork:
    def likelihood(start: NDArray[np.float64], stop: NDArray[np.float64]) -> NDArray[np.float64]:
        # The ends lie on roads: only what is between them says whether there is one.
        mean: NDArray[np.float64] = evidence_along(raster, start, stop).mean(axis=1) / 255
        return mean

    return merged_junctions(
        repaired(
            network,
            options,
            at_border=at_border(network.nodes, raster),
            likelihood=likelihood if raster.kind == "probability" else None,
        )
    )


def _on_ground(network: RoadNetwork, raster: RoadRaster) -> RoadNetwork:
    """Return a network of a raster's plane in the UTM zone of the raster's middle."""
    place = raster.place
    assert place is not None  # the caller has looked
    middle = place.transform * (place.width / 2, place.height / 2)
    utm = utm_crs(*transformer(place.crs, LONLAT).transform(*middle))

    def moved(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        col, row = xy[:, 0] / raster.gsd_m[0], -xy[:, 1] / raster.gsd_m[1]
        a, b, c, d, e, f = place.transform[:6]
        at = a * col + b * row + c, d * col + e * row + f
        return np.column_stack(transformer(place.crs, utm).transform(*at))

    lines = network.lines
    if len(lines):
        lines = shapely.set_coordinates(lines.copy(), moved(shapely.get_coordinates(lines)))
        network = replace(network, nodes=moved(network.nodes))
    return replace(network, lines=lines, crs=utm)
