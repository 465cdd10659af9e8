"""What the rest of a run would take, by its measured steps: ``geoprep fit STORE --plan``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, repeat

import psutil
import torch
from torch import nn

from geoprep.texts import counted
from loaders import available_memory
from training.engine.distributed import max_over_ranks
from training.engine.native import wait_for
from training.model.build import UNET_SMALL
from training.run.parts import make_trainable
from training.run.report import duration
from training.run.step import StepState, train_step
from training.run.timing import StepTimer, epoch_seconds, epochs_within
from training.run.trainer import Trainer


def time_step(run: Trainer) -> float:
    """Return the seconds of an optimizer step on the batches of a run, on the slowest rank.

    The learning rate is 0, but statistics of batches and random numbers change: for a run that ends
    then.
    """
    return _seconds(run, run.step, run.module, run.state)


def _seconds(
    run: Trainer, take: Callable[..., object], module: nn.Module, state: StepState
) -> float:
    """Return the seconds of a step with a module and its state."""
    batches = chain.from_iterable(repeat(run.loader))
    state.set_rate(0.0)
    step = partial(take, module.train(), batches, state, run.config.accumulate)
    seconds = StepTimer().measure(step, partial(wait_for, run.engine.device))
    return max_over_ranks([seconds], run.engine.device)[0]


def plan(run: Trainer) -> None:
    """Print what the rest of a run would take. Nothing is saved."""
    for line in _planned(run):
        run.report.line(f"{'plan':<12} {line}")


def _planned(run: Trainer) -> Iterator[str]:
    """Yield lines on what the rest of a run would take, by `time_step`."""
    config, every, step = run.config, run.config.accumulate, time_step(run)
    given, images = (run.loader, run.validation, every), run.images_per_step
    epoch, validated = epoch_seconds(step, *given)
    yield _memory(run.engine.device)
    yield f"a step of {counted(images, 'image')} takes {step:.2g} s: {images / step:.1f} images/s"
    yield f"an epoch takes {duration(epoch)}, its validation {duration(validated)}"
    end = run.agreed.epochs
    if config.time:
        left = run.agreed.remaining(run.done)
        end = run.done + epochs_within(left, step, *given, config.val_every)
    # Of each stage: side of its tiles, samples of a tile and epoch, and the pixels of these.
    work = []
    for stage in config.all_stages:
        side = stage.level or run.stores[0].meta.levels[0]
        crop, samples = config.crops_of(stage, side)
        work.append((side, samples, samples * (crop or side) ** 2))
    timed = work[run.stage]
    steps = seconds = 0.0
    for number in range(run.progress.epoch, math.ceil(end)):
        share = min(end, number + 1) - max(run.done, number)
        side, samples, pixels = work[config.stage_of(number)]
        steps += share * -(-len(run.loader) // every) * samples / timed[1]
        seconds += share * epoch * pixels / timed[2]
        if config.validates(number + 1):
            seconds += validated * (side / timed[0]) ** 2
    if config.time:
        seconds = left
    epochs = counted(round(end - run.done, 2), "epoch")
    yield f"{epochs}: {counted(round(steps), 'step')} in {duration(seconds)}"
    if run.engine.device.type == "cpu":
        yield from _smaller(run, step, end - run.done)


def _memory(device: torch.device) -> str:
    """Return the memory that this process has taken by its steps, and what is left."""
    if device.type == "cpu":  # the allocator keeps what the steps took
        taken, left = psutil.Process().memory_info().rss, available_memory()
    else:
        taken = torch.get_device_module(device).max_memory_reserved(device)
        left = available_memory(device=device)
    return f"{_gib(taken)} of memory are taken; {_gib(left.nbytes)} are left ({left.limited_by})"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"


def _smaller(run: Trainer, step: float, epochs: float) -> Iterator[str]:
    """Yield how often the small model would see each tile while the run takes these epochs."""
    info = replace(run.info, model=UNET_SMALL)
    small = make_trainable(run.config, info, run.engine, run.stores)
    own, least = (sum(p.numel() for p in one.parameters()) for one in (run.trainable, small))
    if own > least:
        state = StepState.of(small, run.engine, run.config)
        faster = step / _seconds(run, train_step, small, state)
        seen = epochs * run.loader.sampling.crops_per_tile
        yield (
            f"a smaller model, `model` {UNET_SMALL}, would see each tile {faster * seen:.0f} times "
            f"in this time, not {seen:.0f}"
        )
