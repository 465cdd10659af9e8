"""Which positions of an epoch a rank takes, step by step.

A step covers ``batch_size * world_size`` neighbouring positions, cut into one run per rank, or
taken by the ranks in turn. What is left at the end is dropped, or split evenly. Progress is one
number, the positions that all ranks have passed, so an epoch can go on with another number of
ranks or another batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from geoprep.errors import UsageError


class Step(NamedTuple):
    """One batch of one rank: every ``stride``-th position, and the progress of all after it."""

    first: int
    last: int
    done: int
    stride: int = 1

    @property
    def positions(self) -> slice:
        """The positions, to index an order with."""
        return slice(self.first, self.last, self.stride)

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(range(self.first, self.last, self.stride))


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
    in_turn
        Whether the ranks take the positions of a step in turn, else one run each.
    """

    samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = True
    equal: bool = True
    in_turn: bool = False

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
        return full + (tail > 0 and not self._dropped(tail))

    def __len__(self) -> int:
        """Return the steps of this rank in a whole epoch."""
        full, tail = divmod(self.samples, self.batch_size * self.world_size)
        return full + sum(1 for _ in self.steps(self.samples - tail))

    def steps(self, start: int = 0) -> Iterator[Step]:
        """Yield this rank's steps from a point of progress to the end of the epoch.

        Parameters
        ----------
        start
            Positions that all ranks together have passed.
        """
        stride = self.batch_size * self.world_size
        for first in range(start, self.samples, stride):
            step = self._step(first, min(first + stride, self.samples))
            if step.size and not self._dropped(step.done - first):
                yield step

    def _dropped(self, samples: int) -> bool:
        """Return whether a step of so many samples of all ranks is left out."""
        ranks = self.world_size
        short = samples < self.batch_size * ranks
        return short and (self.drop_last or (self.equal and samples < ranks))

    def _step(self, first: int, last: int) -> Step:
        """Return this rank's part of a step of all ranks."""
        rank, ranks = self.rank, self.world_size
        if self.in_turn:
            return Step(first + rank, last, last, ranks)
        ends = (first + r * (last - first) // ranks for r in (rank, rank + 1))
        return Step(*ends, last)
