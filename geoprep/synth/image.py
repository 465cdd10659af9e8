"""Renders one chip: shapes, heights, shadows, light and sensor, as SpaceNet's products.

All bands see the same scene; a band is a lookup of reflectance, textured, blurred, plus its noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.fft
import shapely
from affine import Affine
from numpy.typing import NDArray
from rasterio.features import rasterize
from scipy import ndimage
from shapely.geometry.base import BaseGeometry

from geoprep.quiet import no_georeference_warning
from geoprep.speed import NODATA
from geoprep.synth.city import NOISE, SCENE, CityPlan
from geoprep.synth.ground import Ground
from geoprep.synth.layout import Points, generator
from geoprep.synth.shapes import DRYNESS, INDEX, LIFT, MATERIALS, Layer, towards

Field = NDArray[np.float32]

PAN: Final = 8
"""Index of the panchromatic band behind the eight multispectral ones."""
PRODUCT_BANDS: Final = {"PS-RGB": (4, 2, 1), "PS-MS": tuple(range(PAN)), "PAN": (PAN,)}
"""Bands of every product that can be drawn, in file order."""
CLASS_RASTER: Final = "classes"
"""Product and folder of the raster of classes, which is a label."""
CLASS_COLOURS: Final = {
    "background": "#14171E",
    "building": "#D55E00",
    "road": "#F2F2F2",
    "water": "#56B4E9",
    "tree": "#009E73",
}
"""Classes of the ground with their display colours, in the order of their numbers."""

# Blue light reaches shaded ground from the sky; infrared hardly does. Per band, then panchromatic.
_SKYLIGHT: Final = np.array([0.50, 0.47, 0.41, 0.38, 0.36, 0.31, 0.26, 0.24, 0.37])
_HAZE: Final = np.array([1.0, 0.85, 0.62, 0.5, 0.42, 0.33, 0.25, 0.2, 0.5])
# Counts at zero reflectance, and counts per unit of reflectance, by band (panchromatic last):
# close to the ranges of the SpaceNet 3 cities in 11-bit counts.
_DARK_COUNTS: Final = (150, 112, 86, 52, 24, 28, 14, 6, 70)
_COUNTS: Final = (1350, 2500, 3600, 3700, 3450, 3700, 3800, 3200, 3300)
_TOP_11_BIT: Final = 2047
_NOISE: Final = np.float32(0.0035)
_SHADE_STEP_M: Final = 0.3
_SHADE_DOUBLINGS: Final = 7
_SELF_SHADE_M: Final = 0.5
_UNIT_M: Final = 0.05
"""Metres per unit of height rasters."""
_CROWN_STEP_M: Final = 0.25
_CROWN_SIZES: Final = 24


class Light(NamedTuple):
    """Light and recording of one chip."""

    sun: float  # direction towards it in radians, from east to south
    rise: float  # tangent of its elevation
    gain: Points  # per band (eight, then panchromatic)
    haze: float  # path radiance in the coastal band, as reflectance
    stretch: tuple[float, float, float]  # to 8 bits: darkest and brightest reflectance, gamma


class Scene(NamedTuple):
    """A chip before the sensor."""

    ids: NDArray[np.uint16]  # (y, x), row of the table; shaded pixels use its second half
    texture: Field  # (y, x), relative brightness
    table: Field  # (2 n, 9), reflectance per band and panchromatic
    light: Light
    classes: NDArray[np.uint8]  # (y, x), number in `CLASS_COLOURS` of what is uppermost
    black: NDArray[np.bool_]  # (y, x), outside of the imagery


class Renderer:
    """Renders the chips of one city, and holds the data that they share."""

    def __init__(self, plan: CityPlan) -> None:
        frame = plan.frame
        self._plan = plan
        self._ground = Ground(plan)
        rng = generator(plan.seed, plan.city, NOISE)
        self._white = rng.standard_normal((frame.size, frame.size), dtype=np.float32)
        self._medium = _smooth(self._white[::-1], 0.55 / frame.py, 0.55 / frame.px)
        self._coarse = _smooth(self._white[:, ::-1], 5.0 / frame.py, 5.0 / frame.px)
        self._crowns = _draw_crowns(frame.px, frame.py, rng)
        table = np.array(list(MATERIALS.values()), dtype=np.float32)
        bands, self._variation = table[:, :PAN] / 100, table[:, PAN:]
        green = [INDEX[name] for name in ("lawn", "meadow", "yard", "crop")]
        withered = np.float32(DRYNESS.get(plan.city.name, 0.0))
        bands[green] += withered * (1.05 * bands[INDEX["dirt"]] - bands[green])
        # The panchromatic band sees 450 to 800 nm: blue to red edge.
        self._reflectance = np.column_stack((bands, bands[:, 1:6].mean(axis=1)))

    @no_georeference_warning()  # which rasterio gives now and then where threads burn shapes
    def draw(self, index: int, products: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the pixels (band, y, x) of one chip in every product: 0 is nodata and only that.

        The pixels depend on the plan and the index alone, not on the other products.
        """
        scene, out = self._compose(index), {}
        for product in products:
            if product == CLASS_RASTER:
                out[product] = np.where(scene.black, np.uint8(NODATA), scene.classes)[None]
                continue
            bands = PRODUCT_BANDS[product]
            # SpaceNet 5 stretches PS-RGB to 8 bits; all others have 11 bits.
            to_bytes = product == "PS-RGB" and self._plan.city.mission == "SN5"
            pixels = np.empty((len(bands), *scene.ids.shape), np.uint8 if to_bytes else np.uint16)
            for k, band in enumerate(bands):
                value = self._band(scene, band, index)
                if to_bytes:
                    dark, bright, gamma = scene.light.stretch
                    share = ((value - dark) / (bright - dark)).clip(0, 1)
                    pixels[k] = np.rint(255 * share**gamma).clip(1)
                else:
                    counts = value * _COUNTS[band] + _DARK_COUNTS[band] + 0.5
                    pixels[k] = counts.clip(1, _TOP_11_BIT)
            pixels[:, scene.black] = 0
            out[product] = pixels
        return out

    def _compose(self, index: int) -> Scene:
        """Compose one chip; depends on the plan and the index alone."""
        frame, bare = self._plan.frame, len(MATERIALS)
        rng = generator(self._plan.seed, self._plan.city, SCENE, index)
        light, to_metres = _draw_light(rng), frame.to_pixels(index)
        rows, trees = self._ground.things(index)
        material = np.concatenate((np.arange(bare), rows["material"]))
        shapes = shapely.clip_by_rect(rows["shape"], *frame.box(index).buffer(1).bounds)
        ids = _burn(shapes, to_metres, frame.size, fill=INDEX["meadow"], first=bare)

        heights = np.concatenate((np.zeros(bare), rows["height"]))
        units = (heights / _UNIT_M).astype(np.int16)[ids]
        crowns = self._stamp(trees, to_metres)
        tree = crowns > units
        units[tree] = crowns[tree]
        ids[tree] = INDEX["leaves"]

        variation = self._variation[material]
        texture = np.ones(ids.shape, np.float32)
        for k, field in enumerate((self._white, self._medium, self._coarse)):
            texture += _window(field, rng) * variation[ids, k]
        # The sunny side of a crown is brighter than the other.
        tilt = crowns - _moved(crowns, towards(light.sun, -0.6), to_metres)
        texture[tree] *= 1 + (tilt[tree] * np.float32(0.37 * _UNIT_M)).clip(-0.45, 0.4)

        classes = _classes(rows)[ids]
        border = self._plan.borders.get(index, shapely.box(-2, -2, -1, -1))  # or off all chips
        black = _burn([border], to_metres, frame.size, fill=0, first=1) > 0
        ids += _shadow(units, light, to_metres) * np.uint16(len(material))
        gain = np.ones(len(material))
        gain[bare:] = rows["gain"] * (1 + 0.28 * np.nan_to_num(np.cos(rows["facing"] - light.sun)))
        lit = self._reflectance[material] * gain[:, None]
        table = np.concatenate((lit, lit * _SKYLIGHT)) * light.gain + light.haze * _HAZE
        texture = texture.clip(0.2).astype(np.float32)
        return Scene(ids, texture, table.astype(np.float32), light, classes, black)

    def _band(self, scene: Scene, band: int, index: int) -> Field:
        """Return one band (y, x) as reflectance with haze and noise, before any scaling."""
        rng = generator(self._plan.seed, self._plan.city, NOISE, index, band)
        value = scene.table[scene.ids, band] * scene.texture
        # The telescope blurs more along x, where pixels are narrower on the ground.
        value = ndimage.convolve1d(value, np.array([1, 4, 6, 4, 1]) / 16, axis=1, mode="nearest")
        value = ndimage.convolve1d(value, np.array([1, 2, 1]) / 4, axis=0, mode="nearest")
        return np.asarray(value + _NOISE * _window(self._white, rng))

    def _stamp(self, trees: Points, to_metres: Affine) -> NDArray[np.int16]:
        """Return the highest crown over each pixel, 0 for none; trees are x, y, radius."""
        size = self._plan.frame.size
        pad = max(self._crowns[-1][0].shape) + 1
        canvas = np.zeros((size + 2 * pad, size + 2 * pad), dtype=np.int16)
        columns, rows = ~to_metres @ (trees[:, 0], trees[:, 1])
        sizes = np.clip(np.rint(trees[:, 2] / _CROWN_STEP_M) - 1, 0, _CROWN_SIZES - 1)
        variants = np.floor(trees[:, 0] * 7 + trees[:, 1] * 13) % len(self._crowns[0])
        table = np.column_stack([rows, columns, sizes, variants]).astype(int)
        for row, column, number, variant in table.tolist():
            crown = self._crowns[number][variant]
            h, w = crown.shape
            top, left = row + pad - h // 2, column + pad - w // 2
            if top >= 0 and left >= 0:
                part = canvas[top : top + h, left : left + w]
                np.maximum(part, crown[: part.shape[0], : part.shape[1]], out=part)
        return canvas[pad:-pad, pad:-pad]


