"""Time: the clock of a run, timed steps, and what they tell of epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from loaders import BatchLoader
from training.engine.distributed import max_over_ranks
from training.setting_texts import parse_duration

OVERHEAD = 0.1
"""Largest share of ``time`` that validations and what follows them take, unless settings say."""


class Clock:
    """The seconds that a run has used over all its starts, and those that ``time`` gives it.

    All ranks read the time of the slowest one, so that they decide alike.

    Attributes
    ----------
    total, used
        Seconds of ``time``, without one infinity; those that are used, when last read.
    step
        Mean seconds of a step of this epoch; 0 until two were taken.
    steps_per_validation
        Estimate of the steps that take as long as a validation, until one was measured.
    """

    def __init__(self, time: str | None, before: float) -> None:
        self.total = math.inf if time is None else parse_duration(time)
        self.used, self.step, self.steps_per_validation = before, 0.0, 0.0
        self._began, self._validation = _now() - before, math.nan
        self._reads, self._unmeasured = 0, 2  # the first step of a start compiles
        self._stepped, self._overhead = 0.0, math.nan  # since the last validation, and of it

    def now(self) -> float:
        """Return the seconds that this rank has used."""
        return _now() - self._began

    def read(self) -> float:
        """Read the seconds that are used; return those since it was read last."""
        before = self.used
        (self.used,) = max_over_ranks([self.now()], torch.device("cpu"))
        return self.used - before

    def between_steps(self) -> None:
        """Read the clock before the first step of an epoch, or after a step."""
        passed = self.read()
        if self._reads:
            self._stepped += passed
        else:
            self._overhead += passed  # checkpoints and reports
        self._reads += 1
        if self._reads <= self._unmeasured:
            self._first = self.used
        else:
            self.step = (self.used - self._first) / (self._reads - self._unmeasured)

    def after_validation(self) -> None:
        """Read the clock after a validation that began with the last reading."""
        self._validation = self._overhead = self.read()
        self._stepped = 0.0

    def next_epoch(self) -> None:
        """Take the mean of steps anew."""
        self._reads, self._unmeasured = 0, 1

    @property
    def validation(self) -> float:
        """Seconds of a validation."""
        measured, estimate = self._validation, self.step * self.steps_per_validation
        return estimate if math.isnan(measured) else measured

    @property
    def validation_is_due(self) -> bool:
        """Whether steps took so long that the next validation is the share `OVERHEAD` of time."""
        overhead = self.validation if math.isnan(self._overhead) else self._overhead
        return self._stepped * OVERHEAD >= overhead * (1 - OVERHEAD)

    @property
    def left(self) -> float:
        """Seconds that are left for steps; a validation follows them."""
        return self.total - self.validation - self.used

    @property
    def is_over(self) -> bool:
        """Whether no time is left for a further step and a validation."""
        return self.left < self.step

    @property
    def share(self) -> float:
        """Share of the time for steps that is used after the next one."""
        used, least = self.used + self.step, 1e-9
        return min(1.0, max(used, least) / max(self.total - self.validation, least))


def _now() -> float:
    return time.monotonic()


class StepTimer:
    """Times steps, without the first, during which kernels are compiled and steps recorded."""

    UNTIMED, TIMED = 4, 10

    def __init__(self) -> None:
        self._steps, self._begun = 0, 0.0

    def step(self, wait: Callable[[], object]) -> float | None:
        """Count a step; return the seconds of one when just enough are timed, else None.

        ``wait`` waits for the device.
        """
        self._steps += 1
        if self._steps == self.UNTIMED:
            wait()
            self._begun = time.perf_counter()
        if self._steps != self.UNTIMED + self.TIMED:
            return None
        wait()
        return (time.perf_counter() - self._begun) / self.TIMED

    def measure(self, take: Callable[[], object], wait: Callable[[], object]) -> float:
        """Take as many steps as are needed; return the seconds of one."""
        while True:
            take()
            if (seconds := self.step(wait)) is not None:
                return seconds


def epoch_seconds(
    step: float, loader: BatchLoader, validation: BatchLoader | None, every: int
) -> tuple[float, float]:
    """Return the seconds of an epoch and a validation from those of a step of ``every`` batches.

    A validation only passes forward, a third of the work of a step per pixel.
    """
    epoch, validated = step * -(-len(loader) // every), 0.0
    if validation is not None:
        tiles, side = validation.tiles, loader.sampling.crop or loader.tiles.side
        pixels = loader.schedule.batch_size * every * side**2
        validated = step / 3 * len(tiles) * tiles.side**2 / pixels
    return epoch, validated


def epochs_within(
    seconds: float,
    step: float,
    loader: BatchLoader,
    validation: BatchLoader | None,
    every: int,
    val_every: int | None = None,
) -> float:
    """Return about how many epochs some seconds allow at so many per step, with validations."""
    epoch, validated = epoch_seconds(step, loader, validation, every)
    mean = validated / val_every if val_every else epoch * OVERHEAD / (1 - OVERHEAD)
    validated = min(validated, mean)
    whole, rest = divmod(max(seconds, 0.0), epoch + validated)
    return max(whole + max(rest - validated, 0.0) / epoch, step / epoch)
