"""Names and colours of the classes of a store, and the order in which another store has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import UsageError
from geoprep.speed import NODATA

BACKGROUND_NAME = "background"
"""Name that makes the first class the background."""
_NODATA_GREY = (174, 177, 183)
_SHOWN = 8


def are_colours(colors: Sequence[str]) -> bool:
    """Return whether texts are colours, ``#RRGGBB``."""
    return all(re.fullmatch("#[0-9A-Fa-f]{6}", colour) for colour in colors)


@dataclass(frozen=True, slots=True)
class ClassTable:
    """The classes of a label, in the order of their bytes."""

    names: tuple[str, ...]
    colors: tuple[str, ...]  # #RRGGBB

    def __len__(self) -> int:
        return len(self.names)

    @property
    def is_single(self) -> bool:
        """Whether there is only one class besides the background."""
        return len(self.names) == 2 and self.names[0] == BACKGROUND_NAME

    def __str__(self) -> str:
        more = f" and {len(self) - _SHOWN} more" if len(self) > _SHOWN else ""
        return ", ".join(self.names[:_SHOWN]) + more

    @property
    def rgb(self) -> NDArray[np.uint8]:
        """uint8 (class, 3), red, green and blue."""
        return np.array([list(bytes.fromhex(color[1:])) for color in self.colors], np.uint8)

    def colour_table(self) -> NDArray[np.uint8]:
        """Return the colour of every label byte, uint8 (256, 3); grey for nodata."""
        table = np.full((256, 3), _NODATA_GREY, np.uint8)
        table[: len(self)] = self.rgb
        return table

    def index(self, name: str) -> int:
        """Return the label byte of a class."""
        if name not in self.names:
            raise UsageError(f"no class {name!r}: the classes are {self}")
        return self.names.index(name)

    def lookup(self, other: Sequence[str]) -> NDArray[np.uint8]:
        """Return uint8 (256), label byte of classes ``other`` -> byte of this table, else 255."""
        missing = [name for name in other if name not in self.names]
        missing += [name for name in self.names if name not in other]
        if missing:
            raise UsageError(
                f"the classes differ: {', '.join(missing)} in one of them only ({self}; "
                f"{', '.join(other[:_SHOWN])})"
            )
        table = np.full(256, NODATA, np.uint8)
        table[: len(other)] = [self.names.index(name) for name in other]
        return table