def _draw_light(rng: np.random.Generator) -> Light:
    """Draw the light of one chip: a morning's sun in the south, more or less haze."""
    return Light(
        sun=np.deg2rad(rng.uniform(45, 110)),
        rise=np.tan(np.deg2rad(rng.uniform(32, 58))),
        gain=rng.uniform(0.82, 1.18) * rng.normal(1, 0.025, 9),
        haze=rng.uniform(0.0, 0.03),
        stretch=(rng.uniform(0.005, 0.025), rng.uniform(0.28, 0.40), rng.uniform(0.62, 0.85)),
    )


def _smooth(white: Field, sigma_y: float, sigma_x: float) -> Field:
    """Return noise of unit variance smoothed over some pixels; its edges fit each other."""
    spectrum = scipy.fft.rfft2(white)
    ndimage.fourier_gaussian(spectrum, (sigma_y, sigma_x), n=white.shape[1], output=spectrum)
    field = scipy.fft.irfft2(spectrum, s=white.shape)
    return np.asarray(field / field.std(), dtype=np.float32)


def _window(field: Field, rng: np.random.Generator) -> Field:
    """Return a field of noise moved and mirrored at random."""
    flip_y, flip_x = rng.choice([-1, 1], 2)
    moved = np.roll(field, tuple(rng.integers(0, len(field), 2)), axis=(0, 1))
    return moved[::flip_y, ::flip_x]


