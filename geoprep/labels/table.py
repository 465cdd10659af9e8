"""The roads of one label file in memory: lines and areas, their features, speeds and notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import is_geographic
from geoprep.errors import LabelError
from geoprep.labels.attributes import Properties, RoadSpeed, names_roads
from geoprep.labels.features import feature_classes, road_speeds, road_widths
from geoprep.labels.label_options import SPEED_FIELDS, SpeedRule
from geoprep.speed import NODATA, UNKNOWN_SPEED, to_byte

UNKNOWN_MPH: Final = 0.0
"""Speed of an area whose speed is unknown: the lowest, so that known speeds are drawn over it."""

_MAX_LON_DEG: Final = 360.0
_MAX_LAT_DEG: Final = 90.0
_AREA: Final = 2
"""Dimensions of a polygon, as shapely counts them."""
_UNTYPED: Final = frozenset(
    ("road_type missing", "road_type unknown", "highway missing", "highway unknown")
)
"""Notes of a road whose type is not known, so that its speed is a default."""
_AREA_OF_UNKNOWN_SPEED: Final = "area of unknown speed"
_AREA_IGNORED: Final = "area ignored"


@dataclass(frozen=True, slots=True)
class LabelRoads:
    """Roads of a label as lines and areas, with a speed (or class) each."""

    lines: NDArray[np.object_]  # 2-D LineStrings and Polygons; multi-part features are split
    mph: NDArray[np.float64]  # finite, `UNKNOWN_MPH` for some areas; `classed`: class + 1, 0 nodata
    crs: str  # x is easting or longitude
    notes: dict[str, int]  # why features were left out or got defaults -> number of features
    width: NDArray[np.float64] | None = None  # full, in metres, NaN where unknown
    classed: bool = False
    name: str = ""  # of the file, for messages

    def label_bytes(self, mph: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Return the label byte of every speed, or of every number of a class plus 1."""
        if self.classed:
            return np.where(mph > 0, mph - 1, NODATA).astype(np.uint8)
        return np.where(mph == UNKNOWN_MPH, np.uint8(UNKNOWN_SPEED), to_byte(mph))

    def half_widths(self, default: float) -> NDArray[np.float64]:
        """Return metres on either side of each line, ``default`` where the width is unknown."""
        if self.width is None:
            return np.full(len(self.lines), default)
        return np.where(np.isnan(self.width), default, self.width / 2)


@dataclass(frozen=True, slots=True)
class RoadTable:
    """Everything read from one label file, including features that are left out."""

    lines: NDArray[np.object_]  # (lines,), as in `LabelRoads`
    feature: NDArray[np.intp]  # (lines,), the feature that a line is part of
    mph: NDArray[np.float64]  # (features,), as in `LabelRoads`; NaN where cars may not drive
    notes: tuple[tuple[str, ...], ...]  # per feature: why it was left out, defaults that it got
    crs: str
    width: NDArray[np.float64]  # (features,)
    name: str  # of the file, for messages
    file_notes: tuple[str, ...] = ()
    ignored_speed_fields: tuple[str, ...] = ()  # which the file has and the rule does not read
    classed: bool = False

    def roads(self) -> LabelRoads:
        """Return all roads, with the notes of all features and of the file."""
        return self._of(np.arange(len(self.lines)), _count([*self.notes, self.file_notes]))

    def roads_at(self, chosen: NDArray[np.intp]) -> LabelRoads:
        """Return the roads among lines of ascending index, with the notes of their features."""
        features = np.unique(self.feature[chosen])
        return self._of(chosen, _count([self.notes[i] for i in features]))

    def _of(self, chosen: NDArray[np.intp], notes: dict[str, int]) -> LabelRoads:
        chosen = chosen[np.isfinite(self.mph[self.feature[chosen]])]
        feature = self.feature[chosen]
        return LabelRoads(
            self.lines[chosen],
            self.mph[feature],
            self.crs,
            notes,
            self.width[feature],
            self.classed,
            self.name,
        )

    @property
    def widest(self) -> float:
        """Half of the largest known width in metres; 0 if none is known."""
        return float(np.nanmax(self.width, initial=0.0)) / 2

    def lineless(self) -> dict[str, int]:
        """Return the notes of the features that have no line or area, counted."""
        without = np.setdiff1d(np.arange(len(self.notes)), self.feature)
        return _count([self.notes[i] for i in without])


