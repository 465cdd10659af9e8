"""Road networks in another CRS."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from geoprep.crs import reproject, transformer
from geoprep.roads.network import RoadNetwork


def in_crs(network: RoadNetwork, crs: str) -> RoadNetwork:
    """Return a network in another projected CRS. One without a place stays where it is."""
    if network.crs is None or network.crs == crs:
        return network
    x, y = transformer(network.crs, crs).transform(*network.nodes.T)
    lines = reproject(network.lines, network.crs, crs)
    return replace(network, nodes=np.column_stack([x, y]), lines=lines, crs=crs)
