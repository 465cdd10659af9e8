"""The loop: epochs of steps, each epoch validated."""

from __future__ import annotations

from itertools import islice

from training.monitor.callbacks import Callbacks
from training.run import Run


def fit(run: Run, callbacks: Callbacks) -> None:
    """Train until all epochs are done or patience is at its end.

    Raises
    ------
    Stopped
        The run was asked to stop, and is saved.
    TrainingError
        Loss or gradient are no longer finite.
    """
    while run.progress.epoch < run.config.epochs and not run.out_of_patience:
        callbacks.begin_epoch(new_stage=run.enter_stage())
        train_epoch(run, callbacks)
        callbacks.end_epoch()
    callbacks.finish()


def train_epoch(run: Run, callbacks: Callbacks) -> None:
    """Train on what is left of the epoch."""
    run.module.train()
    groups, batches = run.groups(), run.meter.timed(run.data.loader)
    for group in groups:
        with callbacks.explained():
            run.meter.add(run.step(islice(batches, group.size), group))
        callbacks.after_step(group)
    next(batches, None)  # which ends the epoch of the loader
