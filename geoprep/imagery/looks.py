"""A look at a scene: one pass over its rows, for its limits and the pixels that hold imagery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geoprep.imagery.counts import add_black, count_source
from geoprep.imagery.decoding import ImageWindow
from geoprep.imagery.scenes import OpenScene
from geoprep.imagery.validity import Bits, StripValidity, decide, strip_validity

Count = Callable[[ImageWindow], Any]


@dataclass(frozen=True, slots=True)
class Look:
    """What some rows of a scene show; looks at others add up."""

    strips: dict[int, StripValidity] = field(default_factory=dict)  # by their first row
    # Valid pixels per value, or per bin of wide dtypes, (band, value); sparse ones add up too
    counts: Any = 0
    pixels: int = 0  # that are counted
    valid: int = 0  # with imagery, of these; without black ones of undecided meaning

    @classmethod
    def at(
        cls,
        first: int,
        pixels: ImageWindow,
        counted: NDArray[np.bool_] | None = None,
        count: Count = count_source,
    ) -> Look:
        """Return the look at a strip, by its first row; of all rows, those that are counted."""
        some = pixels if counted is None else pixels.part(counted[first:][: len(pixels.values)])
        strips = {first: strip_validity(pixels.valid, pixels.black)}
        return cls(strips, count(some), some.area, some.valid_pixels)

    def __add__(self, other: Look) -> Look:
        pixels, valid = self.pixels + other.pixels, self.valid + other.valid
        return Look(self.strips | other.strips, self.counts + other.counts, pixels, valid)

    def decided(
        self, scene: OpenScene, counted: NDArray[np.bool_] | None = None
    ) -> tuple[Bits | None, int, int]:
        """Decide which pixels of the whole scene are valid, and count black ones that are imagery.

        Returns
        -------
        The valid pixels (None: all), how many are nodata as they are black, and how many of those
        that are counted hold imagery.
        """
        height, width = scene.grid.shape
        (bits, nodata), valid = decide(self.strips, height, width), self.valid
        if any(strip.black for strip in self.strips.values()):
            rows = () if bits is None else bits if counted is None else bits[counted]
            ones = sum(int(np.unpackbits(row, count=width).sum()) for row in rows)
            valid = self.pixels if bits is None else ones
        if np.ndim(self.counts):
            add_black(self.counts, valid - self.valid)
        return bits, nodata, valid
