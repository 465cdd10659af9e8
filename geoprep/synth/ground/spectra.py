"""Materials of the ground: reflectance in eight bands, and its variation.

Roads share their spectra with roofs, parking lots, yards and bare soil: they are found by shape.
Round figures in the manner of USGS and ECOSTRESS, for the band centres of WorldView-3.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

BANDS: Final = ("coastal", "blue", "green", "yellow", "red", "red edge", "nir1", "nir2")
"""WorldView-3 multispectral bands, in file order."""
RGB_BANDS: Final = (4, 2, 1)
"""Red, green and blue among `BANDS`, counted from 0."""


class Material(NamedTuple):
    """Reflectance per band in percent, and relative variation at about 0.3, 1.5 and 12 m."""

    percent: tuple[float, ...]
    fine: float
    medium: float
    coarse: float
    other: str = ""
    bare: float = 9.0


MATERIALS: Final[dict[str, Material]] = {
    # What roads, roofs, lots and yards are made of.
    "asphalt": Material((9.4, 10.2, 11.0, 11.4, 11.6, 11.9, 12.4, 12.6), 0.05, 0.05, 0.07),
    "patched": Material((9.4, 10.2, 11.0, 11.4, 11.6, 11.9, 12.4, 12.6), 0.06, 0.10, 0.08),
    "roofing": Material((9.4, 10.2, 11.0, 11.4, 11.6, 11.9, 12.4, 12.6), 0.04, 0.05, 0.08),
    "concrete": Material((14.6, 16.4, 18.2, 19.0, 19.5, 20.0, 20.8, 21.2), 0.05, 0.06, 0.07),
    "gravel": Material((11.6, 13.6, 16.2, 18.2, 19.2, 20.4, 22.0, 22.8), 0.09, 0.10, 0.10),
    "dirt": Material((9.2, 11.6, 15.0, 17.8, 19.5, 21.6, 24.6, 26.0), 0.08, 0.10, 0.09),
    "worn": Material((9.2, 11.6, 15.0, 17.8, 19.5, 21.6, 24.6, 26.0), 0.08, 0.12, 0.1,
                     "meadow", 0.4),
    "ballast": Material((9.8, 10.9, 12.2, 13.2, 13.8, 14.5, 15.6, 16.2), 0.12, 0.08, 0.08),
    "steel": Material((17.0, 18.5, 20.5, 22.0, 23.0, 24.0, 25.0, 25.5), 0.05, 0.05, 0.05),
    "paint": Material((24.0, 28.0, 31.0, 32.5, 33.0, 33.5, 34.0, 34.0), 0.05, 0.20, 0.10),
    # Roofs of other colours.
    "tiles": Material((5.0, 6.2, 8.8, 14.0, 18.5, 21.0, 24.0, 26.0), 0.07, 0.06, 0.04),
    "brown": Material((5.5, 6.5, 8.5, 11.0, 13.0, 15.0, 18.0, 20.0), 0.07, 0.06, 0.04),
    "white": Material((29.0, 34.0, 37.0, 38.0, 38.5, 39.0, 39.5, 39.5), 0.03, 0.04, 0.05),
    "blue": Material((14.0, 19.0, 16.5, 13.5, 12.0, 13.0, 18.0, 20.0), 0.04, 0.05, 0.05),
    "green": Material((7.0, 9.5, 14.5, 12.0, 10.0, 12.0, 17.0, 19.0), 0.04, 0.05, 0.05),
    # Vegetation, soil, water.
    "lawn": Material((3.4, 4.6, 8.6, 7.9, 6.4, 19.0, 37.0, 39.0), 0.10, 0.10, 0.14, "meadow", 1.2),
    "meadow": Material((4.4, 6.2, 10.6, 11.2, 10.8, 20.0, 31.0, 33.0), 0.12, 0.14, 0.16,
                       "lawn", 0.9),
    "yard": Material((4.6, 6.4, 10.4, 10.8, 10.4, 19.0, 29.0, 31.0), 0.12, 0.16, 0.14, "dirt", 1.5),
    "litter": Material((3.0, 4.0, 6.4, 6.6, 6.2, 13.0, 22.0, 24.0), 0.16, 0.20, 0.12),
    "crown": Material((2.3, 3.2, 6.3, 5.3, 4.1, 16.5, 37.0, 40.0), 0.20, 0.10, 0.16),
    "needles": Material((1.9, 2.5, 4.4, 3.8, 3.2, 10.5, 24.0, 26.0), 0.20, 0.08, 0.12),
    "crop": Material((3.2, 4.4, 8.2, 6.8, 5.0, 18.0, 42.0, 45.0), 0.06, 0.07, 0.10),
    "straw": Material((7.2, 9.6, 14.6, 18.2, 20.4, 24.0, 32.0, 35.0), 0.07, 0.07, 0.10),
    "tilled": Material((7.0, 8.6, 11.2, 13.6, 15.4, 17.4, 20.6, 22.0), 0.10, 0.07, 0.08),
    "water": Material((5.4, 5.6, 5.4, 4.2, 3.0, 2.0, 1.2, 0.9), 0.03, 0.03, 0.10),
    "reeds": Material((3.0, 4.0, 6.8, 6.4, 5.6, 14.0, 26.0, 28.0), 0.16, 0.18, 0.12, "litter", 0.8),
    # Cars.
    "black": Material((3.0, 3.0, 3.1, 3.1, 3.2, 3.2, 3.4, 3.5), 0.05, 0.0, 0.0),
    "red": Material((4.0, 4.2, 4.6, 9.0, 17.0, 22.0, 25.0, 26.0), 0.05, 0.0, 0.0),
}  # fmt: skip
"""Every material by name; a number in rasters is its place here plus 1."""

DRYNESS: Final = {"vegas": 0.85, "khartoum": 0.8, "san_juan": 0.1, "mumbai": 0.25}
"""How far a city's greenery has withered: 0 (also where none is given) lush, 1 bare ground."""
_GREENERY: Final = ("lawn", "meadow", "yard", "litter", "crop", "reeds")

INDEX: Final = {name: k for k, name in enumerate(MATERIALS)}


def reflectance(dryness: float) -> NDArray[np.float32]:
    """Return the reflectance (material, band), 0..1, in a climate."""
    percent = np.array([material.percent for material in MATERIALS.values()])
    green = [INDEX[name] for name in _GREENERY]
    percent[green] += dryness * (1.05 * percent[INDEX["dirt"]] - percent[green])
    return (percent / 100).astype(np.float32)


def variation() -> NDArray[np.float32]:
    """Return the amplitudes (material, 3) of fine, medium and coarse variation."""
    values = [(m.fine, m.medium, m.coarse) for m in MATERIALS.values()]
    return np.array(values, dtype=np.float32)


def patches() -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return, per material, which material shows through and above which patch noise."""
    other = [INDEX[m.other] if m.other else k for k, m in enumerate(MATERIALS.values())]
    bare = [m.bare for m in MATERIALS.values()]
    return np.array(other), np.array(bare, dtype=np.float32)
