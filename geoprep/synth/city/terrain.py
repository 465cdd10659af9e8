"""Terrain of a synthetic city: density zones, and corridors that streets have to cross."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry.base import BaseGeometry

from geoprep.synth.city.frame import Frame
from geoprep.synth.city.kinds import MOTORWAY
from geoprep.synth.city.lattice import Edge, Lattice, Points

_MEDIAN_M = 4.0
CARRIAGEWAY_M = (MOTORWAY.width + _MEDIAN_M) / 2
"""Distance in metres from the motorway's axis to the centre line of either carriageway."""
CORRIDOR_M = CARRIAGEWAY_M + MOTORWAY.width / 2
"""Half width of the motorway, median included."""
RAIL_M = 4.2
"""Half width of the railway's ballast."""
_RIVER_M = (9.0, 15.0)


@dataclass(frozen=True, slots=True)
class Corridors:
    """Obstacles that streets cross on bridges, or not at all, as polygons in metres."""

    motorway: BaseGeometry
    river: BaseGeometry
    rail: BaseGeometry
    rail_axis: shapely.LineString


@dataclass(frozen=True, slots=True)
class Zones:
    """How urban a place is: 0 fields and forest, 1 the dense centre. Smooth."""

    centre: Points
    reach: float
    waves: Points
    phases: Points

    def __call__(self, xy: Points) -> NDArray[np.float64]:
        """Return the zone value of points (..., 2)."""
        hills = np.sin(xy @ self.waves.T + self.phases).sum(-1)
        away = np.hypot(*np.moveaxis(xy - self.centre, -1, 0)) / self.reach
        value: NDArray[np.float64] = np.clip(0.66 + 0.22 * hills - 0.28 * away, 0, 1)
        return value


def make_zones(frame: Frame, rng: np.random.Generator) -> Zones:
    """Draw the density zones of a city."""
    centre = np.array(frame.extent) / 2
    heading, length = rng.uniform(0, 2 * np.pi, 2), rng.uniform(500, 900, 2)
    waves = (2 * np.pi / length * np.stack((np.cos(heading), np.sin(heading)))).T
    return Zones(centre, float(np.hypot(*centre)), waves, rng.uniform(0, 2 * np.pi, 2))


def make_corridors(lattice: Lattice, rng: np.random.Generator) -> Corridors:
    """Lay the motorways' corridors, a river between two rows and a railway between two columns."""
    axes = [
        shapely.LineString(motorway_axis(lattice, i))
        for i, rank in enumerate(lattice.columns)
        if rank == "motorway"
    ]
    river = shapely.LineString(lattice.path(1, lattice.river, rng.uniform(3, 9, 2)))
    rail = shapely.LineString(lattice.path(0, lattice.rail, np.array([0.0, rng.uniform(2, 6)])))
    return Corridors(
        shapely.union_all(shapely.buffer(axes, CORRIDOR_M)),
        river.buffer(rng.uniform(*_RIVER_M)),
        rail.buffer(RAIL_M),
        rail,
    )


def motorway_axis(lattice: Lattice, column: int) -> Points:
    """Return the middle line (n, 2) of the motorway along a column."""
    curves = [lattice.curves[Edge(0, column, j)] for j in range(len(lattice.v) - 1)]
    return np.concatenate([c[:-1] for c in curves] + [curves[-1][-1:]])
