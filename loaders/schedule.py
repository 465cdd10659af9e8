"""Which positions of an epoch a rank takes, step by step.

A step covers ``batch_size * world_size`` neighbouring positions, cut into one run a rank. What is
left at the end is dropped, or split evenly. Progress is one number, the positions that all ranks
have passed, so an epoch can go on with another number of ranks or another batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from geoprep.errors import UsageError


class Step(NamedTuple):
    """One batch of one rank: its positions, and the progress of all ranks after it."""

    first: int
    last: int
    done: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """How positions are dealt out.

    Attributes
    ----------
    samples
        Positions in an epoch.
    batch_size
        Samples per rank and step.
    rank, world_size
        This rank, and how many there are.
    drop_last
        Whether what does not fill a step is left out.
    equal
        Whether every rank must take the same number of steps, as training under DDP needs. Then
        a tail of fewer samples than ranks is left out. Otherwise every position comes exactly
        once, and some ranks may take one step less.
    """

    samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = True
    equal: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size={self.batch_size} must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank={self.rank} is not within world_size={self.world_size}")
        if self.samples and not self.count_any_rank():
            raise UsageError(
                f"{self.samples} samples do not fill one step of {self.batch_size} x "
                f"{self.world_size} ranks: take a smaller batch_size, more crops_per_tile, or "
                "drop_last=False"
            )

    def count_any_rank(self) -> int:
        """Return the largest number of steps that any rank takes in a whole epoch."""
        full, tail = divmod(self.samples, self.batch_size * self.world_size)
        if self.drop_last or (self.equal and tail < self.world_size):
            return full
        return full + (tail > 0)

    def __len__(self) -> int:
        """Return the steps of this rank in a whole epoch."""
        return sum(1 for _ in self._tail(0, self.samples)) + self.samples // self._stride

    @property
    def _stride(self) -> int:
        return self.batch_size * self.world_size

    def steps(self, start: int = 0) -> Iterator[Step]:
        """Yield this rank's steps from a point of progress to the end of the epoch.

        Parameters
        ----------
        start
            Positions that all ranks together have passed.
        """
        while start + self._stride <= self.samples:
            first = start + self.rank * self.batch_size
            start += self._stride
            yield Step(first, first + self.batch_size, start)
        yield from self._tail(start, self.samples)

    def _tail(self, start: int, stop: int) -> Iterator[Step]:
        start = stop - (stop - start) % self._stride
        tail = stop - start
        if self.drop_last or (self.equal and tail < self.world_size):
            return
        first, last = (start + r * tail // self.world_size for r in (self.rank, self.rank + 1))
        if last > first:
            yield Step(first, last, stop)
