"""Shapes to draw in any box of a planned city, computed on demand."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.synth.city.frame import generator
from geoprep.synth.city.kinds import Road
from geoprep.synth.city.lattice import Points
from geoprep.synth.city.plan import BLOCK, ROAD, STREET, CityPlan
from geoprep.synth.ground.blocks import draw_block, draw_use
from geoprep.synth.ground.pavement import (
    Style,
    draw_junction,
    draw_road,
    draw_style,
    street_trees,
)
from geoprep.synth.ground.spectra import DRYNESS
from geoprep.synth.ground.things import (
    RAIL,
    SHORE,
    WATER,
    Sketch,
    Things,
    dashes,
    merge,
    shifted,
    strip,
)

Box = tuple[float, float, float, float]

_TREES_M = 8.0
_RIVERSIDE_M = 8.0
_MARKED = ("primary", "secondary", "tertiary")


class Ground:
    """All shapes of a city; those of roads and blocks are computed on demand and cached."""

    def __init__(self, plan: CityPlan) -> None:
        self.plan = plan
        lines = np.array([road.line for road in plan.roads], dtype=object)
        half = np.array([road.kind.width / 2 for road in plan.roads])
        beside = half + [road.kind.roadside for road in plan.roads]
        self._surfaces = shapely.STRtree(shapely.buffer(lines, half + 0.5, quad_segs=2))
        self._clear = shapely.STRtree(shapely.buffer(lines, beside, quad_segs=2))
        self._blocks = [
            (i, j) for i in range(len(plan.lattice.u) - 1) for j in range(len(plan.lattice.v) - 1)
        ]
        outlines = [shapely.Polygon(plan.lattice.block(i, j)).buffer(0) for i, j in self._blocks]
        self._outlines = shapely.STRtree(outlines)
        self._styles = self._draw_styles()
        self._junctions = _junctions(plan.roads)
        # Chips are drawn row by row: shapes that reach into the next row are still cached there.
        self._road = lru_cache(60 + 24 * plan.frame.cols)(self._draw_road)
        self._block = lru_cache(40 + 16 * plan.frame.cols)(self._draw_block)
        self._corridors = self._draw_corridors()
        self._dryness = DRYNESS.get(plan.city.name, 0.0)

    def things(self, box: Box) -> Things:
        """Return the shapes in a box (x0, y0, x1, y1) in metres, in drawing order."""
        area = shapely.box(*box)
        blocks = np.sort(self._outlines.query(area))
        roads = np.sort(self._clear.query(area))
        parts = [self._block(int(k)) for k in blocks]
        parts += [self._corridors, *(self._road(int(k)) for k in roads)]
        things = merge(parts).within(box, _TREES_M).in_order()
        # A dry climate does not support all trees: some are left out, by their position.
        lot = (things.trees[:, 0] * 12.9898 + things.trees[:, 1] * 78.233) % 1.0
        return things._replace(trees=things.trees[lot >= 0.8 * self._dryness])

    def _draw_styles(self) -> dict[int, Style]:
        """Draw the style of every street, at its first stretch."""
        styles: dict[int, Style] = {}
        for road in self.plan.roads:
            if road.street not in styles:
                middle = shapely.get_coordinates(road.line.interpolate(0.5, normalized=True))[0]
                rng = generator(self.plan.seed, self.plan.city, STREET, road.street)
                styles[road.street] = draw_style(road.kind, float(self.plan.zones(middle)), rng)
        return styles

    def _draw_road(self, k: int) -> Things:
        road = self.plan.roads[k]
        style = self._styles[road.street]
        sketch = Sketch(generator(self.plan.seed, self.plan.city, ROAD, k))
        draw_road(sketch, road, style)
        for xy, crossing in self._junctions.get(k, ()):
            draw_junction(sketch, xy, road, style, crossing)
        where, radii = street_trees(road, style, sketch.rng)
        free = self._off_road(where)
        sketch.plant(where[free], radii[free])
        return sketch.finish()

    def _draw_block(self, k: int) -> Things:
        plan, block = self.plan, self._outlines.geometries[k]
        sketch = Sketch(generator(plan.seed, plan.city, BLOCK, *self._blocks[k]))
        middle = shapely.get_coordinates(block.centroid)[0]
        wild = plan.empty is not None and block.intersects(
            shapely.box(*plan.frame.bounds(plan.empty))
        )
        use = draw_use(float(plan.zones(middle)), wild, sketch.rng)
        side = plan.lattice.block(*self._blocks[k])
        angle = float(np.arctan2(*(side[3] - side[0])[::-1]))
        draw_block(sketch, block, self._rooms(block), use, angle)
        return sketch.finish()

    def _rooms(self, block: shapely.Polygon) -> list[shapely.Polygon]:
        """Return the parts of a block without roads and corridors."""
        near = self._clear.geometries[np.sort(self._clear.query(block))]
        c = self.plan.corridors
        taken = [*near, strip(c.river, _RIVERSIDE_M), strip(c.rail, 4.0), strip(c.motorway, 9.0)]
        free = block.difference(shapely.union_all([t for t in taken if t.intersects(block)]))
        return [part for part in shapely.get_parts(free) if part.geom_type == "Polygon"]

    def _off_road(self, where: Points) -> NDArray[np.bool_]:
        """Return whether each point is outside every carriageway, bool (n,)."""
        hit, _ = self._surfaces.query(shapely.points(where), predicate="within")
        return np.isin(np.arange(len(where)), hit, invert=True)

    def _draw_corridors(self) -> Things:
        """Draw the river between its banks and the railway with two tracks."""
        c, sketch = self.plan.corridors, Sketch(np.random.default_rng())  # draws no numbers
        sketch.add(strip(c.river, 6.5), "meadow", SHORE - 1)
        sketch.add(strip(c.river, 2.0), "reeds", SHORE)
        sketch.add(c.river, "water", WATER, gain=0.9)
        sketch.add(strip(c.rail, 2.5), "yard", RAIL)
        sketch.add(c.rail, "ballast", RAIL + 1)
        for track in (-2.0, 2.0):
            middle = shifted(c.rail_axis, track)
            sketch.add(strip(middle, 1.25, flat=True), "ballast", RAIL + 2, gain=0.85)
            sketch.add([shifted(middle, r) for r in (-0.72, 0.72)], "steel", RAIL + 3)
        masts = strip(dashes(c.rail_axis, 0.4, 45.0), 0.3)
        sketch.add(masts, "steel", RAIL + 4, height=7.0)
        return sketch.finish()


def _junctions(roads: list[Road]) -> dict[int, list[tuple[Points, float]]]:
    """Return, per marked road, where others join or cross it, and how wide they are."""
    at: defaultdict[tuple[float, float], set[int]] = defaultdict(set)
    arms: defaultdict[tuple[float, float], int] = defaultdict(int)
    for k, road in enumerate(roads):
        xy = [(x, y) for x, y in shapely.get_coordinates(road.line).tolist()]
        for n, point in enumerate(xy):
            at[point].add(k)
            arms[point] += 1 if n in (0, len(xy) - 1) else 2
    junctions: defaultdict[int, list[tuple[Points, float]]] = defaultdict(list)
    for point, meeting in at.items():
        if arms[point] < 3 or len(meeting) < 2:
            continue
        for k in meeting:
            others = [roads[m].kind.width for m in meeting if m != k]
            if roads[k].kind.highway in _MARKED and roads[k].kind.paved:
                junctions[k].append((np.array(point), max(others)))
    return dict(junctions)
