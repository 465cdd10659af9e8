"""Epochs that can be left and taken up again: what every loader of batches has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

from geoprep.errors import UsageError
from loaders.batch import Batch
from loaders.schedule import Schedule, Step

STATE_VERSION = 1


class EpochLoader(ABC):
    """Iterates over the batches of one epoch after another, and knows where it is.

    Iterating again starts the epoch again; an epoch that was exhausted is followed by the next.
    After `load_state_dict` the first iteration goes on where the state was taken.

    Parameters
    ----------
    schedule
        Which positions of an epoch this rank takes.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._epoch = 0
        self._done = 0  # positions of this epoch that all ranks have passed
        self._resume = 0  # where the next iteration starts

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return everything that decides which samples an epoch has, as plain values."""

    @abstractmethod
    def batches(self, epoch: int, steps: Sequence[Step]) -> Generator[Batch, None, None]:
        """Yield the batch of every step; closing it ends whatever it started."""

    def __len__(self) -> int:
        """Return the batches of this rank in a whole epoch."""
        return len(self.schedule)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of, or that the running one is."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; the current one keeps its place if a state was loaded."""
        if epoch != self._epoch:
            self._epoch, self._done, self._resume = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on after the batch last handed out: some plain values.

        Batches that were only filled ahead do not count. The state is that of all ranks.
        """
        return {
            "version": STATE_VERSION,
            "epoch": self._epoch,
            "position": self._done,
            "sampling": self.identity(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, with this loader's own batch size and ranks.

        Raises
        ------
        UsageError
            The state is of other tiles, another seed or another sampling, and would go on with
            other samples.
        """
        if state.get("version") != STATE_VERSION:
            raise UsageError(
                f"loader state version {state.get('version')!r} is not {STATE_VERSION}: it was "
                "saved by another version of this package"
            )
        mine, theirs = self.identity(), state["sampling"]
        differs = [k for k in mine if mine[k] != theirs.get(k)]
        if differs:
            what = ", ".join(f"{k} was {theirs.get(k)!r}, is {mine[k]!r}" for k in differs)
            raise UsageError(
                f"the loader state is of other samples ({what}): make the loader as it was"
            )
        self._epoch = int(state["epoch"])
        self._done = self._resume = int(state["position"])

    def __iter__(self) -> Iterator[Batch]:
        start, self._resume = self._resume, 0
        self._done, epoch = start, self._epoch
        steps = list(self.schedule.steps(start))
        with closing(self.batches(epoch, steps)) as batches:
            for step in steps:
                batch = next(batches)
                self._done = step.done
                yield batch
                del batch  # or its buffer would stay taken while the next one is waited for
        if self._epoch == epoch:
            self._epoch, self._done = epoch + 1, 0
