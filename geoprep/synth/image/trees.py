"""Tree crowns as small rasters of height, stamped where trees stand."""

from __future__ import annotations

import math

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from geoprep.synth.city.lattice import Points

UNIT_M = 0.05
"""Metres per unit of height rasters; the lowest bit is set on conifers."""
_STEP_M = 0.25
_LARGEST_M = 6.0
_VARIANTS = 4

Heights = NDArray[np.int16]


class TreeSprites:
    """Crowns of every size in a few variants, round on the ground whatever the pixels are."""

    def __init__(self, px: float, py: float, rng: np.random.Generator) -> None:
        self._px, self._py = px, py
        sizes = np.arange(1, int(_LARGEST_M / _STEP_M) + 1) * _STEP_M
        self._crowns = [
            [[self._crown(r, bool(c), rng) for _ in range(_VARIANTS)] for c in (0, 1)]
            for r in sizes
        ]

    def stamp(self, trees: Points, to_metres: Affine, size: int) -> Heights:
        """Return the highest crown over each pixel, 0 for none; trees are x, y, radius, conifer."""
        pad_x, pad_y = (math.ceil(1.2 * _LARGEST_M / p) + 1 for p in (self._px, self._py))
        canvas = np.zeros((size + 2 * pad_y, size + 2 * pad_x), dtype=np.int16)
        columns, rows = ~to_metres @ (trees[:, 0], trees[:, 1])
        kinds = np.clip(np.rint(trees[:, 2] / _STEP_M) - 1, 0, len(self._crowns) - 1)
        variants = np.floor(trees[:, 0] * 7 + trees[:, 1] * 13) % _VARIANTS
        table = np.column_stack([rows, columns, kinds, trees[:, 3], variants]).astype(int)
        for row, column, kind, conifer, variant in table.tolist():
            crown = self._crowns[kind][conifer][variant]
            h, w = crown.shape
            top, left = row + pad_y - h // 2, column + pad_x - w // 2
            if top < 0 or left < 0:
                continue
            part = canvas[top : top + h, left : left + w]
            if part.shape == crown.shape:
                np.maximum(part, crown, out=part)
        return canvas[pad_y:-pad_y, pad_x:-pad_x]

    def _crown(self, radius: float, conifer: bool, rng: np.random.Generator) -> Heights:
        """Return one crown: a lobed dome, or a pointed cone."""
        reach_x, reach_y = (math.ceil(1.2 * radius / p) for p in (self._px, self._py))
        x = np.arange(-reach_x, reach_x + 1) * self._px
        y = np.arange(-reach_y, reach_y + 1)[:, None] * self._py
        turn = np.arctan2(y, x)
        lobes = sum(
            rng.uniform(0.03, 0.09) * np.sin(n * turn + rng.uniform(0, 2 * np.pi))
            for n in (2, 3, 5, 7)
        )
        away = np.hypot(x, y) / (radius * (1 + lobes))
        if conifer:
            height = (1.5 + 3.4 * radius) * np.clip(1.05 - away, 0, None)
        else:
            dome = np.sqrt(np.clip(1 - away**2, 0, None))
            height = (1.0 + 2.1 * radius) * (0.35 * (away < 1) + 0.65 * dome)
            height *= 1 + 0.07 * rng.standard_normal(height.shape)
        units = (height / UNIT_M).astype(np.int16) // 2 * 2
        return np.where(units > 0, units + conifer, 0).astype(np.int16)
