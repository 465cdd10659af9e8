"""Options of vectorization and of scores: one field per option, with its default and help.

No heavy library is imported here, so that ``--help`` is fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from geoprep.options import option

Kind = Literal["probability", "speed", "mask"]
TOPO_INTERVAL_M: Final = 5.0  # between the points that TOPO compares
TOPO_MATCH_M: Final = 10.0  # largest distance of two that match

LABEL_OPTIONS: Final = ("speed_from", "speed_field", "speed_unit", "layer", "where")
"""Options of label files that `score` has."""
# Options by the heading of the help text that they stand under.
_input, _roads, _gaps, _apls, _topo = (
    partial(option, section=name) for name in ("Input", "Roads", "Gaps", "APLS", "TOPO")
)
_THRESHOLD: Final = 0.3
_RAISED_ODDS: Final = 7 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RasterOptions:
    """How rasters of roads are read."""

    kind: Kind | None = _input(
        None,
        "Meaning of pixel values: probability of a road, speed in mph (0 background, 255 nodata), "
        "or mask (road where not 0). Default: detected from tags and values.",
    )
    band: int | None = _input(
        None, "Band of roads, counted from 1. Default: detected from tags and band names."
    )
    pixel_size: float | None = _input(
        None, "Pixel width in metres of rasters that are not georeferenced. Default: none.", above=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """Options of tracing a raster: what counts as a road, and which gaps are closed.

    Defaults follow CRESI's ``04_skeletonize.py`` (in pixels of 0.3 m there) where it has the same
    step. Lengths are in metres, shares between 0 and 1.
    """

    threshold: float | None = _roads(
        None,
        "Minimum probability of road pixels, up to 1. Default: 0.3; for predictions the value "
        "that belongs to their own threshold (tag ROAD_THRESHOLD) as high threshold.",
        above=0,
        most=1,
    )
    high_threshold: float | None = _roads(
        None,
        "Probability, up to 1, that every connected component must reach at some pixel. Default: "
        "the odds of the threshold times 7/3, such as 0.5 for 0.3.",
        above=0,
        most=1,
    )
    spur_m: float = _roads(
        10.0,
        "Minimum length of a dead end at a junction in metres. Shorter ones are removed, except "
        "at the border of the rasters.",
        least=0,
        flag="--min-spur",
    )
    min_length_m: float = _roads(
        12.0,
        "Minimum total length of a connected component in metres. Shorter ones are removed.",
        least=0,
        flag="--min-length",
    )
    min_confidence: float = _roads(
        0.0,
        "Minimum mean probability along an edge. Edges below are removed; 0 keeps all.",
        least=0,
        most=1,
    )
    smoothing_m: float | None = _roads(
        None,
        "Standard deviation in metres of the Gaussian that smooths lines; 0 for none. Default: 2 "
        "pixels where pixels are larger than 0.75 m, at least 2 m for probabilities.",
        least=0,
        flag="--smoothing",
    )
    path_m: float = _gaps(
        60.0,
        "Maximum length in metres of paths through probabilities along which dead ends are joined "
        "to other roads; 0 for none.",
        least=0,
        flag="--max-path",
    )
    close_gaps: bool = _gaps(
        True,
        "Leave interrupted roads as they are. Default: gaps of up to 7 m are closed, longer ones "
        "where roads point at each other; in masks without any such gap dead ends are not "
        "extended.",
        flag="--no-gap-closing",
    )
    motorway_mph: float = option(
        60.0,
        "Speed in mph above which a road has no level crossings: slower roads cross it on a "
        "bridge.",
        least=0,
        section="Bridges",
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

    pixel_size: float | None = _input(
        None,
        "Pixel size of tables without images, and of adjacency dictionaries (default there: 1).",
        "METRES",
        above=0,
    )
    snap: float = _apls(
        4.0,
        "Largest distance of a control point from the other network. Published figures of "
        "SpaceNet's samples used 4, those of Paris 5.",
        "METRES",
        above=0,
    )
    control_point_spacing: float = _apls(
        50.0, "Distance of control points along edges; 0: nodes only.", "METRES", least=0
    )
    topo_radius: float = _topo(
        150.0,
        "Distance by road from each starting point; 300 for scenes of 2 km.",
        "METRES",
        above=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """Options of comparing a map with a proposal."""

    distance: float = _roads(
        10.0, "Largest distance of two roads that are the same.", "METRES", above=0
    )
    min_length: float = _roads(
        20.0,
        "Minimum length of missing or unconfirmed roads that are connected.",
        "METRES",
        least=0,
    )
    apply_offset: bool = _roads(
        False, "Move the proposal by the systematic offset of the map before comparing."
    )
