"""Speed and confidence of every edge, sampled from a raster along its line."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.roads.centrelines.rasters import RoadRaster, values_at
from geoprep.roads.graph import degrees, ranges
from geoprep.roads.network import RoadGraph, points_along
from geoprep.speed import BACKGROUND, UNKNOWN_SPEED

Floats = NDArray[np.float64]

_STEP_M: Final = 1.0
_JUNCTION_M: Final = 8.0
"""Pixels this close to a junction may belong to the other road."""
_WINDOW: Final = 15
"""Number of samples on either side that vote on the most likely speed."""
_ROUNDS: Final = 4


def edge_speeds(network: RoadGraph, raster: RoadRaster) -> Floats:
    """Return the speed of every edge in mph, float64 (edge,); NaN where the raster has none.

    The line is sampled every metre, except for 8 m (or a third of a short edge) next to junctions,
    where a faster road may overlap. With probabilities of speed classes, a sample has the most
    likely class within 15 m either way along the line; with a band of speeds, that of its pixel.
    The speed of an edge is the harmonic mean of its samples, so that travel times are right. An
    edge without a sample on a road (a closed gap) gets the mean speed of the edges it joins.
    """
    if not len(network.lines) or not (raster.speed_classes or raster.speed_band):
        return np.full(len(network.lines), np.nan)
    xy, edge = _samples(network)
    mph = _class_speeds(raster, xy, edge) if raster.speed_classes else _pixel_speeds(raster, xy)
    known = mph > 0
    count = np.bincount(edge[known], minlength=len(network.lines))
    slowness = np.bincount(edge[known], weights=1 / mph[known], minlength=len(network.lines))
    with np.errstate(invalid="ignore", divide="ignore"):
        speeds: Floats = count / slowness
    return with_gaps_filled(network, speeds)


def edge_confidence(network: RoadGraph, raster: RoadRaster) -> Floats:
    """Return mean and least probability of a road along every edge, float64 (edge, 2), 0 to 1.

    The whole line is sampled every metre, closed gaps included.
    """
    xy, edge = _samples(network, 0.0)
    shares = values_at(raster, xy, raster.probability) / 255
    count = np.bincount(edge, minlength=len(network.lines))
    least = np.ones(len(network.lines))
    np.minimum.at(least, edge, shares)
    mean = np.bincount(edge, weights=shares, minlength=len(count)) / np.maximum(count, 1)
    return np.column_stack([mean, least])


def _samples(
    network: RoadGraph, junction_m: float = _JUNCTION_M
) -> tuple[Floats, NDArray[np.int64]]:
    """Return sample points along all lines, float64 (sample, 2), and the edge of each."""
    length, junction = network.length_m, degrees(network) > 2
    near = np.minimum(junction_m, length / 3)
    begin = np.where(junction[network.ends[:, 0]], near, 0.0)
    stop = length - np.where(junction[network.ends[:, 1]], near, 0.0)
    counts = np.maximum(1, np.round((stop - begin) / _STEP_M)).astype(np.int64)
    edge = np.repeat(np.arange(len(counts)), counts)
    number = ranges(np.zeros_like(counts), counts)
    along = begin[edge] + (number + 0.5) * ((stop - begin) / counts)[edge]
    return points_along(network.lines, edge, along), edge


def _class_speeds(raster: RoadRaster, xy: Floats, edge: NDArray[np.int64]) -> Floats:
    """Return the mph of the most likely class around every sample, 0 if none has a probability."""
    bands = [partial(raster.bands.read, band) for band, _ in raster.speed_classes]
    shares = np.column_stack([values_at(raster, xy, read) for read in bands]).astype(np.float64)
    if raster.nodata is not None:
        shares[shares == raster.nodata] = 0
    sums = np.concatenate([np.zeros((1, shares.shape[1])), np.cumsum(shares, axis=0)])
    first = np.searchsorted(edge, edge, "left")
    last = np.searchsorted(edge, edge, "right")
    here = np.arange(len(edge))
    around = sums[np.minimum(here + _WINDOW + 1, last)] - sums[np.maximum(here - _WINDOW, first)]
    mph = np.array([mph for _, mph in raster.speed_classes])
    return np.where(around.max(axis=1) > 0, mph[around.argmax(axis=1)], 0.0)


def _pixel_speeds(raster: RoadRaster, xy: Floats) -> Floats:
    """Return the mph under every sample, 0 for background, nodata and unknown speeds."""
    mph = values_at(raster, xy, partial(raster.bands.read, raster.speed_band)).astype(np.float64)
    return np.where(np.isfinite(mph) & (mph < UNKNOWN_SPEED), mph, BACKGROUND)


def with_gaps_filled(network: RoadGraph, speeds: Floats) -> Floats:
    """Return speeds in which edges without one get the length-weighted mean of their neighbours."""
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
