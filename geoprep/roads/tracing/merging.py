"""Networks of neighbouring or overlapping rasters to one, connected across their borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.network import RoadNetwork
from geoprep.roads.shapes import points
from geoprep.roads.tracing.bridges import separated
from geoprep.roads.tracing.pruning import degrees
from geoprep.roads.tracing.repair import merged_junctions
from geoprep.roads.tracing.speeds import handed_on
from geoprep.roads.tracing.splitting import joined_at_ends, with_joins

_SEEN_M: Final = 6.0
"""As near as this to a road that is there, a road of the next raster is the same."""
_RIM_M: Final = 12.0
"""So near to its border a raster may miss roads, or have no data: others may add to it."""
_JOIN_M: Final = 10.0
"""As far as this a road that was cut at a border looks for the one that it goes on in."""
_BORDER_M: Final = 8.0
"""So near to the outlines of two rasters a road ends because the raster does."""
_SAME_M: Final = 0.01


@dataclass(frozen=True, slots=True)
class Sheet:
    """The network of one raster and the ground that the raster covers, in one CRS."""

    network: RoadNetwork
    outline: shapely.Geometry


def merged(sheets: Sequence[Sheet], *, motorway_mph: float) -> RoadNetwork:
    """Return one network of several.

    Where rasters overlap the first one counts. Of the next, what lies on ground that is covered
    (but for a rim along its border), or along a road that is there, is left out; roads cut by that
    are joined to the nearest road.

    Parameters
    ----------
    sheets
        All in the same CRS.
    motorway_mph
        As in `Tracing`: a crossing at a border is known for what it is once its arms are joined.
    """
    if len(sheets) == 1:
        return sheets[0].network
    outlines = np.array([sheet.outline for sheet in sheets], object)
    tree = shapely.STRtree(outlines)
    parts: list[RoadNetwork] = []
    cuts: list[NDArray[np.float64]] = []
    for number, sheet in enumerate(sheets):
        near = tree.query(sheet.outline, predicate="dwithin", distance=_JOIN_M)
        part, cut = _rest(sheet, [(parts[i], outlines[i]) for i in near[near < number].tolist()])
        parts.append(part)
        cuts.append(cut)
    tied = merged_junctions(_tied(_together(parts), np.concatenate(cuts), outlines))
    return separated(replace(tied, speed_mph=handed_on(tied, tied.speed_mph)), motorway_mph)


def _rest(
    sheet: Sheet, others: Sequence[tuple[RoadNetwork, shapely.Geometry]]
) -> tuple[RoadNetwork, NDArray[np.float64]]:
    """Return what a sheet adds to others, and the places where its roads were cut."""
    network, nowhere = sheet.network, np.empty((0, 2))
    if not others or not len(network.lines):
        return network, nowhere
    near = shapely.buffer(sheet.outline, _SEEN_M)
    shapely.prepare(near)
    roads = np.concatenate([part.lines[shapely.intersects(near, part.lines)] for part, _ in others])
    seen = shapely.union_all(
        [
            *(shapely.buffer(outline, -_RIM_M) for _, outline in others),
            *shapely.buffer(roads, _SEEN_M, quad_segs=4),
        ]
    )
    shapely.prepare(seen)
    touched = shapely.intersects(seen, network.lines)
    left = shapely.difference(network.lines[touched], seen)
    left = shapely.line_merge(left)
    pieces, source = shapely.get_parts(left, return_index=True)
    real = shapely.length(pieces) > _SAME_M
    pieces, source = pieces[real], np.flatnonzero(touched)[source[real]]
    lines = np.concatenate([network.lines[~touched], pieces])
    speed = np.concatenate([network.speed_mph[~touched], network.speed_mph[source]])
    rest = joined_at_ends(lines, speed, network.crs)
    tips = rest.nodes[degrees(rest) == 1]
    was_tip = network.nodes[degrees(network) == 1]
    return rest, tips[~_is_among(tips, was_tip)]


def _is_among(points: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which points are (to a centimetre) among others."""
    from scipy.spatial import cKDTree

    if not len(points) or not len(others):
        return np.zeros(len(points), np.bool_)
    distance, _ = cKDTree(others).query(points, distance_upper_bound=_SAME_M)
    return np.asarray(np.isfinite(distance), np.bool_)


def _together(parts: Sequence[RoadNetwork]) -> RoadNetwork:
    """Return networks side by side as one."""
    before = np.cumsum([0, *(len(part.nodes) for part in parts[:-1])])
    return RoadNetwork(
        nodes=np.concatenate([part.nodes for part in parts]),
        ends=np.concatenate([p.ends + k for p, k in zip(parts, before.tolist(), strict=True)]),
        lines=np.concatenate([part.lines for part in parts]),
        speed_mph=np.concatenate([part.speed_mph for part in parts]),
        crs=parts[0].crs,
    )


def _tied(
    network: RoadNetwork, cuts: NDArray[np.float64], outlines: NDArray[np.object_]
) -> RoadNetwork:
    """Join the dead ends that cutting made, then those left where two rasters meet."""
    network = _joined_to_nearest(network, lambda xy: _is_among(xy, cuts))
    borders = shapely.STRtree(shapely.boundary(outlines))

    def between_two(xy: NDArray[np.float64]) -> NDArray[np.bool_]:
        met, _ = borders.query(points(xy), predicate="dwithin", distance=_BORDER_M)
        return np.bincount(met, minlength=len(xy)) > 1

    return _joined_to_nearest(network, between_two)


def _joined_to_nearest(
    network: RoadNetwork, loose: Callable[[NDArray[np.float64]], NDArray[np.bool_]]
) -> RoadNetwork:
    """Join the loose ones among the dead ends to the nearest edge but their own."""
    tips = np.flatnonzero(degrees(network) == 1)
    tips = tips[loose(network.nodes[tips])]
    places = points(network.nodes[tips])
    flat = network.ends.reshape(-1)
    order = np.argsort(flat, kind="stable")
    own = order[np.searchsorted(flat[order], tips)] // 2
    tip, edge = shapely.STRtree(network.lines).query(places, predicate="dwithin", distance=_JOIN_M)
    foreign = edge != own[tip]
    tip, edge = tip[foreign], edge[foreign]
    nearest = np.lexsort((shapely.distance(places[tip], network.lines[edge]), tip))
    _, first = np.unique(tip[nearest], return_index=True)
    tip, edge = tip[nearest[first]], edge[nearest[first]]
    along: NDArray[np.float64] = shapely.line_locate_point(network.lines[edge], places[tip])
    return with_joins(network, tips[tip], edge, along)
