"""One optimizer step: learning rate, forward and backward pass, update, averaged weights.

Read from the bottom: `training_step` sets the learning rate, takes an `optimizer_step` and updates
the averaged weights. The forward pass is `training.model.Trainable`: bytes in, loss out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.profiler import record_function

from geoprep.errors import GeoprepError
from loaders import Batch
from training.engine import CUDA_GRAPHS, Engine, max_over_ranks
from training.model import AVERAGE, COPY, WAIT, LossParts, Timed, update_average
from training.run.state import BatchGroup, Run
from training.settings import OptimizerConfig

RISE = 0.3
START = 1 / 25
END = START / 1e4
"""One-cycle: share of the run with a rising rate, first and last factor (torch's defaults)."""


class TrainingError(GeoprepError):
    """Training failed so many steps ago, for example because the loss is no longer a number."""

    def __init__(self, message: str, ago: int = 0) -> None:
        super().__init__(message)
        self.ago = ago


class StepResult(NamedTuple):
    """Result of an optimizer step; tensors are on the device."""

    losses: list[Tensor]
    """Loss, pixelwise part and dice of each batch, fp32 (3,)."""
    counts: list[int]
    """Number of samples of each batch."""
    norm: Tensor
    """Norm of the gradient before clipping."""
    waited: float
    """Seconds spent waiting for batches."""
    scale: Tensor | None = None
    """Factor of the loss, fp32 without dimensions; None if it is not scaled."""

    def check(self, ago: int = 0) -> bool:
        """Return whether the step was applied: not if its scaled gradient overflowed.

        This waits for the device. All ranks raise TrainingError if the loss is not finite, or the
        gradient at a scale of 1 or less.
        """
        if math.isfinite(self.norm):  # the same on all ranks
            return True
        wrong = not all(math.isfinite(loss[0]) for loss in self.losses)
        (wrong_anywhere,) = max_over_ranks([float(wrong)], self.norm.device)
        if wrong_anywhere:
            raise TrainingError("the loss is not a number", ago)
        if self.scale is None or self.scale <= 1:
            raise TrainingError("the gradient is not finite, though the loss is", ago)
        return False


def learning_rate(config: OptimizerConfig, epochs: int, done: float) -> float:
    """Return the learning rate of a step, by the epochs done at its end and their total."""
    if config.schedule == "onecycle":
        return config.lr * _one_cycle(done / epochs)
    warmup = min(config.warmup, epochs / 2)
    if done < warmup:
        return config.lr * (done / warmup)
    if config.schedule == "cosine":
        return config.lr * _cosine(1.0, 0.0, (done - warmup) / (epochs - warmup))
    return config.lr


def _one_cycle(share: float) -> float:
    """Return the factor of the one-cycle policy (Smith 2018), as torch's OneCycleLR computes it."""
    if share < RISE:
        return _cosine(START, 1.0, share / RISE)
    return _cosine(1.0, END, (share - RISE) / (1 - RISE))


def _cosine(first: float, last: float, share: float) -> float:
    """Return the point at ``share`` of a half cosine wave from ``first`` to ``last``."""
    share = min(max(share, 0.0), 1.0)
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * share))


def optimizer_step(
    module: nn.Module,
    optimizer: Optimizer,
    engine: Engine,
    batches: Iterable[Batch],
    count: int = 1,
    *,
    clip: float | None = None,
    scaler: GradScaler | None = None,
    timed: Timed = record_function,
) -> StepResult:
    """Take an optimizer step over the next ``count`` batches, each with the same weight.

    If loss or gradient is not finite, it raises TrainingError and leaves the weights unchanged. If
    the engine ``skips_steps``, the device skips the update instead, and `StepResult.check` raises
    the error when the losses are read.
    """
    batches, losses, counts, waited = iter(batches), [], [], 0.0
    # Ranks average their gradients in the last batch of the step only.
    no_sync = getattr(module, "no_sync", nullcontext)
    for number in range(1, count + 1):
        asked = time.perf_counter()
        with timed(WAIT):
            batch = next(batches)
        waited += time.perf_counter() - asked
        with no_sync() if number < count else nullcontext():
            with timed(COPY):
                on_device = batch.to(engine.device, non_blocking=True)
            with engine.autocast():
                parts: LossParts = module(on_device.image, on_device.label, on_device.key)
            with timed("backward"):
                loss = parts.total / count
                # 1, or NaN if the loss is not finite: the gradients are NaN then. Ranks average
                # them, so all ranks skip the step.
                one = loss.detach() * 0 + 1
                scaled = loss if scaler is None else scaler.scale(loss)
                scaled.backward(one)  # type: ignore[no-untyped-call]  # torch's
        losses.append(torch.stack([*parts]).detach())
        counts.append(len(batch))
        del batch, on_device  # releases the buffer before the next batch is waited for
    with timed("clip"):
        scale = None
        if scaler is not None:
            scale = scaler.scale(torch.ones_like(losses[0][0]))
            scaler.unscale_(optimizer)
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        norm = get_total_norm(gradients)
        if clip is not None and (engine.skips_steps or norm > clip):
            clip_grads_with_norm_(module.parameters(), clip, norm)
    result = StepResult(losses, counts, norm, waited, scale)
    if engine.skips_steps:
        skip_unless_finite(optimizer, norm)
    elif not math.isfinite(norm):
        result.check()
    with timed("optimizer"):
        optimizer.step()
        if scaler is not None:
            scaler.update()
        optimizer.zero_grad(set_to_none=engine.compile_mode not in CUDA_GRAPHS)
    return result


def skip_unless_finite(optimizer: Optimizer, norm: Tensor) -> None:
    """Let the next step of a fused optimizer change nothing if the norm is not finite.

    This is the interface of torch's GradScaler to fused optimizers; the host does not wait.
    """
    optimizer.found_inf = norm.isfinite().logical_not().float()  # type: ignore[attr-defined]  # read by step()


@torch.no_grad()
def restore_unless_finite(buffers: Sequence[Tensor], before: Tensor, norm: Tensor) -> None:
    """Give buffers their values before a step, one after the other, if its norm is not finite."""
    now = torch.cat([buffer.flatten() for buffer in buffers])
    kept = torch.where(norm.isfinite(), now, before)
    parts = torch.split(kept, [buffer.numel() for buffer in buffers])
    torch._foreach_copy_([*buffers], [p.view_as(b) for p, b in zip(parts, buffers, strict=True)])


def training_step(run: Run, batches: Iterator[Batch], group: BatchGroup) -> StepResult:
    """Take one step of a run: learning rate, `optimizer_step`, averaged weights."""
    config, progress = run.config, run.progress
    done = progress.epoch + group.position / run.loader.samples
    rate = learning_rate(config, run.epochs, done)
    for part in run.optimizer.param_groups:
        part["lr"] = rate * part.get("factor", 1.0)
    skips = run.engine.skips_steps
    statistics = [*run.statistics.values()] if skips else []
    before = torch.cat([value.flatten() for value in statistics]) if statistics else None
    result = optimizer_step(
        *(run.module, run.optimizer, run.engine, batches, group.size),
        clip=config.clip,
        scaler=run.scaler,
        timed=run.timed,
    )
    progress.step, run.position = progress.step + 1, group.position
    if before is not None:
        restore_unless_finite(statistics, before, result.norm)
    if run.averaged is not None:
        with run.timed(AVERAGE):
            applied = result.norm.isfinite() if skips else None
            update_average(run.averaged, run.trainable.model, config.ema, progress.step, applied)
    return result
