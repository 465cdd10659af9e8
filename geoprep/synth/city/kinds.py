"""Kinds of road: attributes, widths and speeds.

Width, markings and roadside follow from class and lanes, so that speed can be learned from images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import shapely

from geoprep.labels import HIGHWAY_TYPES
from geoprep.speed import table_mph
from geoprep.synth.city.lattice import Rank

Surface = Literal["paved", "unpaved"] | None

# highway: (metres per lane, metres beyond the lanes in all on roads of up to 2 lanes and of more,
# roadside kept free of buildings, drawing order). Beyond the lanes are the hard shoulders of
# motorways and of primaries of 2 lanes, the cycle lanes of secondaries of 2 lanes, the median of
# primaries of 4.
_GEOMETRY: dict[str, tuple[float, float, float, float, int]] = {
    "motorway": (3.75, 3.0, 3.0, 11.0, 7),
    "motorway_link": (4.2, 1.4, 1.4, 6.0, 6),
    "primary": (3.6, 3.6, 3.0, 7.0, 5),
    "secondary": (3.3, 2.8, 1.0, 6.0, 4),
    "tertiary": (3.1, 0.6, 0.6, 5.0, 3),
    "residential": (2.9, 0.0, 0.0, 3.6, 2),
    "unclassified": (2.6, 0.0, 0.0, 2.6, 1),
    "service": (3.6, 0.0, 0.0, 1.4, 1),
    "track": (2.6, 0.0, 0.0, 1.0, 0),
}
MEDIAN_M = 1.8
"""Width of the hatched median of primaries of 4 lanes."""
URBAN, RURAL = 0.62, 0.34
"""Zone values above which a place is urban and below which it is rural."""


class Kind(NamedTuple):
    """Attributes that determine the appearance and the speed of a road."""

    highway: str
    lanes: int
    surface: Surface

    @property
    def paved(self) -> bool:
        """True if the road is drawn and rated as paved; an unknown surface is rated as unpaved."""
        return self.surface == "paved"

    @property
    def lane(self) -> float:
        """Width of a lane in metres."""
        return _GEOMETRY[self.highway][0]

    @property
    def width(self) -> float:
        """Width of the carriageway in metres."""
        return self.lane * self.lanes + _GEOMETRY[self.highway][2 if self.lanes > 2 else 1]

    @property
    def median(self) -> float:
        """Width of the painted median in metres."""
        return MEDIAN_M if self.highway == "primary" and self.lanes > 2 else 0.0

    @property
    def roadside(self) -> float:
        """Metres beside the carriageway that stay free of buildings."""
        return _GEOMETRY[self.highway][3]

    @property
    def order(self) -> int:
        """Drawing order: of two crossing roads, the one with the higher order is drawn last."""
        return _GEOMETRY[self.highway][4]

    @property
    def mph(self) -> float:
        """Speed by the SpaceNet 5 rule (type, lanes, surface)."""
        return table_mph(HIGHWAY_TYPES[self.highway], self.lanes, self.paved)


@dataclass(frozen=True, slots=True)
class Road:
    """One stretch of road with equal attributes."""

    line: shapely.LineString  # metres of the frame
    kind: Kind
    bridge: bool
    street: int  # stretches of one street have one age and colour of asphalt


MOTORWAY = Kind("motorway", 3, "paved")
RAMP = Kind("motorway_link", 1, "paved")
DRIVEWAY = Kind("service", 1, "paved")
FARM_TRACK = Kind("track", 1, "unpaved")


# Kinds of minor streets, each with the chance of it or of one before.
_PAVED = Kind("residential", 2, "paved"), Kind("unclassified", 2, "paved")
_URBAN = ((0.85, _PAVED[0]), (1.0, _PAVED[1]))
_SUBURBAN = (
    (0.7, _PAVED[0]),
    (0.9, Kind("residential", 2, "unpaved")),
    (1.0, Kind("unclassified", 2, None)),
)
_RURAL = (
    (0.35, _PAVED[1]),
    (0.65, Kind("unclassified", 2, "unpaved")),
    (0.85, FARM_TRACK),
    (1.0, Kind("track", 1, None)),
)


def draw_kind(rank: Rank, zone: float, rng: np.random.Generator) -> Kind:
    """Draw the attributes of a stretch of street from its rank and how urban the place is."""
    chance = rng.random()
    if rank == "primary":
        return Kind("primary", 4 if zone > 0.42 else 2, "paved")
    if rank == "secondary":
        lanes = 4 if zone > 0.5 and chance < 0.55 else 2
        rough = zone < RURAL and chance > 0.8
        return Kind("secondary", lanes, None if rough else "paved")
    if rank == "tertiary":
        if zone < 0.5 and chance < 0.22:
            return Kind("tertiary", 2, "unpaved")
        return Kind("tertiary", 3 if chance > 0.88 else 2, "paved")
    minor = _URBAN if zone > URBAN else _SUBURBAN if zone > RURAL else _RURAL
    return next(kind for limit, kind in minor if chance < limit)
