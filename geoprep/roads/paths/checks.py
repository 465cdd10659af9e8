"""Refusing a network that no path can be measured on."""

from __future__ import annotations

import numpy as np
import shapely
from numpy.typing import ArrayLike

from geoprep.errors import UsageError
from geoprep.roads.network import RoadNetwork


def check_network(network: RoadNetwork, name: str) -> None:
    """Refuse a network whose arrays do not fit together, or that lies nowhere.

    Unknown speeds (NaN) are fine here: who needs speeds asks for them.

    Parameters
    ----------
    name
        The network, for messages: a file, or its part in what is done.

    Raises
    ------
    UsageError
        Coordinates are not finite, an edge names a node that is not there, an edge has no line, a
        speed is 0, negative or infinite, or the arrays differ in length.
    """
    edges = len(network.ends)
    if not edges == len(network.lines) == len(network.speed_mph):
        raise UsageError(
            f"{name}: {edges} edges, {len(network.lines)} lines and {len(network.speed_mph)} "
            "speeds; every edge needs one of each"
        )
    _refuse(name, ~np.isfinite(network.nodes).all(axis=1), "node", "is at no finite place")
    if not edges:
        return
    dangling = ((network.ends < 0) | (network.ends >= len(network.nodes))).any(axis=1)
    _refuse(name, dangling, "edge", "ends at a node that is not in the network")
    lines = shapely.get_type_id(network.lines) == shapely.GeometryType.LINESTRING
    _refuse(name, ~lines | shapely.is_empty(network.lines), "edge", "has no LineString")
    xy, line = shapely.get_coordinates(network.lines, return_index=True)
    lost = np.zeros(edges, dtype=bool)
    lost[line[~np.isfinite(xy).all(axis=1)]] = True
    _refuse(name, lost, "edge", "has a point at no finite place")
    bad = (network.speed_mph <= 0) | np.isinf(network.speed_mph)
    _refuse(name, bad, "edge", "has a speed that no car drives; write NaN where it is not known")


def _refuse(name: str, wrong: ArrayLike, kind: str, why: str) -> None:
    bad = np.asarray(wrong, dtype=bool)
    if bad.any():
        more = f" ({int(bad.sum())} like it)" if bad.sum() > 1 else ""
        raise UsageError(f"{name}: {kind} {int(np.argmax(bad))} {why}{more}; mend the network")
