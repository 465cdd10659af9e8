"""The batch size that trains fastest on this machine: measured, since on CPUs smaller often is."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from geoprep.errors import UsageError
from training.engine.memory import MemoryPlan, check
from training.engine.native import Engine
from training.module import Trainable
from training.optim import MakeOptimizer

CANDIDATES = (2, 4, 8, 16, 32, 64, 128)
"""From two: BatchNorm needs something to average over."""

_TIE = 0.02
"""Rates this close are noise; of two alike the larger batch has the better statistics."""

_GIVE_UP = 0.9
"""A size below this share of the best rate ends the search: larger ones only get slower."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A batch size and the images a second that it trains."""

    batch_size: int
    rate: float


def find_batch_size(
    planned: MemoryPlan, measure: Callable[[int], float], candidates: Iterable[int] = CANDIDATES
) -> tuple[int, list[Trial]]:
    """Return the fastest batch size that fits, and what was tried.

    Parameters
    ----------
    planned
        For any batch size; says which ones fit.
    measure
        Takes a batch size and returns seconds a step, see `StepTimer`.
    candidates
        Sizes to try, ascending.

    Raises
    ------
    UsageError
        None of them fits.
    """
    fitting = [size for size in candidates if planned.of(size).fits]
    if not fitting:
        check(planned.of(min(candidates)))
        raise UsageError("there is no batch size to try")
    trials: list[Trial] = []
    for size in fitting:
        trials.append(Trial(size, size / measure(size)))
        best = max(trial.rate for trial in trials)
        if trials[-1].rate < _GIVE_UP * best:
            break
    alike = [trial.batch_size for trial in trials if trial.rate >= (1 - _TIE) * best]
    return max(alike), trials


class StepTimer:
    """Seconds of a training step by batch size, on copies that are thrown away.

    Parameters
    ----------
    trainable
        As it is before `Engine.prepare`; stays as it is.
    engine
        How steps will be carried out; here nothing is compiled, which costs all sizes the same.
    make_optimizer
        See `training.optim`.
    crop, bands
        Of a sample.
    repeats
        Steps that are timed, after one that is not; the fastest counts.
    """

    def __init__(
        self,
        trainable: Trainable,
        engine: Engine,
        make_optimizer: MakeOptimizer,
        *,
        crop: int,
        bands: int,
        repeats: int = 3,
    ) -> None:
        self.engine = engine.uncompiled()
        self.module, self.optimizer = self.engine.prepare(copy.deepcopy(trainable), make_optimizer)
        self.crop = crop
        self.bands = bands
        self.repeats = repeats

    def __call__(self, batch_size: int) -> float:
        """Return seconds a step."""
        generator = torch.Generator().manual_seed(batch_size)
        shape = (batch_size, self.crop, self.crop, self.bands)
        image = torch.randint(1, 256, shape, dtype=torch.uint8, generator=generator)
        speed = torch.randint(0, 255, shape[:3], dtype=torch.uint8, generator=generator)
        batch = [
            part.to(self.engine.device)
            for part in (image.permute(0, 3, 1, 2), speed, torch.arange(batch_size))
        ]
        return min([self._step(*batch) for _ in range(self.repeats + 1)][1:])

    def _step(self, image: torch.Tensor, speed: torch.Tensor, key: torch.Tensor) -> float:
        begun = time.perf_counter()
        with self.engine.autocast():
            parts = self.module(image, speed, key)
        parts.total.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.engine.device.type != "cpu":
            torch.accelerator.synchronize(self.engine.device)
        return time.perf_counter() - begun
