"""The training step: one function for training, its profile, the choice of a batch, benchmarks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.profiler import record_function

from loaders import Batch
from training.distributed import gradients_kept_apart
from training.engine.native import Engine
from training.errors import TrainingError
from training.losses import LossParts

PARTS = ("loss", "main", "dice")

Timed = Callable[[str], AbstractContextManager[object]]
"""Entered around each phase of a step, with its name."""


class Taken(NamedTuple):
    """A step that was taken.

    Attributes
    ----------
    parts
        Loss of each of its batches, on the device.
    counts
        Samples in each of them.
    norm
        Norm of the gradient before clipping, on the device.
    """

    parts: list[LossParts]
    counts: list[int]
    norm: Tensor


@dataclass(frozen=True, slots=True)
class Stepper:
    """What a step needs.

    Attributes
    ----------
    module
        Called with image, speed and key; returns the loss. Averages gradients over ranks.
    optimizer
        Of its parameters.
    engine
        Where and in which precision it computes.
    clip
        Largest norm of the gradient; None for any.
    timed
        Context of each phase; torch's profiler shows them by default.
    """

    module: nn.Module
    optimizer: Optimizer
    engine: Engine
    clip: float | None = None
    timed: Timed = record_function

    def __call__(self, batches: Iterable[Batch], count: int = 1) -> Taken:
        """Take one step over ``count`` batches, each counting the same.

        Raises
        ------
        TrainingError
            Loss or gradient is not finite; the weights are as they were before. On an
            accelerator, where looking would mean waiting, `Meter.read` finds it.
        """
        taken: list[LossParts] = []
        counts: list[int] = []
        for number, host_batch in enumerate(batches, start=1):
            with self.timed("copy to the device"):
                batch = host_batch.to(self.engine.device, non_blocking=True)
            with gradients_kept_apart(self.module, number < count):
                with self.timed("forward"), self.engine.autocast():
                    parts: LossParts = self.module(batch.image, batch.speed, batch.key)
                with self.timed("backward"):
                    (parts.total / count).backward()  # type: ignore[no-untyped-call]  # torch's
            taken.append(LossParts(*(part.detach() for part in parts)))
            counts.append(len(host_batch))
        with self.timed("clip"):
            limit = math.inf if self.clip is None else self.clip
            norm = clip_grad_norm_(self.module.parameters(), limit)
        if norm.device.type == "cpu" and not math.isfinite(norm):
            raise TrainingError(not_finite([float(parts.total) for parts in taken]))
        with self.timed("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return Taken(taken, counts, norm)


def not_finite(losses: Iterable[float]) -> str:
    """Return what is wrong with a step whose gradient is not finite."""
    if all(math.isfinite(loss) for loss in losses):
        return "the gradient is not finite, though the loss is"
    return "the loss is not a number"


class Reading(NamedTuple):
    """What the meter says about the steps since it was last read.

    Attributes
    ----------
    rows
        Loss, main part and dice of every batch.
    counts
        Samples in every batch.
    seconds, waited
        Wall time, and the part of it spent waiting for batches.
    bad
        What is wrong with the first step that is not finite, and how many steps came after it;
        None where all are.
    """

    rows: list[list[float]]
    counts: list[int]
    seconds: float
    waited: float
    bad: tuple[str, int] | None

    @property
    def samples(self) -> int:
        """Samples in all batches."""
        return sum(self.counts)

    @property
    def loss(self) -> float:
        """Mean loss over samples."""
        total = sum(n * row[0] for n, row in zip(self.counts, self.rows, strict=True))
        return total / max(self.samples, 1)


class Meter:
    """Collects losses without waiting for the device."""

    def __init__(self) -> None:
        self._taken: list[Taken] = []
        self._waited = 0.0
        self._since = time.perf_counter()

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches, counting the time that each is waited for."""
        self._since = time.perf_counter()
        asked = time.perf_counter()
        for batch in batches:
            self._waited += time.perf_counter() - asked
            yield batch
            del batch  # or its buffer would stay taken while the next one is waited for
            asked = time.perf_counter()

    def add(self, taken: Taken) -> None:
        """Take note of a step."""
        self._taken.append(taken)

    def read(self) -> Reading:
        """Wait for the device and return what came since the last reading."""
        now, taken = time.perf_counter(), self._taken
        every = [torch.stack([*parts]).float() for step in taken for parts in step.parts]
        rows: list[list[float]] = torch.stack(every).tolist() if every else []
        norms = torch.stack([step.norm for step in taken]).tolist() if taken else []
        counts = [count for step in taken for count in step.counts]
        bad = None
        first = next((i for i, norm in enumerate(norms) if not math.isfinite(norm)), None)
        if first is not None:
            losses = [float(parts.total) for parts in taken[first].parts]
            bad = not_finite(losses), len(taken) - 1 - first
        reading = Reading(rows, counts, now - self._since, self._waited, bad)
        self._taken, self._waited, self._since = [], 0.0, now
        return reading
