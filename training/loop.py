"""The loop: epochs of steps, each epoch judged."""

from __future__ import annotations

from torch.nn.utils import clip_grad_norm_

from training.distributed import gradients_kept_apart
from training.monitor.callbacks import Lookout
from training.run import Run


def fit(run: Run, lookout: Lookout) -> None:
    """Train until all epochs are done or patience is at its end.

    Raises
    ------
    Stopped
        The run was asked to stop, and is saved.
    TrainingError
        The loss is no longer a number.
    """
    while run.progress.epoch < run.plan.epochs and not run.out_of_patience:
        lookout.begin_epoch(new_stage=run.enter_stage())
        train_epoch(run, lookout)
        lookout.end_epoch()
    lookout.finish()


def train_epoch(run: Run, lookout: Lookout) -> None:
    """Train on what is left of the epoch."""
    run.module.train()
    pace, clip = run.pace(), run.config.optim.clip
    for number, host_batch in enumerate(run.meter.timed(run.data.loader)):
        size, closes = pace.group(number)
        batch = host_batch.to(run.engine.device, non_blocking=True)
        with gradients_kept_apart(run.module, not closes):
            with run.engine.autocast():
                parts = run.module(batch.image, batch.speed, batch.key)
            (parts.total / size).backward()
        run.meter.add(host_batch, parts)
        if not closes:
            continue
        done = run.progress.epoch + pace.done(number)
        run.set_rate(done)
        if clip is not None:
            clip_grad_norm_(run.module.parameters(), clip)
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.progress.step += 1
        if run.ema is not None:
            run.ema.update(run.progress.step)
        lookout.after_step(done, batches=pace.before + number + 1)
