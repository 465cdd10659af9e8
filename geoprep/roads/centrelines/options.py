"""How roads are traced: every length in metres, every share between 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass, fields

from geoprep.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """What counts as a road, and what is mended.

    The working values are those of the CRESI tools (``04_skeletonize.py``, given there in pixels of
    0.3 m) where they have one, in metres.

    Attributes
    ----------
    threshold
        Least probability of a road's pixels.
    certain
        Probability that some pixel of every connected network must reach (hysteresis). Masks and
        speeds count as 1.
    min_area_m2, min_hole_m2
        Patches of road, and holes in it, that are smaller go.
    max_width_m
        What is wider (a car park, an apron) is no road: its inside is taken out, and roads that
        lead into it are joined along its edge.
    spur_m
        Dead ends that are shorter go, but for those cut off by the raster's border.
    simplify_m
        How far a line may leave the pixels it follows.
    gap_m
        Two dead ends as near as this are joined whatever way they point.
    aligned_gap_m
        Two dead ends that point at each other are joined over this distance.
    likely_gap_m
        As far as this, where the probabilities in between speak for a road.
    reach_m
        How far a dead end is drawn on to meet the road that it points at.
    hint
        Mean probability along a gap that speaks for a road.
    min_length_m
        Connected parts of the network that are shorter in all go.
    motorway_mph
        Faster roads have no level crossings: what crosses them does so on a bridge.
    repair
        Whether gaps are closed at all.
    """

    threshold: float = 0.3
    certain: float = 0.5
    min_area_m2: float = 27.0
    min_hole_m2: float = 27.0
    max_width_m: float = 30.0
    spur_m: float = 10.0
    simplify_m: float = 0.6
    gap_m: float = 7.0
    aligned_gap_m: float = 24.0
    likely_gap_m: float = 50.0
    reach_m: float = 12.0
    hint: float = 0.1
    min_length_m: float = 12.0
    motorway_mph: float = 60.0
    repair: bool = True

    def __post_init__(self) -> None:
        for share in ("threshold", "certain", "hint"):
            if not 0 < getattr(self, share) <= 1:
                raise UsageError(f"{share} {getattr(self, share)}: give more than 0 and at most 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if not value >= 0 or value == float("inf"):
                raise UsageError(f"{field.name} {value}: give a number of at least 0")
        if self.max_width_m <= 0:
            raise UsageError("max_width_m 0 leaves no road: give more than 0")
