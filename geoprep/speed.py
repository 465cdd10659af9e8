"""Road speeds: the table of speeds by road type, their one-byte coding, and lookups of that byte.

A label byte is 0 background, 1..253 speed in whole mph (rounded half up), 254 road of unknown
speed, 255 nodata. Table and codings are those of the CRESI tools (SpaceNet 5 baseline:
``data_prep/road_speed.py`` and ``data_prep/speed_masks.py``).
"""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

BACKGROUND: Final = 0
UNKNOWN_SPEED: Final = 254
"""A road whose speed is not known, such as those of a mask without speeds."""
NODATA: Final = 255
MAX_MPH: Final = 253.0
"""The highest speed that a label byte can hold."""

MPS_PER_MPH: Final = 0.44704
"""An international mile is 1609.344 m."""
KMH_PER_MPH: Final = 1.609344
MPH_PER_UNIT: Final = {
    "mph": 1.0,
    "kmh": 1.0 / KMH_PER_MPH,
    "mps": 1.0 / MPS_PER_MPH,
    "knots": 1.852 / KMH_PER_MPH,
}

BIN_COUNT: Final = 7
BIN_WIDTH_MPH: Final = 10
BIN_STEP: Final = 36
"""Grey values from one bin to the next in the single-band binned raster: int(255 / 7)."""
CONTINUOUS_MAX_MPH: Final = 65
"""Speed that the continuous coding maps to 255."""
UNPAVED_FACTOR: Final = 0.75

ROAD_TYPES: Final = {
    1: "motorway",
    2: "primary",
    3: "secondary",
    4: "tertiary",
    5: "residential",
    6: "unclassified",
    7: "cart track",
}

# mph by road type: (1 or 2 lanes, 3 or more), lanes counted over both directions.
_MPH_BY_TYPE: Final = {
    1: (55.0, 65.0),
    2: (45.0, 55.0),
    3: (35.0, 45.0),
    4: (30.0, 35.0),
    5: (25.0, 30.0),
    6: (20.0, 20.0),
    7: (20.0, 20.0),
}
_WIDE_ROAD_LANES: Final = 3

# Label bytes that stand for a fractional speed of the table (a speed times 0.75), which the
# continuous coding maps to another grey value than the whole speed of that byte. 22 needs no entry
# (22.5 rounds half up to 23), nor does 26 (26.25 maps to the same grey value).
_FRACTIONAL_MPH: Final = {19: 18.75, 23: 22.5, 34: 33.75, 41: 41.25, 49: 48.75}


def table_mph(road_type: int, lanes: int, paved: bool) -> float:
    """Return the speed in mph of a SpaceNet 3 road type, lanes of both directions, and surface.

    Examples
    --------
    >>> table_mph(road_type=2, lanes=4, paved=True), table_mph(road_type=2, lanes=4, paved=False)
    (55.0, 41.25)
    """
    mph = _MPH_BY_TYPE[road_type][lanes >= _WIDE_ROAD_LANES]
    return mph if paved else mph * UNPAVED_FACTOR


BIN_MPH: Final = tuple(BIN_WIDTH_MPH * (number + 0.5) + 0.5 for number in range(BIN_COUNT))
"""Central speed of the whole mph of every bin: 5.5, 15.5 to 65.5."""


def to_byte(mph: ArrayLike) -> NDArray[np.uint8]:
    """Return the label bytes of finite speeds in mph: rounded half up and clipped to 1..253."""
    speeds = np.asarray(mph, dtype=np.float64)
    if not np.isfinite(speeds).all():
        raise ValueError("a speed is NaN or infinite: leave such roads out before coding them")
    return np.clip(np.floor(speeds + 0.5), 1, MAX_MPH).astype(np.uint8)


def _continuous_table() -> NDArray[np.uint8]:
    """Return CRESI's continuous grey value of label bytes: int(clip(255 * mph / 65, 0, 255))."""
    mph = np.arange(256, dtype=np.float64)
    for byte, fractional in _FRACTIONAL_MPH.items():
        mph[byte] = fractional
    mph[[UNKNOWN_SPEED, NODATA]] = 0
    return np.clip(255.0 * mph / CONTINUOUS_MAX_MPH, 0, 255).astype(np.uint8)


def _bin_table() -> NDArray[np.uint8]:
    byte = np.arange(256)
    bins = np.minimum(-(-byte // BIN_WIDTH_MPH), BIN_COUNT)
    bins[[UNKNOWN_SPEED, NODATA]] = 0
    return bins.astype(np.uint8)


def _frozen(table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the table, read-only: all threads and modules share it."""
    table.flags.writeable = False
    return table


BIN_TABLE: Final = _frozen(_bin_table())
"""uint8 (256,): label byte -> bin 1..7 = ceil(mph / 10), at most 7; 0 for bytes without a speed."""

BINNED_TABLE: Final = _frozen(BIN_TABLE * np.uint8(BIN_STEP))
"""uint8 (256,): label byte -> grey value of CRESI's single-band binned raster, 36 times the bin."""

CONTINUOUS_TABLE: Final = _frozen(_continuous_table())
"""uint8 (256,): label byte -> grey value of CRESI's continuous raster; nodata, unknown speed: 0.

Exact for every speed of the table and every whole speed except 19, 23, 34, 41 and 49 mph, which
read as the fractional speeds of the same byte (one or two grey values away).
"""

BINARY_TABLE: Final = _frozen((~np.isin(np.arange(256), (BACKGROUND, NODATA))).astype(np.uint8))
"""uint8 (256,): label byte -> 1 for road, else 0 (nodata included)."""

CHANNEL_TABLE: Final = _frozen(
    np.concatenate(
        [BIN_TABLE[:, None] == np.arange(1, BIN_COUNT + 1), BINARY_TABLE[:, None] == 1], axis=1
    ).astype(np.uint8)
)
"""uint8 (256, 8): label byte -> 0/1 channels: bins 1..7, exclusive, and any road; nodata is 0.

A road of unknown speed is in no bin: `SPEED_VALID_TABLE` marks its bins as unknown.
"""

VALID_TABLE: Final = _frozen((np.arange(256) != NODATA).astype(np.uint8))
"""uint8 (256,): label byte -> 1 where there is a label (background included), 0 for nodata."""

SPEED_VALID_TABLE: Final = _frozen(VALID_TABLE * (np.arange(256) != UNKNOWN_SPEED).astype(np.uint8))
"""uint8 (256,): label byte -> 1 where there is a label, of known speed if it is a road."""
