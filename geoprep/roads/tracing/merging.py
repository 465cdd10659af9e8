"""Networks of neighbouring or overlapping rasters to one, connected across their borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.graph import degrees, joined_at_ends, side_by_side, with_links
from geoprep.roads.network import RoadGraph, points
from geoprep.roads.tracing.bridges import with_bridges
from geoprep.roads.tracing.junctions import with_junctions_merged
from geoprep.roads.tracing.speeds import with_gaps_filled

_SEEN_M: Final = 6.0
"""A road of the next raster is the same as an existing one within this distance of it."""
_RIM_M: Final = 12.0
"""A raster may miss roads, or have no data, this close to its border: other rasters add to it."""
LINK_M: Final = 10.0
"""A road that was cut at a border is linked to the nearest road within this distance."""
_BORDER_M: Final = 8.0
"""A dead end within this distance of the outlines of two rasters ends because the raster does."""
_SAME_M: Final = 0.01


@dataclass(frozen=True, slots=True)
class TileNetwork:
    """The network of one raster and the outline of that raster, in one CRS."""

    network: RoadGraph
    outline: shapely.Geometry


def merged(tiles: Sequence[TileNetwork], *, motorway_mph: float) -> RoadGraph:
    """Return one network of several.

    Where rasters overlap the first one counts. From each of the others, roads are dropped inside
    earlier rasters (except for a rim along their border) and along existing roads; roads that are
    cut by this are linked to the nearest road.

    Parameters
    ----------
    tiles
        All in the same CRS.
    motorway_mph
        As in `Tracing`: a crossing at a border is complete only once its roads are joined.
    """
    if len(tiles) == 1:
        return tiles[0].network
    outlines = np.array([tile.outline for tile in tiles], object)
    tree = shapely.STRtree(outlines)
    parts: list[RoadGraph] = []
    cuts: list[NDArray[np.float64]] = []
    for number, tile in enumerate(tiles):
        near = tree.query(tile.outline, predicate="dwithin", distance=LINK_M)
        part, cut = _additions(
            tile, [(parts[i], outlines[i]) for i in near[near < number].tolist()]
        )
        parts.append(part)
        cuts.append(cut)
    linked = _linked(side_by_side(parts), np.concatenate(cuts), outlines)
    linked = with_junctions_merged(linked)
    speeds = with_gaps_filled(linked, linked.speed_mph)
    whole = with_bridges(replace(linked, speed_mph=speeds), motorway_mph)
    return replace(whole, confidence=_confidence(whole, [tile.network for tile in tiles]))


def _confidence(network: RoadGraph, parts: Sequence[RoadGraph]) -> NDArray[np.float64] | None:
    """Return the confidence of the nearest edge of all parts to the middle of every edge."""
    known = [part.confidence for part in parts if part.confidence is not None]
    if len(known) < len(parts):
        return None
    middles = shapely.line_interpolate_point(network.lines, 0.5, normalized=True)
    tree = shapely.STRtree(np.concatenate([part.lines for part in parts]))
    confidence: NDArray[np.float64] = np.concatenate(known)[tree.nearest(middles)]
    return confidence


def _additions(
    tile: TileNetwork, others: Sequence[tuple[RoadGraph, shapely.Geometry]]
) -> tuple[RoadGraph, NDArray[np.float64]]:
    """Return what a tile network adds to others, and the points where its roads were cut."""
    network, none = tile.network, np.empty((0, 2))
    if not others or not len(network.lines):
        return network, none
    near = shapely.buffer(tile.outline, _SEEN_M)
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
    """Return which points are within a centimetre of any of the others, bool (point,)."""
    from scipy.spatial import cKDTree

    if not len(points) or not len(others):
        return np.zeros(len(points), np.bool_)
    distance, _ = cKDTree(others).query(points, distance_upper_bound=_SAME_M)
    return np.asarray(np.isfinite(distance), np.bool_)


def _linked(
    network: RoadGraph, cuts: NDArray[np.float64], outlines: NDArray[np.object_]
) -> RoadGraph:
    """Link the dead ends that cutting made, then those that remain where two rasters meet."""
    network = _linked_to_nearest(network, lambda xy: _is_among(xy, cuts))
    borders = shapely.STRtree(shapely.boundary(outlines))

    def between_two(xy: NDArray[np.float64]) -> NDArray[np.bool_]:
        met, _ = borders.query(points(xy), predicate="dwithin", distance=_BORDER_M)
        return np.bincount(met, minlength=len(xy)) > 1

    return _linked_to_nearest(network, between_two)


def _linked_to_nearest(
    network: RoadGraph, is_loose: Callable[[NDArray[np.float64]], NDArray[np.bool_]]
) -> RoadGraph:
    """Link the loose dead ends to the nearest edge other than their own."""
    tips = np.flatnonzero(degrees(network) == 1)
    tips = tips[is_loose(network.nodes[tips])]
    places = points(network.nodes[tips])
    flat = network.ends.reshape(-1)
    order = np.argsort(flat, kind="stable")
    own = order[np.searchsorted(flat[order], tips)] // 2
    tip, edge = shapely.STRtree(network.lines).query(places, predicate="dwithin", distance=LINK_M)
    foreign = edge != own[tip]
    tip, edge = tip[foreign], edge[foreign]
    nearest = np.lexsort((shapely.distance(places[tip], network.lines[edge]), tip))
    _, first = np.unique(tip[nearest], return_index=True)
    tip, edge = tip[nearest[first]], edge[nearest[first]]
    along: NDArray[np.float64] = shapely.line_locate_point(network.lines[edge], places[tip])
    return with_links(network, tips[tip], edge, along)
