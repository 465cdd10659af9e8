"""A road network as arrays: nodes, edges between them, the line and the speed of every edge."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyproj
import shapely
from numpy.typing import ArrayLike, NDArray

from geoprep.crs import LONLAT, moved, reproject
from geoprep.errors import GeoprepError, UsageError
from geoprep.speed import MPS_PER_MPH

_UTM: Final = re.compile(r"EPSG:32[67](0[1-9]|[1-5]\d|60)")
_GEOD: Final = pyproj.Geod(ellps="WGS84")
_FALSE_EASTING_M: Final = 500_000.0
SPEED_BACK: Final = "speed_mph_back"
LEVELS: Final = ("bridge", "tunnel", "layer")
ATTRIBUTES: Final = (SPEED_BACK, "highway", *LEVELS)
"""Speed in mph from the last node to the first, NaN where it is that of the edge; tags as text."""
_HALF_ZONE_M: Final = 350_000.0
"""A UTM zone is at most 334 km wide on either side of its central meridian."""


@dataclass(frozen=True, slots=True)
class Plane:
    """The plane of a raster: metres, x to the right, y up, 0 in its upper left corner."""

    gsd_m: tuple[float, float]

    @property
    def _size(self) -> NDArray[np.float64]:
        return np.array([self.gsd_m[0], -self.gsd_m[1]])

    def to_metres(self, pixels: NDArray[Any]) -> NDArray[np.float64]:
        """Return columns and rows in pixels, (..., 2), as x and y."""
        return np.asarray(pixels * self._size, np.float64)

    def to_pixels(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return x and y, (..., 2), as columns and rows in pixels."""
        return np.asarray(xy / self._size, np.float64)


@dataclass(frozen=True, eq=False)
class RoadGraph:
    """An undirected multigraph of roads, in metres."""

    nodes: NDArray[np.float64]  # (node, 2): x and y in metres
    # int64 (edge, 2): the two nodes of every edge, as rows of ``nodes``. Loops and parallel edges
    # are allowed
    ends: NDArray[np.int64]
    # (edge,): shapely LineStrings in metres, from the first node to the second
    lines: NDArray[np.object_]
    speed_mph: NDArray[np.float64]  # (edge,): speed in miles per hour, NaN if unknown
    # A projected CRS in metres as pyproj understands it. None for a network that is not
    # georeferenced: its plane has x to the right and y up, in metres
    crs: str | None
    # float64 (edge, 2): mean and least probability of a road along the line, 0 to 1; None if the
    # network was not traced from probabilities
    confidence: NDArray[np.float64] | None = None
    # What a file states about its edges beside their speeds (`ATTRIBUTES`), by name, (edge,)
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @cached_property
    def length_m(self) -> NDArray[np.float64]:
        """Length of every edge along its line in metres on the ground, float64 (edge,)."""
        lengths: NDArray[np.float64] = shapely.length(self.lines) / self.stretch
        lengths.flags.writeable = False
        return lengths

    @cached_property
    def stretch(self) -> NDArray[np.float64]:
        """Plane length of every edge divided by its length on the ground, float64 (edge,).

        1 but for edges that leave their UTM zone, whose plane is stretched there: by 0.2 % to 0.5 %
        at the far side of the next zone, by 2.7 % between Moscow and Mumbai. Positions along edges
        are metres on the ground; multiplied by this they are positions along the lines, as shapely
        measures them.
        """
        stretch = np.ones(len(self.ends))
        if self.crs is not None and _UTM.fullmatch(self.crs):
            aside = np.abs(self.nodes[self.ends, 0] - _FALSE_EASTING_M)
            outside = (aside > _HALF_ZONE_M).any(axis=1)
            if outside.any():
                metres = _geodesic_length(self.lines[outside], self.crs)
                stretch[outside] = shapely.length(self.lines[outside]) / metres
        return stretch

    def parts(
        self,
        nodes: NDArray[np.float64],
        ends: NDArray[np.int64],
        lines: NDArray[np.object_],
        edges: NDArray[Any] | list[int],
    ) -> RoadGraph:
        """Return the network of lines that are edges of this one, or parts of them."""
        confidence = None if self.confidence is None else self.confidence[edges]
        attributes = {name: values[edges] for name, values in self.attributes.items()}
        speed = self.speed_mph[edges]
        return RoadGraph(nodes, ends, lines, speed, self.crs, confidence, attributes)

    @property
    def travel_time_s(self) -> NDArray[np.float64]:
        """Travel time of every edge at its speed in seconds, float64 (edge,); NaN if unknown."""
        return self.length_m / (self.speed_mph * MPS_PER_MPH)