def build_table(
    lines: NDArray[np.object_],
    feature: NDArray[np.intp],
    geometry_notes: Sequence[str],
    properties: Sequence[Properties],
    names: Collection[str],
    crs: str,
    rule: SpeedRule,
    name: str,
) -> RoadTable:
    """Return the table of a file: unusable lines removed, speeds and widths found.

    ``feature`` is the index of the feature that each line is part of, ascending; there is a note
    ("" for a usable geometry) and a mapping of properties per feature. ``names`` are those of all
    fields.
    """
    problems = list(geometry_notes)
    fine = np.ones(len(lines), dtype=bool)
    for line, problem in _bad_lines(lines, crs).items():
        fine[line] = False
        problems[feature[line]] = problem
    lines, feature = lines[fine], feature[fine]
    has_line = np.zeros(len(problems), dtype=bool)
    has_line[feature] = True
    areas = np.zeros(len(problems), dtype=bool)
    areas[feature[shapely.get_dimensions(lines) == _AREA]] = True
    if rule.classes is not None:
        speeds = feature_classes(properties, names, has_line.tolist(), rule.classes, name)
    else:
        speeds = road_speeds(properties, names, rule, name)
        if areas.any():
            speeds = _with_areas(speeds, areas, names, rule, name)
    widths, width_notes = road_widths(properties, names, rule, name)
    notes = []
    for i, (problem, speed) in enumerate(zip(problems, speeds, strict=True)):
        found = [problem, *(speed.notes if has_line[i] else ())]
        if has_line[i] and not areas[i] and math.isfinite(speed.mph):  # areas need no width
            found.append(width_notes[i])
        notes.append(tuple(filter(None, found)))
    mph = np.array([speed.mph for speed in speeds], dtype=np.float64)
    read = bool(rule.fields) or rule.classes is not None
    ignored = () if read else tuple(field for field in SPEED_FIELDS if field in names)
    return RoadTable(
        lines,
        feature,
        mph,
        tuple(notes),
        crs,
        np.array(widths, dtype=np.float64),
        name,
        ignored_speed_fields=ignored,
        classed=rule.classes is not None,
    )


def _with_areas(
    speeds: Sequence[RoadSpeed],
    areas: NDArray[np.bool_],
    names: Collection[str],
    rule: SpeedRule,
    name: str,
) -> list[RoadSpeed]:
    """Return the speeds of features, those of areas as the rule for areas gives them."""
    if rule.areas == "ignore":
        ignored = RoadSpeed(math.nan, (_AREA_IGNORED,))
        return [ignored if area else speed for speed, area in zip(speeds, areas, strict=True)]
    described = rule.needs_field or names_roads(names)
    if not described and rule.areas == "auto" and rule.where is None:
        raise LabelError(
            f"{name}: {int(areas.sum())} areas, and no road attributes (road_type, highway, "
            "fclass, ...): they may be buildings or land cover. Select the roads by `where`, an "
            "SQL condition; or set `areas` to road if all of them are roads, to ignore to leave "
            "them out"
        )
    unknown = RoadSpeed(UNKNOWN_MPH, (_AREA_OF_UNKNOWN_SPEED,))
    found = []
    for speed, area in zip(speeds, areas, strict=True):
        typed = described and _UNTYPED.isdisjoint(speed.notes)
        found.append(unknown if area and math.isfinite(speed.mph) and not typed else speed)
    return found


def _bad_lines(lines: NDArray[np.object_], crs: str) -> dict[int, str]:
    """Return the lines with invalid coordinates: index -> what is wrong with them."""
    xy, line = shapely.get_coordinates(lines, return_index=True)
    finite = np.isfinite(xy).all(axis=1)
    inside = finite
    if is_geographic(crs):
        inside = (np.abs(xy) <= (_MAX_LON_DEG, _MAX_LAT_DEG)).all(axis=1)
    if inside.all():
        return {}
    bad = dict.fromkeys(line[~inside].tolist(), "geometry out of range")
    return bad | dict.fromkeys(line[~finite].tolist(), "geometry not finite")


def _count(notes: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """Return note -> number of features, sorted by note."""
    return dict(sorted(Counter(note for each in notes for note in each).items()))
