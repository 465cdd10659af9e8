"""The learning rate as a function of how far a run is, in epochs: no state, nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Callable

from geoprep.errors import UsageError
from training.config import OptimizerConfig

Schedule = Callable[[float], float]
"""Epochs done, at the end of the step -> factor of the highest learning rate."""

RISE = 0.3
START = 1 / 25
END = START / 1e4
"""One-cycle: share of the run that rises, first and last factor: the defaults of torch's."""


def make_schedule(config: OptimizerConfig, epochs: int) -> Schedule:
    """Return the course of the learning rate.

    Parameters
    ----------
    config
        Schedule, warm-up, milestones.
    epochs
        Of the whole run.

    Raises
    ------
    UsageError
        Milestones or warm-up make no sense.
    """
    if config.warmup < 0:
        raise UsageError(f"--warmup {config.warmup} must be 0 or more epochs")
    if config.schedule == "onecycle":
        return lambda done: _one_cycle(done / epochs)
    rising = min(config.warmup, epochs / 2)
    course: Schedule
    if config.schedule == "cosine":
        course = lambda done: _cosine(1.0, 0.0, (done - rising) / (epochs - rising))  # noqa: E731 - one of three alike
    elif config.schedule == "multistep":
        falls = _milestones(config.milestones)
        course = lambda done: config.gamma ** sum(done > at for at in falls)  # noqa: E731 - as above
    else:
        course = lambda done: 1.0  # noqa: E731 - as above
    return lambda done: done / rising if done < rising else course(done)


def _cosine(first: float, last: float, share: float) -> float:
    """Return the point of a half cosine wave from ``first`` to ``last``."""
    share = min(max(share, 0.0), 1.0)
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * share))


def _one_cycle(share: float) -> float:
    """Return the factor of Smith's one-cycle policy (2018), as torch's OneCycleLR has it."""
    if share < RISE:
        return _cosine(START, 1.0, share / RISE)
    return _cosine(1.0, END, (share - RISE) / (1 - RISE))


def _milestones(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UsageError(f"--milestones {text!r}: write epochs such as 20,25") from error
