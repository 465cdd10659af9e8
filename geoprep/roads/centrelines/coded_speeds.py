"""CRESI's masks of speeds: one uint8 band whose values are codes, not mph.

Source: ``speed_masks.py`` of the CRESI tools. A continuous mask burns ``int(255 * mph / 65)`` for
the speeds of SpaceNet's table; a binned one burns ``36 * k`` for the k-th class of 10 mph.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geoprep.speed import BIN_COUNT, BIN_WIDTH_MPH

_SPEEDS: Final = (15, 18.75, 20, 22.5, 25, 26.25, 30, 33.75, 35, 41.25, 45, 48.75, 55, 65)
_FASTEST: Final = 65.0
_CODES: Final = {int(255 * mph / _FASTEST): float(mph) for mph in _SPEEDS}
_STEP: Final = 36


def coded_speeds(values: NDArray[Any], *, least: int = 2) -> tuple[float, ...]:
    """Return the speeds in mph of the values 0 to 255, or () if the values are not codes."""
    found = {float(value) for value in values}
    if len(found) < least or found == {255.0}:
        return ()
    if found <= set(map(float, _CODES)):
        scale = np.arange(256) * _FASTEST / 255
        scale[list(_CODES)] = list(_CODES.values())
        return tuple(scale.tolist())
    if found <= {float(_STEP * k) for k in range(1, BIN_COUNT + 1)}:
        classes = np.minimum(np.arange(256) // _STEP, BIN_COUNT)
        middle = BIN_WIDTH_MPH * (classes - 0.5) + 0.5
        return tuple(np.where(classes > 0, middle, 0.0).tolist())
    return ()
