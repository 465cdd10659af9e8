"""Timed steps: of a run with `time`, for its plan and its profile."""

from __future__ import annotations

import time
from collections.abc import Callable

from loaders import BatchLoader


class StepTimer:
    """Times steps, without the first, during which kernels are compiled and steps recorded."""

    UNTIMED, TIMED = 4, 10

    def __init__(self, untimed: int | None = None, timed: int | None = None) -> None:
        self._untimed, self._timed = untimed or self.UNTIMED, timed or self.TIMED
        self._steps, self._begun = 0, 0.0

    def step(self, wait: Callable[[], object]) -> float | None:
        """Count a step; return the seconds of one when just enough are timed, else None.

        ``wait`` waits for the device.
        """
        self._steps += 1
        if self._steps == self._untimed:
            wait()
            self._begun = time.perf_counter()
        if self._steps != self._untimed + self._timed:
            return None
        wait()
        return (time.perf_counter() - self._begun) / self._timed

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
    seconds: float, step: float, loader: BatchLoader, validation: BatchLoader | None, every: int
) -> float:
    """Return the epochs, each validated, that some seconds allow at so many per step."""
    epoch, validated = epoch_seconds(step, loader, validation, every)
    whole, rest = divmod(max(seconds, 0.0), epoch + validated)
    return max(whole + max(rest - validated, 0.0) / epoch, step / epoch)
