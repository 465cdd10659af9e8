"""A road network as arrays: nodes, edges between them, the line and the speed of every edge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import ArrayLike, NDArray

from geoprep.errors import UsageError
from geoprep.speed import MPS_PER_MPH


@dataclass(frozen=True, slots=True, eq=False)
class RoadNetwork:
    """An undirected multigraph of roads, in metres.

    Attributes
    ----------
    nodes
        float64 (node, 2): x and y in metres.
    ends
        int64 (edge, 2): rows of ``nodes`` that an edge joins. Loops and parallel edges are edges
        like any other.
    lines
        object (edge,): shapely LineStrings in metres, from the first end to the second.
    speed_mph
        float64 (edge,): NaN where nobody knows the speed.
    crs
        A projected CRS in metres as pyproj understands it, or None: a plain plane of metres (x to
        the right, y up), for rasters without a place on the ground.
    """

    nodes: NDArray[np.float64]
    ends: NDArray[np.int64]
    lines: NDArray[np.object_]
    speed_mph: NDArray[np.float64]
    crs: str | None

    @property
    def length_m(self) -> NDArray[np.float64]:
        """Length of every edge along its line, in metres, float64 (edge,)."""
        lengths: NDArray[np.float64] = shapely.length(self.lines)
        return lengths

    @property
    def travel_time_s(self) -> NDArray[np.float64]:
        """Seconds that every edge takes at its speed, float64 (edge,); NaN where it is unknown."""
        return self.length_m / (self.speed_mph * MPS_PER_MPH)


def check_network(network: RoadNetwork, name: str) -> None:
    """Raise an error if the arrays of a network do not fit together or are not finite.

    Unknown speeds (NaN) pass.

    Parameters
    ----------
    network
        Network to check.
    name
        Name of the network in error messages, such as its file.

    Raises
    ------
    UsageError
        A coordinate is not finite, an edge refers to a node that does not exist or has no line, a
        speed is 0, negative or infinite, or the arrays differ in length.
    """
    edges = len(network.ends)
    if not edges == len(network.lines) == len(network.speed_mph):
        raise UsageError(
            f"{name}: {edges} edges, {len(network.lines)} lines and {len(network.speed_mph)} "
            "speeds; every edge needs one line and one speed"
        )
    _refuse(
        name, ~np.isfinite(network.nodes).all(axis=1), "node", "has coordinates that are not finite"
    )
    if not edges:
        return
    dangling = ((network.ends < 0) | (network.ends >= len(network.nodes))).any(axis=1)
    _refuse(name, dangling, "edge", "ends at a node that is not in the network")
    lines = shapely.get_type_id(network.lines) == shapely.GeometryType.LINESTRING
    _refuse(name, ~lines | shapely.is_empty(network.lines), "edge", "has no LineString")
    xy, line = shapely.get_coordinates(network.lines, return_index=True)
    infinite = np.zeros(edges, dtype=bool)
    infinite[line[~np.isfinite(xy).all(axis=1)]] = True
    _refuse(name, infinite, "edge", "has coordinates that are not finite")
    bad = (network.speed_mph <= 0) | np.isinf(network.speed_mph)
    _refuse(
        name, bad, "edge", "has a speed that is not above 0 and finite; use NaN if it is unknown"
    )


def _refuse(name: str, wrong: ArrayLike, kind: str, problem: str) -> None:
    bad = np.asarray(wrong, dtype=bool)
    if bad.any():
        more = f" ({int(bad.sum())} in all)" if bad.sum() > 1 else ""
        raise UsageError(
            f"{name}: {kind} {int(np.argmax(bad))} {problem}{more}. Correct the network."
        )
