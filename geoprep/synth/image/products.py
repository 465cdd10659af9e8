"""Converts reflectance to pixel values: PS-RGB, PS-MS and PAN as SpaceNet delivers them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.quiet import no_georeference_warning
from geoprep.synth.ground.spectra import BANDS, RGB_BANDS
from geoprep.synth.image.light import Field, Light
from geoprep.synth.image.render import PAN, Renderer

PRODUCT_BANDS: Final[dict[str, tuple[int, ...]]] = {
    "PS-RGB": RGB_BANDS,
    "PS-MS": tuple(range(len(BANDS))),
    "PAN": (PAN,),
}
"""Bands of every product that can be drawn, in file order."""
CLASS_RASTER: Final = "classes"
"""Product and folder of the raster of classes, which is a label."""

_TOP_11_BIT: Final = 2047
# Counts at zero reflectance, and counts per unit of reflectance, by band (panchromatic last):
# close to the ranges of the SpaceNet 3 cities in 11-bit counts.
_DARK_COUNTS: Final = (150, 112, 86, 52, 24, 28, 14, 6, 70)
_COUNTS: Final = (1350, 2500, 3600, 3700, 3450, 3700, 3800, 3200, 3300)
_STEPS: Final = 2048


@no_georeference_warning()  # which rasterio gives now and then where threads burn shapes
def draw_products(
    renderer: Renderer, index: int, products: tuple[str, ...]
) -> dict[str, NDArray[np.uint8] | NDArray[np.uint16]]:
    """Return the pixels (band, y, x) of one chip in every product: 0 is nodata and only that."""
    scene = renderer.scene(index)
    size = renderer.plan.frame.size
    # SpaceNet 5 stretches PS-RGB to 8 bits; all others have 11 bits.
    dtypes = {"PS-RGB": "uint8"} if renderer.plan.city.mission == "SN5" else {}
    out: dict[str, NDArray[np.uint8] | NDArray[np.uint16]] = {
        product: np.empty((len(PRODUCT_BANDS[product]), size, size), dtypes.get(product, "uint16"))
        for product in products
        if product != CLASS_RASTER
    }
    for band in range(PAN + 1):
        users = [product for product in out if band in PRODUCT_BANDS[product]]
        if not users:
            continue
        value = renderer.band(scene, band, index)
        for product in users:
            of_8_bit = out[product].dtype == np.uint8
            counts = _to_8_bit(value, scene.light) if of_8_bit else _to_11_bit(value, band)
            out[product][PRODUCT_BANDS[product].index(band)] = counts
    if scene.black is not None:
        for pixels in out.values():
            pixels[:, scene.black] = 0
    if CLASS_RASTER in products:
        out[CLASS_RASTER] = renderer.classes(scene, index)[None]
    return out


def _to_8_bit(value: Field, light: Light) -> NDArray[np.uint8]:
    """Stretch to 1..255 with the chip's own range and gamma, alike for all bands."""
    curve = np.linspace(0, 1, _STEPS) ** light.gamma
    table = np.clip(np.rint(255 * curve), 1, 255).astype(np.uint8)
    scale = np.float32((_STEPS - 1) / (light.bright - light.dark))
    steps = ((value - np.float32(light.dark)) * scale).clip(0, _STEPS - 1)
    return table[steps.astype(np.uint16)]


def _to_11_bit(value: Field, band: int) -> NDArray[np.uint16]:
    """Scale to 11-bit counts, 1..2047."""
    counts = value * np.float32(_COUNTS[band]) + np.float32(_DARK_COUNTS[band] + 0.5)
    return counts.clip(1, _TOP_11_BIT).astype(np.uint16)
