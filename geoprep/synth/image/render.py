"""Renders one chip: shapes, heights, shadows, light and sensor.

All bands see the same scene; a band is a lookup of reflectance, textured, blurred, plus its noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import shapely
from affine import Affine
from numpy.typing import NDArray
from rasterio.features import rasterize
from shapely.geometry.base import BaseGeometry

from geoprep.speed import NODATA
from geoprep.synth.city.frame import generator
from geoprep.synth.city.plan import NOISE, SCENE, CityPlan
from geoprep.synth.ground.spectra import (
    BANDS,
    DRYNESS,
    INDEX,
    MATERIALS,
    patches,
    reflectance,
    variation,
)
from geoprep.synth.ground.things import BRIDGE, CAR, DECK, ROAD, ROADSIDE, ROOF, Things
from geoprep.synth.ground.world import Ground
from geoprep.synth.image.light import HAZE, SKYLIGHT, Field, Light, Noise, draw_light, make_noise
from geoprep.synth.image.trees import UNIT_M, TreeSprites

PAN = len(BANDS)
"""Index of the panchromatic band behind the eight others."""

_SHADE_STEP_M = 0.3
_SHADE_DOUBLINGS = 7
_SELF_SHADE = int(0.5 / UNIT_M)
_BIG = 60
_NOISE = np.float32(0.0035)
DECK_M = 6.0
"""Height of a bridge above what it crosses."""

CLASS_COLOURS: Final = {
    "background": "#14171E",
    "building": "#D55E00",
    "road": "#F2F2F2",
    "water": "#56B4E9",
    "tree": "#009E73",
}
"""Classes of the ground with their display colours, in the order of their numbers."""
CLASSES: Final = tuple(CLASS_COLOURS)

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class RenderedChip:
    """A chip before the sensor."""

    ids: NDArray[np.uint16]  # (y, x), row of the table; shaded pixels use its second half
    texture: Field  # (y, x), relative brightness
    table: Field  # (2 n, 9), reflectance per band and panchromatic
    light: Light
    black: NDArray[np.bool_] | None
    things: Things
    tree: NDArray[np.bool_]  # (y, x), where the crown of a tree is uppermost


class Renderer:
    """Renders the chips of one city, and holds the data that they share."""

    def __init__(self, plan: CityPlan) -> None:
        frame = plan.frame
        self.plan = plan
        self.world = Ground(plan)
        rng = generator(plan.seed, plan.city, NOISE)
        self.noise: Noise = make_noise(frame.size, frame.px, frame.py, rng)
        self._sprites = TreeSprites(frame.px, frame.py, rng)
        bands = reflectance(DRYNESS.get(plan.city.name, 0.0))
        # The panchromatic band sees 450 to 800 nm: blue to red edge.
        self._reflectance = np.column_stack((bands, bands[:, 1:6].mean(axis=1)))
        self._variation = variation()
        self._other, self._bare = patches()

    def scene(self, index: int) -> RenderedChip:
        """Compose one chip; depends on the plan and the index alone."""
        frame = self.plan.frame
        rng = generator(self.plan.seed, self.plan.city, SCENE, index)
        light = draw_light(rng)
        things = self.world.things(frame.bounds(index))
        to_metres = frame.to_pixels(index)
        ids = _burn(things, to_metres, frame.size)
        size = frame.size
        medium = self.noise.window(self.noise.medium, size, rng)
        coarse = self.noise.window(self.noise.coarse, size, rng)
        white = self.noise.window(self.noise.white, size, rng)
        self._let_through(ids, things, 0.69 * medium + 0.61 * coarse + 0.38 * white)
        units = _heights(things)[ids]
        crowns = self._sprites.stamp(things.trees, to_metres, size)
        tree = crowns > units
        np.maximum(units, crowns, out=units)
        np.copyto(ids, (crowns & 1) + np.uint16(INDEX["crown"] + 1), where=tree, casting="unsafe")
        texture = self._texture(ids, things, (white, medium, coarse))
        _shade_crowns(texture, crowns, tree, light, to_metres)
        table = self._table(things, light)
        shaded = _shadow(units, light, to_metres) | self._below_bridges(things, light, to_metres)
        ids += shaded * np.uint16(len(table) // 2)
        border = self.plan.borders.get(index)
        black = None if border is None else _mask([border], to_metres, ids.shape)
        return RenderedChip(ids, texture, table, light, black, things, tree)

    def classes(self, scene: RenderedChip, index: int) -> NDArray[np.uint8]:
        """Return the row of `CLASSES` uppermost at each pixel, cars left out; 255 if black."""
        things, size = scene.things, self.plan.frame.size
        drawn, raised = things.rows["layer"], BRIDGE - ROADSIDE
        layer = np.where((drawn >= BRIDGE) & (drawn < ROOF), drawn - raised, drawn)
        classes = np.zeros(len(layer), np.uint8)
        classes[drawn >= ROOF] = CLASSES.index("building")
        classes[(layer >= ROAD) & (layer < CAR)] = CLASSES.index("road")
        classes[things.rows["material"] == INDEX["water"]] = CLASSES.index("water")
        shown = ~(shapely.is_empty(things.geometry) | np.isin(layer, (CAR, CAR + 1)))
        shapes = list(zip(things.geometry[shown], classes[shown].tolist(), strict=True))
        to_metres = self.plan.frame.to_pixels(index)
        out: NDArray[np.uint8] = rasterize(
            shapes or [(shapely.Point(), 0)], (size, size), transform=to_metres, dtype="uint8"
        )
        out[scene.tree] = CLASSES.index("tree")
        if scene.black is not None:
            out[scene.black] = NODATA
        return out

    def band(self, scene: RenderedChip, band: int, index: int) -> Field:
        """Return one band (y, x) as reflectance with haze and noise, before any scaling."""
        size = self.plan.frame.size
        rng = generator(self.plan.seed, self.plan.city, NOISE, index, band)
        noise = self.noise.window(self.noise.white, size, rng)
        return _optics(scene.table[scene.ids, band] * scene.texture) + _NOISE * noise

    def _let_through(self, ids: NDArray[np.uint16], things: Things, patch: Field) -> None:
        """Replace patches of a material by what shows through: weeds, bare spots, puddles."""
        material, first = things.rows["material"], len(MATERIALS) + 1
        bare = np.concatenate((np.full(first, 9.0, np.float32), self._bare[material]))
        through = patch > bare[ids]
        ids[through] = self._other[material[ids[through] - first]] + 1

    def _texture(
        self, ids: NDArray[np.uint16], things: Things, fields: tuple[Field, Field, Field]
    ) -> Field:
        """Return the relative brightness of each pixel within its material."""
        own = self._variation[things.rows["material"]]
        amounts = np.concatenate((np.zeros((1, 3), np.float32), self._variation, own))
        texture = np.ones(ids.shape, np.float32)
        for k, field in enumerate(fields):
            texture += field * amounts[ids, k]
        return np.maximum(texture, 0.2, out=texture)

    def _table(self, things: Things, light: Light) -> Field:
        """Return the reflectance of every id: none, bare materials, things; lit, then shaded."""
        towards = math.atan2(light.sun[1], light.sun[0])
        slope = np.cos(things.rows["facing"] - towards)
        gain = things.rows["gain"] * (1 + 0.28 * np.nan_to_num(slope))
        own = self._reflectance[things.rows["material"]] * gain[:, None]
        lit = np.concatenate((np.zeros((1, PAN + 1), np.float32), self._reflectance, own))
        both = np.concatenate((lit, lit * SKYLIGHT)) * light.gain + light.haze * HAZE
        return both.astype(np.float32)

    def _below_bridges(
        self, things: Things, light: Light, to_metres: Affine
    ) -> NDArray[np.bool_] | bool:
        """Return where bridges shade what they cross, but not their own ramps."""
        decks = things.geometry[things.rows["layer"] == DECK]
        if not len(decks):
            return False
        c, shape = self.plan.corridors, (self.plan.frame.size,) * 2
        below = _mask([c.motorway, c.river, c.rail], to_metres, shape)
        deck = _mask(decks, to_metres, shape)
        reach = -DECK_M / light.rise * light.sun
        moved = _moved(deck, round(reach[1] / to_metres.e), round(reach[0] / to_metres.a))
        return moved & below & ~deck


def _mask(
    shapes: Iterable[BaseGeometry], to_metres: Affine, shape: tuple[int, ...]
) -> NDArray[np.bool_]:
    pairs = [(geometry, 1) for geometry in shapes]
    mask: NDArray[np.uint8] = rasterize(pairs, shape, transform=to_metres, dtype="uint8")
    return mask.astype(bool)


def _burn(things: Things, to_metres: Affine, size: int) -> NDArray[np.uint16]:
    """Draw all things in their order; a pixel holds the id of the last that covers its centre."""
    shapes = things.geometry.copy()
    big = shapely.get_num_coordinates(shapes) > _BIG
    x0, y0 = to_metres @ (0, 0)
    x1, y1 = to_metres @ (size, size)
    shapes[big] = shapely.clip_by_rect(shapes[big], x0 - 1, y0 - 1, x1 + 1, y1 + 1)
    first = len(MATERIALS) + 1
    pairs = [(shape, first + k) for k, shape in enumerate(shapes) if not shape.is_empty]
    ground = INDEX["meadow"] + 1
    burnt: NDArray[np.uint16] = rasterize(
        pairs, (size, size), fill=ground, transform=to_metres, dtype="uint16"
    )
    return burnt


def _heights(things: Things) -> NDArray[np.int16]:
    """Return the height of every id, in `UNIT_M` with the lowest bit clear."""
    heights = np.concatenate((np.zeros(len(MATERIALS) + 1, np.float32), things.rows["height"]))
    return ((heights / UNIT_M).astype(np.int16) // 2) * np.int16(2)


def _shade_crowns(
    texture: Field,
    crowns: NDArray[np.int16],
    tree: NDArray[np.bool_],
    light: Light,
    to_metres: Affine,
) -> None:
    """Brighten the sunny side of tree crowns and darken the other."""
    dx = round(0.6 * light.sun[0] / to_metres.a)
    dy = round(0.6 * light.sun[1] / to_metres.e)
    tilt = (crowns - _moved(crowns, -dy, -dx)).astype(np.float32)
    tilt *= UNIT_M / 0.6 * 0.22
    np.clip(tilt, -0.45, 0.4, out=tilt)
    tilt += 1.0
    np.multiply(texture, tilt, out=texture, where=tree)


def _shadow(units: NDArray[np.int16], light: Light, to_metres: Affine) -> NDArray[np.bool_]:
    """Return where something nearer to the sun stands in its way."""
    # The greatest of all heights towards the sun, each lowered by the distance; the reach doubles.
    surface = units.copy()
    drop = _SHADE_STEP_M * light.rise / UNIT_M
    for k in range(_SHADE_DOUBLINGS):
        reach = _SHADE_STEP_M * 2**k
        dx = round(-reach * light.sun[0] / to_metres.a)
        dy = round(-reach * light.sun[1] / to_metres.e)
        lowered = _moved(surface, dy, dx) - np.int16(round(drop * 2**k))
        np.maximum(surface, lowered, out=surface)
    return surface > units + np.int16(_SELF_SHADE)


def _moved(field: NDArray[T], dy: int, dx: int) -> NDArray[T]:
    """Return a raster moved by whole pixels, zeros coming in."""
    out = np.zeros_like(field)
    h, w = field.shape
    if abs(dy) < h and abs(dx) < w:
        out[max(dy, 0) : h + min(dy, 0), max(dx, 0) : w + min(dx, 0)] = field[
            max(-dy, 0) : h + min(-dy, 0), max(-dx, 0) : w + min(-dx, 0)
        ]
    return out


def _optics(value: Field) -> Field:
    """Blur by the telescope: binomial, wider along x where pixels are narrower on the ground."""
    for _ in range(2):
        value[:, 1:] += value[:, :-1]
        value[:, 0] *= 2
        value[:, :-1] += value[:, 1:]
        value[:, -1] *= 2
    padded = np.pad(value, ((1, 1), (0, 0)), mode="edge")
    blurred: Field = padded[:-2] + padded[2:]
    blurred += 2 * padded[1:-1]
    blurred *= np.float32(1 / 64)
    return blurred