def _geodesic_length(lines: NDArray[np.object_], crs: str) -> NDArray[np.float64]:
    """Return the lengths of lines on the WGS 84 ellipsoid in metres, float64 (line,)."""
    xy, line = shapely.get_coordinates(lines, return_index=True)
    lon, lat = moved(xy, crs, LONLAT).T
    _, _, metres = _GEOD.inv(lon[:-1], lat[:-1], lon[1:], lat[1:])
    same = line[:-1] == line[1:]
    lengths: NDArray[np.float64] = np.bincount(
        line[:-1][same], weights=np.asarray(metres)[same], minlength=len(lines)
    ).astype(np.float64)
    return lengths


def in_crs(network: RoadGraph, crs: str) -> RoadGraph:
    """Return a network in another projected CRS.

    A network that is not georeferenced is returned unchanged.
    """
    if network.crs is None or network.crs == crs:
        return network
    nodes = moved(network.nodes, network.crs, crs)
    lines = reproject(network.lines, network.crs, crs)
    if not np.isfinite(nodes).all() or not np.isfinite(shapely.get_coordinates(lines)).all():
        raise GeoprepError(
            f"part of the road network in {network.crs[:60]} has no coordinates in {crs[:60]}: "
            "check the CRS of the inputs"
        )
    return replace(network, nodes=nodes, lines=lines, crs=crs)


def check_network(network: RoadGraph, name: str) -> None:
    """Raise UsageError if coordinates are not finite, or speeds neither unknown nor above 0."""
    not_finite = "has coordinates that are not finite"
    _refuse(name, ~np.isfinite(network.nodes).all(axis=1), "node", not_finite)
    xy, line = shapely.get_coordinates(network.lines, return_index=True)
    infinite = np.isin(np.arange(len(network.lines)), line[~np.isfinite(xy).all(axis=1)])
    _refuse(name, infinite, "edge", not_finite)
    wrong = (network.speed_mph <= 0) | np.isinf(network.speed_mph)
    _refuse(
        name, wrong, "edge", "has a speed that is not above 0 and finite; use NaN if it is unknown"
    )


def _refuse(name: str, wrong: ArrayLike, kind: str, problem: str) -> None:
    bad = np.asarray(wrong, np.bool_)
    if bad.any():
        more = f" ({int(bad.sum())} in all)" if bad.sum() > 1 else ""
        raise UsageError(
            f"{name}: {kind} {int(np.argmax(bad))} {problem}{more}. Correct the network."
        )


def empty_network(crs: str | None) -> RoadGraph:
    """Return a network without nodes and edges."""
    none = np.empty((0, 2))
    return RoadGraph(none, none.astype(np.int64), np.empty(0, object), np.empty(0), crs)


def points(xy: NDArray[np.float64]) -> NDArray[np.object_]:
    """Return one shapely point per row of float64 (point, 2)."""
    return np.asarray(shapely.points(xy), object)


def line_ends(lines: NDArray[np.object_]) -> NDArray[np.float64]:
    """Return the first and last point of every line, float64 (line, 2, 2)."""
    first, last = (shapely.get_coordinates(shapely.get_point(lines, at)) for at in (0, -1))
    return np.stack([first, last], axis=1)


def points_along(
    lines: NDArray[np.object_], line: NDArray[np.int64], along: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the points at distances along lines, float64 (point, 2); ``line`` is that of each.

    `shapely.line_interpolate_point` starts at the first vertex of the line for every point.

    Examples
    --------
    >>> lines = segments(np.array([[(0, 0), (10, 0)], [(10, 0), (10, 8)]]))
    >>> points_along(lines, np.array([0, 1]), np.array([2.5, 6.0])).tolist()
    [[2.5, 0.0], [10.0, 6.0]]
    """
    if not len(line):
        return np.zeros((0, 2))
    xy, of = shapely.get_coordinates(lines, return_index=True)
    begins = np.append(True, of[1:] != of[:-1])
    steps = np.append(0.0, np.linalg.norm(np.diff(xy, axis=0), axis=1))
    # Position along all lines in a row, a metre apart, so that it rises from line to line.
    place = np.cumsum(np.where(begins, 1.0, steps))
    at = place[begins][line] + along
    return np.column_stack([np.interp(at, place, values) for values in xy.T])


def segments(ends: NDArray[np.float64]) -> NDArray[np.object_]:
    """Return straight lines between the two points of every row of float64 (line, 2, 2)."""
    return np.asarray(shapely.linestrings(ends), object)


def line_strings(xy: NDArray[np.float64], line: NDArray[np.int64]) -> NDArray[np.object_]:
    """Return lines from their vertices."""
    return np.asarray(shapely.linestrings(xy, indices=line), object)
