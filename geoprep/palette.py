"""Colours of road speeds, the same in every picture, table and exported file.

Lightness increases with speed, so the order also shows in grey. Neighbouring colours differ by at
least 8 in CIEDE2000, also for the colour-blind (simulated after Machado et al., 2009).
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from itertools import chain, count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from geoprep.speed import BACKGROUND, BIN_COUNT, BIN_TABLE, BIN_WIDTH_MPH, NODATA, UNKNOWN_SPEED

BACKGROUND_COLOUR: Final = (20, 23, 30)
NODATA_GREYS: Final = ((152, 155, 161), (174, 177, 183))
"""Nodata is drawn as stripes of these two."""
UNKNOWN_COLOUR: Final = (84, 196, 168)
"""Road of unknown speed: unlike all speed colours."""

CLASS_COLOURS: Final = (
    *("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"),
    "#FFFFFF",
)
"""Of classes without a colour of their own."""
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
    """Return the colour of every label byte, uint8 (256, 3)."""
    bins = np.array([BACKGROUND_COLOUR, *SPEED_COLOURS], np.uint8)
    table: NDArray[np.uint8] = bins[BIN_TABLE]
    table[UNKNOWN_SPEED] = UNKNOWN_COLOUR
    table[NODATA] = NODATA_GREYS[1]
    return table


def class_colours(names: Sequence[str]) -> list[str]:
    """Return a display colour ``#RRGGBB`` for each class without a colour of its own."""
    # The first differ also for the colour-blind (Okabe and Ito, 2008); further hues are spaced by
    # the golden ratio.
    spare = chain(CLASS_COLOURS, map(_hue_colour, count()))
    return [
        "#" + bytes(BACKGROUND_COLOUR).hex().upper() if name == "background" else next(spare)
        for name in names
    ]


def _hue_colour(number: int) -> str:
    hue = 0.1 + number * (5**0.5 - 1) / 2 % 1
    parts = colorsys.hls_to_rgb(hue % 1, (0.45, 0.65, 0.8)[number % 3], 0.6)
    return "#" + bytes(round(255 * part) for part in parts).hex().upper()


def bin_label(number: int) -> str:
    """Return the range of a bin 1..7 in mph, such as ``21–30``."""
    low, high = (number - 1) * BIN_WIDTH_MPH + 1, number * BIN_WIDTH_MPH
    if number == 1:
        return f"≤ {high}"
    return f"{low}–{high}" if number < BIN_COUNT else f"> {low - 1}"


def speed_bin(mph: int) -> int:
    """Return the bin 1..7 of a label byte, 0 for one without a speed."""
    return int(BIN_TABLE[mph if BACKGROUND <= mph <= NODATA else NODATA])
