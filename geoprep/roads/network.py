"""A road network as arrays: nodes, edges between them, the line and the speed of every edge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import NDArray

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
