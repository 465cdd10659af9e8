"""Where a network lies: its UTM zone, and the way from one CRS to another."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from geoprep.crs import reproject, transformer
from geoprep.roads.network import RoadNetwork

_ZONE_DEG: Final = 6
_ZONES: Final = 60


def utm_crs(lon: float, lat: float) -> str:
    """Return the UTM zone of a place on WGS 84; south of the equator the southern one.

    Southern zones count northings from 10,000 km south of the equator, so that none is negative.

    Examples
    --------
    >>> utm_crs(-115.17, 36.24), utm_crs(39.28, -6.8)
    ('EPSG:32611', 'EPSG:32737')
    """
    zone = math.floor((lon + 180) / _ZONE_DEG) % _ZONES + 1
    return f"EPSG:{(32600 if lat >= 0 else 32700) + zone}"


def in_crs(network: RoadNetwork, crs: str) -> RoadNetwork:
    """Return a network in another projected CRS. One without a place stays where it is."""
    if network.crs is None or network.crs == crs:
        return network
    x, y = transformer(network.crs, crs).transform(*network.nodes.T)
    lines = reproject(network.lines, network.crs, crs)
    return replace(network, nodes=np.column_stack([x, y]), lines=lines, crs=crs)
