"""Options of vectorization and of scores: one field per option, with its default and help.

No heavy library is imported here, so that ``--help`` is fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final, Literal

from geoprep.choice import check_choices, choice
from geoprep.errors import UsageError

Kind = Literal["probability", "speed", "mask"]
TOPO_INTERVAL_M: Final = 5.0  # between the points that TOPO compares
TOPO_MATCH_M: Final = 10.0  # largest distance of two that match

LABEL_OPTIONS: Final = ("speed_from", "speed_field", "speed_unit", "layer", "where")
"""Options of label files that `score` has."""
_THRESHOLD: Final = 0.3
_RAISED_ODDS: Final = 7 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RasterOptions:
    """How rasters of roads are read."""

    kind: Kind | None = choice(
        None,
        "Input",
        "Meaning of pixel values: probability of a road, speed in mph (0 background, 255 nodata), "
        "or mask (road where not 0). Default: detected from tags and values.",
    )
    band: int | None = choice(
        None,
        "Input",
        "Band of roads, counted from 1. Default: detected from tags and band names.",
    )
    pixel_size: float | None = choice(
        None,
        "Input",
        "Pixel width in metres of rasters that are not georeferenced. Default: none.",
    )

    def __post_init__(self) -> None:
        check_choices(self, RasterOptions)
        _require_above_zero(pixel_size=self.pixel_size)


def _require_above_zero(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"`{name}` is {value}: set it above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """Options of tracing a raster: what counts as a road, and which gaps are closed.

    Defaults follow CRESI's ``04_skeletonize.py`` (in pixels of 0.3 m there) where it has the same
    step. Lengths are in metres, shares between 0 and 1.
    """

    threshold: float | None = choice(
        None,
        "Roads",
        "Minimum probability of road pixels, up to 1. Default: 0.3, or what makes a prediction's "
        "own threshold (its tag ROAD_THRESHOLD) the high threshold.",
    )
    high_threshold: float | None = choice(
        None,
        "Roads",
        "Probability, up to 1, that every connected component must reach at some pixel. Default: "
        "the odds of the threshold times 7/3, such as 0.5 for 0.3.",
    )
    spur_m: float = choice(
        10.0,
        "Roads",
        "Minimum length of a dead end at a junction in metres. Shorter ones are removed, except "
        "at the border of the rasters.",
        option="--min-spur",
    )
    min_length_m: float = choice(
        12.0,
        "Roads",
        "Minimum total length of a connected component in metres. Shorter ones are removed.",
        option="--min-length",
    )
    min_confidence: float = choice(
        0.0,
        "Roads",
        "Minimum mean probability along an edge. Edges below are removed; 0 keeps all.",
    )
    smoothing_m: float | None = choice(
        None,
        "Roads",
        "Standard deviation in metres of the Gaussian that smooths lines; 0 for none. Default: 2 "
        "pixels where pixels are larger than 0.75 m, at least 2 m for probabilities.",
        option="--smoothing",
    )
    path_m: float = choice(
        60.0,
        "Gaps",
        "Maximum length in metres of paths through probabilities along which dead ends are joined "
        "to other roads; 0 for none.",
        option="--max-path",
    )
    close_gaps: bool = choice(
        True,
        "Gaps",
        "Leave interrupted roads as they are. Default: gaps of up to 7 m are closed, longer ones "
        "where roads point at each other; in masks without any such gap dead ends are not "
        "extended.",
        option="--no-gap-closing",
    )
    motorway_mph: float = choice(
        60.0,
        "Bridges",
        "Speed in mph above which a road has no level crossings: slower roads cross it on a "
        "bridge.",
    )
    min_area_m2: float = 27.0  # of a patch of road
    min_hole_m2: float = 27.0  # of a hole in a road
    max_width_m: float = 30.0  # roads that lead into wider areas are connected along their edge
    simplify_m: float = 0.6  # largest distance of a simplified line from the smoothed one
    gap_m: float = 7.0  # largest gap between two dead ends of any heading
    aligned_gap_m: float = 24.0  # the same for dead ends that point at each other
    likely_gap_m: float = 50.0  # the same where probabilities between them suggest a road
    reach_m: float = 12.0  # largest extension of a dead end to meet another road
    hint: float = 0.1  # mean probability along a gap that suggests a road

    def __post_init__(self) -> None:
        for share in ("threshold", "high_threshold", "hint"):
            value = getattr(self, share)
            if value is not None and not 0 < value <= 1:
                raise UsageError(f"`{share}` is {value}: set it above 0 and to at most 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"`{field.name}` is {value}: set it to a number of at least 0")
        if self.min_confidence > 1:
            raise UsageError(f"`min_confidence` is {self.min_confidence}: set it to at most 1")
        if self.max_width_m <= 0:
            raise UsageError("`max_width_m` is 0, which leaves no road: set it above 0")

    def thresholds(self, tagged: float | None) -> tuple[float, float]:
        """Return the threshold and the high threshold of a raster that may state its own."""
        low = self.threshold
        if low is None:
            low = _THRESHOLD if tagged is None else _at_odds(tagged, 1 / _RAISED_ODDS)
        high = _at_odds(low, _RAISED_ODDS) if self.high_threshold is None else self.high_threshold
        return low, high


def _at_odds(probability: float, factor: float) -> float:
    """Return the probability whose odds are those of another one times a factor."""
    return round(factor * probability / (1 + (factor - 1) * probability), 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions:
    """Options of APLS and TOPO."""

    pixel_size: float | None = choice(
        None,
        "Input",
        "Pixel size of tables without images, and of adjacency dictionaries (default there: 1).",
        metavar="METRES",
    )
    snap: float = choice(
        4.0,
        "APLS",
        "Largest distance of a control point from the other network. Published figures of "
        "SpaceNet's samples used 4, those of Paris 5.",
        metavar="METRES",
    )
    control_point_spacing: float = choice(
        50.0,
        "APLS",
        "Distance of control points along edges; 0: nodes only.",
        metavar="METRES",
    )
    topo_radius: float = choice(
        150.0,
        "TOPO",
        "Distance by road from each starting point; 300 for scenes of 2 km.",
        metavar="METRES",
    )
    topo_starts: int | None = choice(
        None, "TOPO", "Largest number of starting points per scene; default: all."
    )
    seed: int = choice(0, "TOPO", "Random seed for choosing starting points.")

    def __post_init__(self) -> None:
        check_choices(self, ScoreOptions)
        _require_above_zero(
            pixel_size=self.pixel_size,
            snap=self.snap,
            topo_radius=self.topo_radius,
            topo_starts=self.topo_starts,
        )
        if not 0 <= self.control_point_spacing < math.inf:
            raise UsageError(
                f"`control_point_spacing` is {self.control_point_spacing}: set it to at least 0"
            )
