"""What all ranks of a run decide alike: when losses are read, when it is saved, and its end."""

from __future__ import annotations

import math
import sys
import time

import torch

from geoprep.errors import UsageError
from geoprep.texts import counted
from loaders import is_distributed
from training.checkpoint import RunProgress
from training.engine.distributed import is_rank_zero, max_over_ranks
from training.process import StopSignals
from training.run.timing import Clock
from training.setting_texts import parse_interval
from training.settings import Config


class Agreement:
    """Decisions by the number of steps, the clock and signals, the same on all ranks.

    Attributes
    ----------
    stop
        Signals that reached this rank.
    clock
        Time that the run has used.
    epochs
        Number of epochs of the run; with ``time`` a forecast by the clock.
    """

    def __init__(
        self, config: Config, progress: RunProgress, stop: StopSignals, device: torch.device
    ) -> None:
        self.stop, self.clock = stop, Clock(config.time, progress.seconds)
        self.epochs = config.length
        self._config, self._progress, self._device = config, progress, device
        steps, self._interval = parse_interval(config.save_every)
        self._save_steps = steps or sys.maxsize
        self.begin(0.0)

    def begin(self, done: float) -> None:
        """Measure from now on, when so many epochs are done."""
        self._began, self._began_at = time.monotonic(), done
        self.saved()

    def saved(self) -> None:
        """Count the time to the next checkpoint from now on."""
        self._save_at = time.monotonic() + self._interval

    def is_finished(self) -> bool:
        """Return whether all epochs or the whole time are over, or ``patience`` is exhausted."""
        config, now = self._config, self._progress
        over = config.is_finished(now.epoch, now.time_over)
        return over or config.lost_patience(now.history, now.best_epoch)

    def title(self) -> str:
        """Return the number of the current epoch, and how many there are if that is known."""
        of = "" if self._config.time else f"/{math.ceil(self.epochs)}"
        return f"epoch {self._progress.epoch + 1}{of}"

    def ends_before(self, done: float, *, begun: bool) -> bool:
        """Return whether the run ends before the step at whose end so many epochs are done.

        By the clock it does so only in an epoch that has ``begun``, since each has a step.
        """
        if self._config.time is None:
            return done > self.epochs + 1e-9  # the last epoch may be a part of one
        self.after_steps()
        self.epochs = done / self.clock.share
        return self.clock.is_over and begun

    def after_steps(self) -> None:
        """Read the clock of a run with ``time``; UsageError if that is too short for two steps."""
        if self._config.time is None:
            return
        self.clock.between_steps()
        if self.clock.left < 0 and 0 < self._progress.step <= 2:
            raise UsageError(
                "time",
                f"{self._config.time} is too short: "
                f"{counted(self._progress.step, 'step')} took {self.clock.used:.0f} s, most of it "
                "to load and to compile. Give more `time`, or set `compile` off or `epochs`",
            )

    def due(self) -> bool:
        """Return whether the losses are read after this step, and ranks agree.

        Reading waits for the device, and agreeing for the other ranks, so most steps do neither.
        """
        alone, every = not is_distributed(), (self._config.log_every, self._save_steps)
        urgent = alone and (self.stop.number or time.monotonic() >= self._save_at)
        return bool(urgent) or not all(self._progress.step % steps for steps in every)

    def requests(self) -> tuple[bool, int]:
        """Return whether the run is saved after this step, and the signal that stops it or 0."""
        # The maximum: a signal may have reached one rank only, and only rank 0 has a timer.
        due = is_rank_zero() and time.monotonic() >= self._save_at
        requests = [float(self.stop.number), float(due)]
        stopping, due_anywhere = max_over_ranks(requests, self._device)
        save = due_anywhere or stopping or self._progress.step % self._save_steps == 0
        return bool(save), int(stopping)

    def signal(self) -> int:
        """Return the signal that reached any of the ranks; 0 for none."""
        return int(max_over_ranks([float(self.stop.number)], torch.device("cpu"))[0])

    def remaining(self, done: float) -> float:
        """Return the seconds that are left when so many epochs are done."""
        if self._config.time is not None:
            return self.clock.total - self.clock.used
        per_epoch = (time.monotonic() - self._began) / max(done - self._began_at, 1e-9)
        return per_epoch * (self.epochs - done)

    def validates(self) -> bool:
        """Return whether this epoch ends with a validation.

        With ``time`` the last one does, and others after which a step and its validation fit: those
        of ``val_every``, else such that validations take a tenth of the time.
        """
        clock, config = self.clock, self._config
        if clock.left < clock.step + clock.validation:
            return clock.is_over
        if config.time is not None and config.val_every is None:
            return clock.validation_is_due
        return config.validates(self._progress.epoch + 1)

    def after_epoch(self, *, validated: bool) -> None:
        """Record the time that is used, and whether it is over."""
        if self._config.time is not None and validated:
            self.clock.after_validation()
        over = self.clock.is_over
        self.clock.next_epoch()
        self._progress.time_over = self.clock.total if over else 0.0
        self._progress.seconds = self.clock.now()
