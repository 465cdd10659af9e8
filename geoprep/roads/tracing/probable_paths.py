"""Links of dead ends along the paths of least cost through the probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.graph import anchored
from geoprep.roads.network import RoadGraph, points
from geoprep.roads.options import Tracing
from geoprep.roads.tracing.gaps import DeadEnds, Links
from geoprep.roads.tracing.pruning import simplified, smoothed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CELL_M: Final = 1.2
"""Paths are searched in cells of about this size."""
_BLOCK_M: Final = 1200.0
"""Side of the squares whose probabilities are read at a time."""
_LEAST: Final = 0.01
"""Probability that every cell of a path reaches."""
_MEAN: Final = 0.15
"""Mean probability that a path reaches."""
_GAIN: Final = 0.9
"""Mean probability of a path, divided by that of the straight line and by the ratio of their
lengths, that a path reaches: a detour has to be as much more probable as it is longer."""
_DETOUR: Final = 1.5
"""Maximum ratio of the lengths of a path and of the straight line."""
_STEPS_M: Final = 3.0
"""A path may be longer than that by this: the steps from cell to cell do not follow a line."""
_PARALLEL_COS: Final = np.cos(np.radians(30))
"""A path to a road that is parallel to its dead end, within 30 degrees, runs in that direction."""
_SAME_M: Final = 6.0
"""A path that reaches a road closer than this to its dead end leads to the dead end."""
_WEIGHT: Final = 0.8
"""Cost of a link per metre: straight links cost 1, where they are probable at least 0.5."""
_COST: Final = 0.05 - np.log(np.clip(np.arange(256) / 255, _LEAST, 0.98))
"""Cost of a path per metre, by the probability of a road from 0 to 255."""
_CLOSED: Final = -1.0
"""Cost of cells that no path enters."""


def links_along_paths(
    network: RoadGraph, ends: DeadEnds, raster: RoadRaster, options: Tracing, smoothing_m: float
) -> Links:
    """Return the candidate links of dead ends along paths through the probabilities.

    From a dead end the path of least cost (the negative logarithm of the probability, per metre)
    leads ahead to the first other road. It is accepted by its probability, that of the straight
    line, its length and its direction, and if it crosses no road once it is smoothed.
    """
    tree = shapely.STRtree(network.lines)
    paths: list[_Path] = []
    blocks, block = np.unique(ends.xy // _BLOCK_M, axis=0, return_inverse=True)
    for number in range(len(blocks)):
        numbers = np.flatnonzero(block.reshape(-1) == number)
        place = ends.xy[numbers] * [1, -1]
        low, high = place.min(axis=0) - options.path_m, place.max(axis=0) + options.path_m
        cells = _Cells(network, tree, raster, low, high)
        from_block = (cells.path(ends, dead_end, options.path_m) for dead_end in numbers.tolist())
        paths += filter(None, from_block)
    if not paths:
        none = np.empty(0, np.int64)
        return Links.straight(none, none, none, np.empty(0), np.empty(0))
    end, edge = np.array([(path.end, path.edge) for path in paths]).T
    lines = np.array([shapely.LineString(path.xy) for path in paths], object)
    stop = np.array([path.xy[-1] for path in paths])
    along = shapely.line_locate_point(network.lines[edge], points(stop))
    good = _lengths_fit(paths, lines, options.path_m)
    good &= _directions_fit(ends.heading[end], stop - ends.xy[end], network.lines[edge], along)
    end, edge, along, lines = end[good], edge[good], along[good], lines[good]
    other, along = _at_dead_ends(network, ends, edge, along)
    stops = shapely.line_interpolate_point(network.lines[edge], along)
    nodes = np.stack([ends.xy[end], shapely.get_coordinates(stops)], axis=1)
    pairs = np.arange(2 * len(end)).reshape(-1, 2)
    lines = anchored(lines, pairs, nodes.reshape(-1, 2))
    ways = RoadGraph(nodes.reshape(-1, 2), pairs, lines, np.full(len(end), np.nan), network.crs)
    ways = simplified(smoothed(ways, smoothing_m, _CELL_M), options.simplify_m)
    links = Links(end, other, edge, along, _WEIGHT * ways.length_m, ways.lines)
    return links.take(_crosses_none(ways, network, tree))


def _lengths_fit(
    paths: list[_Path], lines: NDArray[np.object_], reach_m: float
) -> NDArray[np.bool_]:
    """Return whether paths are no longer than their probability allows."""
    length = shapely.length(lines)
    distance = np.array([np.linalg.norm(path.xy[-1] - path.xy[0]) for path in paths])
    mean = np.array([path.probability for path in paths])
    straight = np.array([path.straight for path in paths])
    good: NDArray[np.bool_] = length <= np.minimum(reach_m, _DETOUR * distance + _STEPS_M)
    good &= (mean >= _MEAN) & (mean >= _GAIN * straight * length / distance)
    return good


def _directions_fit(
    heading: Floats, step: Floats, roads: NDArray[np.object_], along: Floats
) -> NDArray[np.bool_]:
    """Return whether paths to roads parallel to their dead ends run in that direction."""
    before, after = (
        shapely.get_coordinates(shapely.line_interpolate_point(roads, np.maximum(along + by, 0)))
        for by in (-_SAME_M, _SAME_M)
    )
    road = after - before
    parallel = np.abs((road * heading).sum(axis=1)) > _PARALLEL_COS * np.linalg.norm(road, axis=1)
    straight = (step * heading).sum(axis=1) > _PARALLEL_COS * np.linalg.norm(step, axis=1)
    good: NDArray[np.bool_] = straight | ~parallel
    return good


def _at_dead_ends(
    network: RoadGraph, ends: DeadEnds, edge: Ints, along: Floats
) -> tuple[Ints, Floats]:
    """Return the dead ends near positions on edges (-1: none), and the positions moved there."""
    dead_end = np.full((len(network.ends), 2), -1)
    dead_end[ends.edge, (ends.along > 0).astype(np.int64)] = np.arange(len(ends.edge))
    length = network.length_m[edge]
    last = 2 * along > length
    tip = np.where(last, length, 0.0)
    other = np.where(np.abs(along - tip) < _SAME_M, dead_end[edge, last.astype(np.int64)], -1)
    return other, np.where(other < 0, along, tip)


def _crosses_none(paths: RoadGraph, network: RoadGraph, tree: shapely.STRtree) -> NDArray[np.bool_]:
    """Return which paths meet roads only within a cell of their ends."""
    path, road = tree.query(paths.lines, predicate="intersects")
    at_ends = shapely.buffer(shapely.multipoints(paths.nodes[paths.ends[path]]), _CELL_M)
    met = shapely.intersection(paths.lines[path], network.lines[road])
    crossed = ~shapely.is_empty(shapely.difference(met, at_ends))
    none: NDArray[np.bool_] = np.bincount(path[crossed], minlength=len(paths.lines)) == 0
    return none


@dataclass(frozen=True, slots=True)
class _Path:
    """A path from a dead end to an edge: its cells, and mean probabilities, 0 to 1."""

    end: int
    edge: int
    xy: Floats  # (cell, 2): centres of its cells in metres
    probability: float  # along the path, and along the straight line between its ends
    straight: float


class _Cells:
    """Probabilities and roads of a part of a raster, in cells of several pixels."""

    def __init__(
        self,
        network: RoadGraph,
        tree: shapely.STRtree,
        raster: RoadRaster,
        low: Floats,
        high: Floats,
    ) -> None:
        gsd = np.array(raster.gsd_m)
        first = np.maximum(low // gsd, 0).astype(np.int64)
        size = (np.minimum(high // gsd + 1, raster.shape[::-1]) - first).astype(np.int64)
        (left, top), (width, height) = first.tolist(), size.tolist()
        several = max(1, min(round(_CELL_M / float(gsd.min())), width, height))
        middle = slice(several // 2, None, several)
        self._probability = raster.probability(top, left, height, width)[middle, middle]
        self._size = gsd * several
        self._origin = (first + several // 2 + 0.5) * gsd
        self._edge = np.full(self._probability.shape, -1, np.int64)
        near = tree.query(shapely.box(low[0], -high[1], high[0], -low[1]))
        xy, line = shapely.get_coordinates(
            shapely.segmentize(network.lines[near], self._size.min() / 2), return_index=True
        )
        at = self._at(xy)
        inside = ((at >= 0) & (at < self._edge.shape)).all(axis=1)
        self._edge[tuple(at[inside].T)] = near[line[inside]]
        improbable = (self._edge < 0) & (self._probability < _LEAST * 255)
        self._cost = np.where(improbable, _CLOSED, _COST[self._probability])

    def _at(self, xy: Floats) -> Ints:
        """Return the row and column of points, int64 (point, 2), inside or not."""
        place = np.rint((xy * [1, -1] - self._origin) / self._size)
        cells: Ints = place[:, ::-1].astype(np.int64)
        return cells

    def path(self, ends: DeadEnds, end: int, reach_m: float) -> _Path | None:
        """Return the path of least cost from a dead end to the first other road ahead."""
        from skimage.graph import MCP_Geometric

        size = self._size[::-1]  # of a cell in metres, height first
        start = np.clip(self._at(ends.xy[end][None])[0], 0, np.array(self._edge.shape) - 1)
        low = np.maximum(start - (reach_m / size).astype(np.int64), 0)
        high = start + (reach_m / size).astype(np.int64) + 1
        window = (slice(low[0], high[0]), slice(low[1], high[1]))
        edge = self._edge[window]
        down, right = np.ogrid[: edge.shape[0], : edge.shape[1]]
        down, right = (down + low[0] - start[0]) * size[0], (right + low[1] - start[1]) * size[1]
        behind = right * ends.heading[end, 0] - down * ends.heading[end, 1] < 0
        closed = behind | (edge == ends.edge[end])
        cost = np.where(closed, _CLOSED, self._cost[window])
        first = tuple(start - low)
        cost[first] = _COST[self._probability[tuple(start)]]
        stops = np.argwhere((edge >= 0) & ~closed)
        if not len(stops):
            return None
        search = MCP_Geometric(cost, sampling=tuple(size))
        total, _ = search.find_costs([first])
        stop = stops[total[tuple(stops.T)].argmin()]
        if not np.isfinite(total[tuple(stop)]):
            return None
        cells = np.array(search.traceback(stop)) + low
        if len(cells) < 3:
            return None
        inner = np.linspace(0, 1, len(cells))[1:-1, None]
        straight = np.rint(start + inner * (cells[-1] - start)).astype(np.int64)
        return _Path(
            end,
            int(self._edge[tuple(cells[-1])]),
            (self._origin + cells[:, ::-1] * self._size) * [1, -1],
            float(self._probability[tuple(cells[1:-1].T)].mean()) / 255,
            float(self._probability[tuple(straight.T)].mean()) / 255,
        )
