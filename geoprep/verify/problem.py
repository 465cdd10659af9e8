"""One thing that is wrong with a store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Where something is wrong, and what.

    Attributes
    ----------
    array
        Path within the store, such as ``650/image`` or ``scenes/id``; ``.`` is the store itself.
    shard
        Number of the shard, for pixel arrays.
    chunk
        Row of the tile in the tile table.
    scene
        Id of the scene it belongs to.
    message
        For people, without the place.
    """

    array: str
    shard: int | None
    chunk: int | None
    scene: str | None
    message: str

    @classmethod
    def of(cls, array: str, message: str) -> Problem:
        """Return a problem of a whole array or table."""
        return cls(array, None, None, None, message)

    def __str__(self) -> str:
        place = [self.array]
        if self.shard is not None:
            place.append(f"shard {self.shard}")
        if self.chunk is not None:
            place.append(f"tile {self.chunk}")
        if self.scene is not None:
            place.append(f"scene {self.scene}")
        return f"{', '.join(place)}: {self.message}"