def _draw_crowns(px: float, py: float, rng: np.random.Generator) -> list[list[NDArray[np.int16]]]:
    """Return tree crowns as rasters of height: by size, four lobed domes each."""
    crowns: list[list[NDArray[np.int16]]] = []
    for radius in _CROWN_STEP_M * np.arange(1, _CROWN_SIZES + 1):
        reach_x, reach_y = (math.ceil(1.2 * radius / p) for p in (px, py))
        x = np.arange(-reach_x, reach_x + 1) * px
        y = np.arange(-reach_y, reach_y + 1)[:, None] * py
        crowns.append([])
        for _ in range(4):
            turn = np.arctan2(y, x) + rng.uniform(0, 2 * np.pi)
            lobes = sum(rng.uniform(0.03, 0.09) * np.sin(n * turn + n) for n in (2, 3, 5, 7))
            away = np.hypot(x, y) / (radius * (1 + lobes))
            dome = 0.35 * (away < 1) + 0.65 * np.sqrt(np.clip(1 - away**2, 0, None))
            height = (1.0 + 2.1 * radius) * dome * rng.normal(1, 0.07, dome.shape)
            crowns[-1].append((height / _UNIT_M).astype(np.int16))
    return crowns


def _burn(
    shapes: Iterable[BaseGeometry], to_metres: Affine, size: int, *, fill: int, first: int
) -> NDArray[np.uint16]:
    """Draw shapes in their order; a pixel holds the number of the last that covers its centre."""
    pairs = [(shape, first + k) for k, shape in enumerate(shapes) if not shape.is_empty]
    out = np.full((size, size), fill, np.uint16)
    rasterize(pairs, out=out, transform=to_metres)
    return out


def _classes(rows: NDArray[np.void]) -> NDArray[np.uint8]:
    """Return the class of every material, then of every thing."""
    number = list(CLASS_COLOURS).index
    layer, water = rows["layer"], rows["material"] == INDEX["water"]
    beside_bridge = (layer >= Layer.ROADSIDE + LIFT) & (layer < Layer.ROAD + LIFT)
    kinds = [water, layer >= Layer.ROOF, (layer >= Layer.ROAD) & ~beside_bridge]
    things = np.select(kinds, [number("water"), number("building"), number("road")])
    materials = np.where(np.arange(len(MATERIALS)) == INDEX["leaves"], number("tree"), 0)
    return np.concatenate((materials, things)).astype(np.uint8)


def _shadow(units: NDArray[np.int16], light: Light, to_metres: Affine) -> NDArray[np.bool_]:
    """Return where something nearer to the sun stands in its way."""
    # The greatest of all heights towards the sun, each lowered by the distance; the reach doubles.
    surface = units.copy()
    for k in range(_SHADE_DOUBLINGS):
        reach = _SHADE_STEP_M * 2**k
        lowered = _moved(surface, towards(light.sun, -reach), to_metres)
        np.maximum(surface, lowered - np.int16(reach * light.rise / _UNIT_M), out=surface)
    return surface > units + np.int16(_SELF_SHADE_M / _UNIT_M)


def _moved(field: NDArray[np.int16], metres: Points, to_metres: Affine) -> NDArray[np.int16]:
    """Return a raster moved by whole pixels, zeros coming in."""
    dx, dy = round(metres[0] / to_metres.a), round(metres[1] / to_metres.e)
    h, w = field.shape
    padded = np.pad(field, ((max(dy, 0), max(-dy, 0)), (max(dx, 0), max(-dx, 0))))
    return padded[max(-dy, 0) :, max(-dx, 0) :][:h, :w]
