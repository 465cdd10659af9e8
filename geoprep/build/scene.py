"""The record of one scene, from planning to the finished store; numbers of splits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from geoprep.grid import Grid
from geoprep.labels import Schema
from geoprep.sources import Scene

TRAIN, VAL, TEST, UNUSED = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class PlannedScene(Scene):
    """A scene of a source, completed by planning with its tiles, splits and position in the store.

    ``label`` is the file shared by all scenes where the scene has none of its own.
    """

    grid: Grid | None  # of the image; None if it cannot be opened
    shape: tuple[int, int]  # height and width in pixels of the finest level
    windows: tuple[tuple[int, int], ...]  # (row, col) of every tile, as above
    first_tile: int  # row of the first tile in the store's tile table
    city: int  # index of the source that the scene is from
    schema: Schema  # of the road attributes
    failure: str = ""  # why the scene cannot be built
    splits: tuple[int, ...] = ()  # of every tile: 0 train, 1 val, 2 test, 3 unused

    @property
    def target(self) -> Grid | None:
        """The grid of the finest level."""
        return None if self.grid is None else self.grid.resized(*self.shape)

    def tiles(self, first: int, stop: int) -> PlannedScene:
        """Return the scene with only the tiles from ``first`` to before ``stop``."""
        return replace(
            self,
            windows=self.windows[first:stop],
            splits=self.splits[first:stop],
            first_tile=self.first_tile + first,
        )
