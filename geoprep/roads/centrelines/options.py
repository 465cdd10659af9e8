"""Options of tracing: every length in metres, every share between 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from geoprep.errors import UsageError

_THRESHOLD: Final = 0.3
_RAISED_ODDS: Final = 7 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """Options of tracing a raster: what counts as a road, and which gaps are closed.

    Defaults follow CRESI's ``04_skeletonize.py`` (in pixels of 0.3 m there) where it has the same
    step.

    Attributes
    ----------
    threshold
        Minimum probability of road pixels. None: 0.3, or what makes a prediction's own threshold
        (its tag ``ROAD_THRESHOLD``) the high threshold.
    high_threshold
        Probability that every connected component must reach at some pixel (hysteresis). Pixels of
        masks and of speeds have the probability 1. None: the odds of the threshold times 7/3, such
        as 0.5 for 0.3.
    min_area_m2, min_hole_m2
        Minimum area of a patch of road, and of a hole in it, in square metres.
    max_width_m
        Maximum width of a road in metres. The inside of wider areas (a car park, an apron) is
        removed; roads that lead into them are connected along their edge.
    spur_m
        Minimum length of a dead end at a junction in metres. Dead ends cut off by the raster's
        border are kept.
    smoothing_m
        Standard deviation in metres of the Gaussian that smooths lines between nodes; 0: none.
        None: two pixels where pixels are larger than 1.25 ``simplify_m`` (they leave staircases),
        and at least 2 m for probabilities (predicted roads have ragged edges).
    simplify_m
        Maximum distance in metres between a simplified line and the smoothed line.
    gap_m
        Maximum gap in metres between two dead ends of any heading.
    aligned_gap_m
        Maximum gap in metres between two dead ends that point at each other.
    likely_gap_m
        The same, where the probabilities between them suggest a road. Paths replace the part above
        ``aligned_gap_m``.
    path_m
        Maximum length in metres of paths through probabilities along which dead ends are joined to
        other roads; 0: none.
    reach_m
        Maximum distance in metres over which a dead end is extended to meet another road.
    hint
        Mean probability along a gap from which on it suggests a road.
    min_length_m
        Minimum total length of a connected component in metres.
    min_confidence
        Minimum mean probability along an edge. Only probabilities have any; 0 keeps all edges.
    motorway_mph
        Speed in mph above which a road has no level crossings: other roads cross it on a bridge.
    close_gaps
        Whether gaps are closed.
    """

    threshold: float | None = None
    high_threshold: float | None = None
    min_area_m2: float = 27.0
    min_hole_m2: float = 27.0
    max_width_m: float = 30.0
    spur_m: float = 10.0
    smoothing_m: float | None = None
    simplify_m: float = 0.6
    gap_m: float = 7.0
    aligned_gap_m: float = 24.0
    likely_gap_m: float = 50.0
    path_m: float = 60.0
    reach_m: float = 12.0
    hint: float = 0.1
    min_length_m: float = 12.0
    min_confidence: float = 0.0
    motorway_mph: float = 60.0
    close_gaps: bool = True

    def __post_init__(self) -> None:
        for share in ("threshold", "high_threshold", "hint"):
            value = getattr(self, share)
            if value is not None and not 0 < value <= 1:
                raise UsageError(f"`{share}` is {value}: set it above 0 and to at most 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if not value >= 0 or value == float("inf"):
                raise UsageError(f"`{field.name}` is {value}: set it to a number of at least 0")
        if self.min_confidence > 1:
            raise UsageError(f"`min_confidence` is {self.min_confidence}: set it to at most 1")
        if self.max_width_m <= 0:
            raise UsageError("`max_width_m` is 0, which leaves no road: set it above 0")

    def thresholds(self, tagged: float | None) -> tuple[float, float]:
        """Return the threshold and the high threshold of a raster.

        Parameters
        ----------
        tagged
            Threshold that the raster states; None: none.
        """
        low = self.threshold
        if low is None:
            low = _THRESHOLD if tagged is None else _at_odds(tagged, 1 / _RAISED_ODDS)
        high = _at_odds(low, _RAISED_ODDS) if self.high_threshold is None else self.high_threshold
        return low, high


def _at_odds(probability: float, factor: float) -> float:
    """Return the probability whose odds are those of another one times a factor."""
    return round(factor * probability / (1 + (factor - 1) * probability), 6)
