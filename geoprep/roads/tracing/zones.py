"""Networks of rasters anywhere on Earth to one network: joined where near, exact where distant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyproj
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, transformer, utm_crs
from geoprep.grid import Grid
from geoprep.roads.graph import connected, side_by_side
from geoprep.roads.network import RoadGraph, in_crs
from geoprep.roads.tracing.merging import LINK_M, TileNetwork, merged
from geoprep.roads.tracing.steps import centre_of

_SIDE_POINTS: Final = 5
"""Points that each side of a raster is followed at when it is projected."""
_REGION_KM: Final = 300.0
"""Rasters of which all centres lie within this distance of their mean share a UTM zone."""
_METRES_PER_DEGREE: Final = 111_320.0


def merged_in_zones(
    networks: Sequence[RoadGraph], grids: Sequence[Sequence[Grid]], *, motorway_mph: float
) -> RoadGraph:
    """Return one network of several, connected where their rasters are neighbours.

    Networks of one region are joined in its UTM zone. Networks of distant regions are each joined
    in a zone of their own, where metres are metres, and then placed side by side.

    Parameters
    ----------
    networks
        One per raster or mosaic of rasters.
    grids
        The grids of the rasters of every network.
    motorway_mph
        As in `Tracing`.

    Returns
    -------
    RoadGraph
        In the UTM zone of the mean centre of all rasters.
    """
    crs = common_utm_crs([grid for several in grids for grid in several])
    regions = _regions(grids)
    parts = []
    for region in regions:
        own = crs if len(regions) == 1 else common_utm_crs([g for i in region for g in grids[i]])
        tiles = [
            TileNetwork(
                in_crs(networks[i], own),
                shapely.union_all([_outline(grid, own) for grid in grids[i]]),
            )
            for i in region
        ]
        parts.append(in_crs(merged(tiles, motorway_mph=motorway_mph), crs))
    return parts[0] if len(parts) == 1 else side_by_side(parts)


def _regions(grids: Sequence[Sequence[Grid]]) -> list[list[int]]:
    """Return the groups of networks that are joined in one UTM zone, as indices.

    All networks of a region no wider than a zone are one group; otherwise those that touch.
    """
    everything = list(range(len(grids)))
    centres = np.array([centre_of(grid) for several in grids for grid in several])
    lon, lat = mean_place(centres)
    _, _, away = pyproj.Geod(ellps="WGS84").inv(
        centres[:, 0], centres[:, 1], np.full(len(centres), lon), np.full(len(centres), lat)
    )
    if max(away) <= _REGION_KM * 1000:
        return [everything]
    boxes = np.array([_lonlat_bounds(several) for several in grids])
    shifted = np.concatenate(
        [boxes, boxes + np.array([360, 0, 360, 0])]
    )  # neighbours at 180 degrees
    shapes = shapely.box(*shifted.T)
    one, other = shapely.STRtree(shapes).query(shapes, "intersects")
    count, group = connected(np.stack([one, other], axis=1) % len(grids), len(grids))
    groups = [np.flatnonzero(group == number).tolist() for number in range(count)]
    return sorted(groups)


def _lonlat_bounds(grids: Sequence[Grid]) -> NDArray[np.float64]:
    """Return west, south, east, north of rasters in degrees, with a margin to link roads over.

    East is above 180 for rasters across the antimeridian.
    """
    lon, lat = np.concatenate([shapely.get_coordinates(_outline(grid, LONLAT)) for grid in grids]).T
    lon = np.where(lon < lon[0] - 180, lon + 360, np.where(lon > lon[0] + 180, lon - 360, lon))
    up = LINK_M / _METRES_PER_DEGREE
    aside = up / max(math.cos(math.radians(min(float(np.abs(lat).max()), 89.0))), 1e-3)
    return np.array([lon.min() - aside, lat.min() - up, lon.max() + aside, lat.max() + up])


def _outline(grid: Grid, crs: str) -> shapely.Polygon:
    """Return the ground of a raster as a polygon in a CRS, each side followed at a few points."""
    share = np.linspace(0, 1, _SIDE_POINTS)[:-1]
    x = np.concatenate([share, np.ones_like(share), 1 - share, np.zeros_like(share)]) * grid.width
    y = np.concatenate([np.zeros_like(share), share, np.ones_like(share), 1 - share]) * grid.height
    a, b, c, d, e, f = grid.transform[:6]
    corners = transformer(grid.crs, crs).transform(a * x + b * y + c, d * x + e * y + f)
    return shapely.Polygon(np.column_stack(corners))


def common_utm_crs(grids: Sequence[Grid]) -> str:
    """Return the UTM zone of the mean centre of rasters."""
    return utm_crs(*mean_place(np.array([centre_of(grid) for grid in grids])))


def mean_place(lonlat: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean longitude, the shorter way around the Earth, and latitude in degrees.

    Parameters
    ----------
    lonlat
        float64 (place, 2): degrees.
    """
    lon, lat = lonlat.T
    east = np.exp(1j * np.radians(lon)).mean()
    return math.degrees(math.atan2(east.imag, east.real)), float(lat.mean())
