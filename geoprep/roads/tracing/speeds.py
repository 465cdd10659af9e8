"""How fast every road is: what a raster says all along its line."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.centrelines.sampling import values_at
from geoprep.roads.network import RoadNetwork
from geoprep.roads.tracing.pruning import degrees
from geoprep.speed import BACKGROUND, UNKNOWN_SPEED

Floats = NDArray[np.float64]

_STEP_M: Final = 1.0
_JUNCTION_M: Final = 8.0
"""So near to a junction the raster may speak of the other road."""
_WINDOW: Final = 15
"""Samples on either side that decide together which speed is the likeliest."""
_ROUNDS: Final = 4


def edge_speeds(network: RoadNetwork, raster: RoadRaster) -> Floats:
    """Return the speed of every edge in mph, float64 (edge,); NaN where the raster knows none.

    The line is sampled every metre, but for 8 m (or a third of a short edge) next to junctions,
    where a faster road may lie on top. Of a map with probabilities the speed at a sample is that of
    the likeliest bin within 15 m either way along the line; of a raster of speeds it is the
    pixel's. The edge has the speed that takes as long as all its samples together. An edge without
    a sample on a road (a gap that was closed) has the mean speed of the edges that it joins.

    Parameters
    ----------
    network
        In the raster's plane.
    """
    if not len(network.lines) or not (raster.classes or raster.speed):
        return np.full(len(network.lines), np.nan)
    xy, edge = _samples(network)
    mph = _likeliest(raster, xy, edge) if raster.classes else _pixel_speeds(raster, xy)
    known = mph > 0
    count = np.bincount(edge[known], minlength=len(network.lines))
    slowness = np.bincount(edge[known], weights=1 / mph[known], minlength=len(network.lines))
    with np.errstate(invalid="ignore", divide="ignore"):
        speeds: Floats = count / slowness
    return handed_on(network, speeds)


def _samples(network: RoadNetwork) -> tuple[Floats, NDArray[np.int64]]:
    """Return places along all lines, and the edge that each is on."""
    length, junction = network.length_m, degrees(network) > 2
    near = np.minimum(_JUNCTION_M, length / 3)
    begin = np.where(junction[network.ends[:, 0]], near, 0.0)
    stop = length - np.where(junction[network.ends[:, 1]], near, 0.0)
    counts = np.maximum(1, np.round((stop - begin) / _STEP_M)).astype(np.int64)
    edge = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    along = begin[edge] + (number + 0.5) * ((stop - begin) / counts)[edge]
    return shapely.get_coordinates(shapely.line_interpolate_point(network.lines[edge], along)), edge


def _likeliest(raster: RoadRaster, xy: Floats, edge: NDArray[np.int64]) -> Floats:
    """Return the mph of the likeliest bin around every sample, 0 where none is likely at all."""

    def bins(*window: int) -> NDArray[Any]:
        bands = [raster.pixels.read(band, *window) for band, _ in raster.classes]
        return np.moveaxis(np.stack(bands), 0, -1)

    shares = values_at(raster, xy, bins).astype(np.float64)
    if raster.nodata is not None:
        shares[shares == raster.nodata] = 0
    sums = np.concatenate([np.zeros((1, shares.shape[1])), np.cumsum(shares, axis=0)])
    first = np.searchsorted(edge, edge, "left")
    last = np.searchsorted(edge, edge, "right")
    here = np.arange(len(edge))
    around = sums[np.minimum(here + _WINDOW + 1, last)] - sums[np.maximum(here - _WINDOW, first)]
    mph = np.array([mph for _, mph in raster.classes])
    return np.where(around.max(axis=1) > 0, mph[around.argmax(axis=1)], 0.0)


def _pixel_speeds(raster: RoadRaster, xy: Floats) -> Floats:
    """Return the mph under every sample, 0 where there is no road or its speed is not known."""
    mph = values_at(raster, xy, partial(raster.pixels.read, raster.speed)).astype(np.float64)
    return np.where(np.isfinite(mph) & (mph < UNKNOWN_SPEED), mph, BACKGROUND)


def handed_on(network: RoadNetwork, speeds: Floats) -> Floats:
    """Give edges of unknown speed the mean of their neighbours', weighted by length."""
    count, length = len(network.nodes), network.length_m
    for _ in range(_ROUNDS):
        known = np.isfinite(speeds)
        if known.all() or not known.any():
            break
        flat, weight = network.ends[known].reshape(-1), np.repeat(length[known], 2)
        near = np.bincount(flat, weights=weight, minlength=count)
        total = np.bincount(flat, weights=weight * np.repeat(speeds[known], 2), minlength=count)
        around = near[network.ends].sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = total[network.ends].sum(axis=1) / around
        speeds = np.where(known, speeds, mean)
    return speeds
