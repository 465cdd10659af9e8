"""Colours of road speeds, the same in every picture, table and exported file.

One colour for each ten-mph bin of :data:`geoprep.speed.BIN_TABLE`, from blue over pink and orange
to cream. Lightness rises all the way, so that the order survives in grey; neighbours stay at least
8 apart in CIEDE2000 for protan, deutan and tritan eyes too (simulated after Machado et al., 2009),
and all of them stand out from the dark ground of "no road".
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.speed import BIN_COUNT, BIN_TABLE, BIN_WIDTH_MPH, NO_DATA, NO_ROAD, UNKNOWN_SPEED

GROUND: Final = (20, 23, 30)
"""No road."""
NODATA_GREYS: Final = ((152, 155, 161), (174, 177, 183))
"""No data: stripes of these two."""
UNKNOWN_COLOUR: Final = (84, 196, 168)
"""A road of unknown speed: none of the colours of speeds."""

SPEED_COLOURS: Final = (
    (30, 74, 150),
    (60, 96, 224),
    (204, 104, 226),
    (254, 120, 160),
    (255, 162, 100),
    (255, 210, 86),
    (255, 250, 205),
)
"""Bin 1 (up to 10 mph) to bin 7 (above 60 mph)."""


def speed_colours() -> NDArray[np.uint8]:
    """Return uint8 (256, 3): mask byte -> colour."""
    bins = np.array([GROUND, *SPEED_COLOURS], np.uint8)
    table: NDArray[np.uint8] = bins[BIN_TABLE]
    table[UNKNOWN_SPEED] = UNKNOWN_COLOUR
    table[NO_DATA] = NODATA_GREYS[1]
    return table


def bin_label(number: int) -> str:
    """Return the speeds of a bin 1..7 in mph, such as ``21–30``."""
    low, high = (number - 1) * BIN_WIDTH_MPH + 1, number * BIN_WIDTH_MPH
    if number == 1:
        return f"≤ {high}"
    return f"{low}–{high}" if number < BIN_COUNT else f"> {low - 1}"


def speed_bin(mph: int) -> int:
    """Return the bin 1..7 of a speed in mph, 0 for what has no speed."""
    return int(BIN_TABLE[mph if NO_ROAD <= mph <= NO_DATA else NO_DATA])
