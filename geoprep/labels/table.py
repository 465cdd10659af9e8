"""The roads of one label file in memory: lines and areas, their features, speeds and notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import is_geographic
from geoprep.labels.attributes import ROAD_FIELDS, Properties
from geoprep.labels.rule import SpeedRule, road_speeds, road_widths

_MAX_LON_DEG: Final = 360.0
_MAX_LAT_DEG: Final = 90.0
_AREA: Final = 2
"""Dimensions of a polygon, as shapely counts them."""

NAMELESS_AREA: Final = "area in a file without road attributes, taken for a road of default speed"
"""Such a file may be of road areas, and may be of buildings."""


@dataclass(frozen=True, slots=True)
class Roads:
    """Road lines, and areas that are road, with a speed each.

    Attributes
    ----------
    lines
        Object (n,): 2-D shapely LineStrings and Polygons; a feature of several parts is several.
    mph
        Float64 (n,): speed in mph, finite and above 0.
    crs
        CRS of the lines, as text that pyproj understands; x is east or longitude.
    notes
        What was left out or fell back to a default -> number of features.
    width
        Float64 (n,): full width in metres, NaN where none is told; None: told of no road.
    """

    lines: NDArray[np.object_]
    mph: NDArray[np.float64]
    crs: str
    notes: dict[str, int]
    width: NDArray[np.float64] | None = None

    def half_widths(self, default: float) -> NDArray[np.float64]:
        """Return metres on either side of each line, ``default`` where no width is told."""
        if self.width is None:
            return np.full(len(self.lines), default)
        return np.where(np.isnan(self.width), default, self.width / 2)


@dataclass(frozen=True, slots=True)
class RoadTable:
    """Everything read from one label file, left-out features included.

    Attributes
    ----------
    lines
        Object (m,): 2-D shapely LineStrings and Polygons that can be drawn.
    feature
        Int (m,): the feature that a line is part of.
    mph
        Float64 (n,): speed of each feature; NaN where no car drives.
    notes
        One tuple per feature: why it was left out, or which of its values fell back to a default.
    crs
        CRS of the lines.
    width
        Float64 (n,): full width of each feature in metres, NaN where none is told.
    file_notes
        What was noticed of the file, and is of no one feature.
    """

    lines: NDArray[np.object_]
    feature: NDArray[np.intp]
    mph: NDArray[np.float64]
    notes: tuple[tuple[str, ...], ...]
    crs: str
    width: NDArray[np.float64]
    file_notes: tuple[str, ...] = ()

    def roads(self) -> Roads:
        """Return all roads, and the notes of all features and of the file."""
        return self._of(np.arange(len(self.lines)), _count([*self.notes, self.file_notes]))

    def roads_at(self, chosen: NDArray[np.intp]) -> Roads:
        """Return the roads among the chosen lines, and the notes of the features they are part of.

        Parameters
        ----------
        chosen
            Indices of lines, ascending.
        """
        features = np.unique(self.feature[chosen])
        return self._of(chosen, _count([self.notes[i] for i in features]))

    def _of(self, chosen: NDArray[np.intp], notes: dict[str, int]) -> Roads:
        chosen = chosen[np.isfinite(self.mph[self.feature[chosen]])]
        feature = self.feature[chosen]
        return Roads(self.lines[chosen], self.mph[feature], self.crs, notes, self.width[feature])

    @property
    def widest(self) -> float:
        """Half of the greatest width that is told, metres."""
        return float(np.nanmax(self.width, initial=0.0)) / 2

    def lineless(self) -> dict[str, int]:
        """Return the notes of the features that have no line at all, and so no place."""
        without = np.setdiff1d(np.arange(len(self.notes)), self.feature)
        return _count([self.notes[i] for i in without])


def build_table(
    lines: NDArray[np.object_],
    feature: NDArray[np.intp],
    geometry_notes: Sequence[str],
    properties: Sequence[Properties],
    crs: str,
    rule: SpeedRule,
    name: str,
) -> RoadTable:
    """Return the table of a file from its parts, bad lines left out, speeds and widths found.

    Parameters
    ----------
    lines, feature
        2-D LineStrings and Polygons, and the index of the feature that each is part of, ascending.
    geometry_notes
        One text per feature, "" where its geometry is fine.
    properties
        One mapping per feature.
    crs, rule, name
        CRS of the lines; how to find speeds; the file, for messages.

    Raises
    ------
    LabelError
        If speeds shall come from a field that no feature has.
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
    speeds = road_speeds(properties, rule, name)
    widths, untold = road_widths(properties, rule, name)
    nameless = not rule.fields and not any(ROAD_FIELDS & each.keys() for each in properties)
    notes = []
    for i, (problem, speed) in enumerate(zip(problems, speeds, strict=True)):
        said = (NAMELESS_AREA,) if nameless and areas[i] else speed.notes
        found = [problem, *(said if has_line[i] else ())]
        if (
            has_line[i] and not areas[i] and math.isfinite(speed.mph)
        ):  # the width of an area does not matter
            found.append(untold[i])
        notes.append(tuple(filter(None, found)))
    mph = np.array([speed.mph for speed in speeds], dtype=np.float64)
    return RoadTable(lines, feature, mph, tuple(notes), crs, np.array(widths, dtype=np.float64))


def _bad_lines(lines: NDArray[np.object_], crs: str) -> dict[int, str]:
    """Return the lines that lie nowhere: index -> what is wrong with them."""
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
    """Return note -> number of features, by name, so that equal inputs print equally."""
    return dict(sorted(Counter(note for each in notes for note in each).items()))
