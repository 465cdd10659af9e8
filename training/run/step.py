"""One optimizer step: forward and backward pass, update, averaged weights; its learning rate.

`train_step` is the one function of a step. The forward pass is
`training.model.trainable.Trainable`: bytes in, loss out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.profiler import record_function

from geoprep.errors import GeoprepError, UsageError
from loaders import Batch, BatchLoader, this_rank
from training.checkpoint import Checkpoint, CheckpointError
from training.engine.distributed import max_over_ranks, sum_in_place
from training.engine.native import Engine
from training.model.losses import LossParts
from training.model.trainable import (
    AVERAGE,
    COPY,
    WAIT,
    Timed,
    Trainable,
    average_share,
    copy_weights,
    running_statistics,
    update_average,
)
from training.run.parts import prepare
from training.settings import Config, OptimizerConfig

RISE = 0.3
START = 1 / 25
END = START / 1e4
"""One-cycle: share of the run with a rising rate, first and last factor (torch's defaults)."""


class TrainingError(GeoprepError):
    """Training failed so many steps ago, for example because the loss is no longer a number."""

    def __init__(self, message: str, ago: int = 0) -> None:
        super().__init__(message)
        self.ago = ago


class BatchGroup(NamedTuple):
    """Batches of one optimizer step."""

    size: int
    """Number of batches."""
    position: int
    """Samples of the epoch that all ranks have passed after the step."""


def batch_groups(loader: BatchLoader, position: int, every: int) -> list[BatchGroup]:
    """Return the optimizer steps of an epoch from a position on, each of ``every`` batches."""
    schedule = loader.schedule
    number = -(-position // (schedule.batch_size * schedule.world_size))
    steps, groups, size = list(schedule.steps(position)), [], 0
    for step in steps:
        number, size = number + 1, size + 1
        if number % every == 0 or step is steps[-1]:
            groups.append(BatchGroup(size, step.done))
            size = 0
    return groups


class StepResult(NamedTuple):
    """Result of an optimizer step; tensors are on the device."""

    losses: list[Tensor]
    """Loss, pixelwise part, dice and weight of each batch, fp32 (4,), see `LossParts`."""
    counts: list[int]
    """Number of samples of each batch."""
    norm: Tensor
    """Norm of the gradient before clipping."""
    waited: float
    """Seconds spent waiting for batches."""
    scale: Tensor | None = None
    """Factor of the loss, fp32 without dimensions; None if it is not scaled."""

    def flat(self) -> Tensor:
        """Return losses, norm and scale as one tensor, for `of`."""
        last = [self.norm] if self.scale is None else [self.norm, self.scale]
        return torch.cat([*self.losses, torch.stack(last)])

    @classmethod
    def of(cls, flat: Tensor, counts: list[int], waited: float) -> Self:
        """Return the result that `flat` has the tensors of."""
        losses = flat[: 4 * len(counts)].view(-1, 4).unbind()
        norm, *scale = flat[4 * len(counts) :].unbind()
        return cls([*losses], counts, norm, waited, *scale)

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


@dataclass
class StepState:
    """State that a step reads and changes besides its module and batches.

    ``averaged`` (EMA, moved with ``decay``) and ``statistics`` (running ones) are tensors of
    ``model`` by name; ``step`` counts the steps that are done. ``share`` is that of the weights in
    the averaged ones, where a step reads it on the device. ``timed`` is a context manager around
    each phase of a step.
    """

    engine: Engine
    model: nn.Module
    optimizer: Optimizer
    scaler: GradScaler | None = None
    clip: float | None = None
    decay: float = 0.0
    averaged: dict[str, Tensor] | None = None
    statistics: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    share: Tensor | None = None
    timed: Timed = record_function

    @classmethod
    def of(cls, trainable: Trainable, engine: Engine, config: Config, step: int = 0) -> Self:
        """Return the state for a module, which is moved to the engine's device and compiled."""
        optimizer = prepare(trainable, engine, config)
        model = trainable.model
        return cls(
            engine,
            model,
            optimizer,
            # In fp16, small gradients of a loss that is not scaled are 0.
            scaler=GradScaler(engine.device.type) if engine.dtype == torch.float16 else None,
            clip=config.clip,
            decay=config.ema,
            averaged=copy_weights(model) if config.ema else None,
            statistics=running_statistics(model),
            step=step,
            share=torch.zeros((), device=engine.device) if engine.captures and config.ema else None,
        )

    @property
    def rate(self) -> float:
        """The learning rate, without the factor of a slower encoder."""
        return float(self.optimizer.param_groups[0]["lr"])

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""
        for group in self.optimizer.param_groups:
            _set_rate(group, rate * group.get("factor", 1.0))

    def fill_share(self) -> None:
        """Set the share of the weights in the averaged ones for the next step."""
        if self.share is not None:
            self.share.fill_(average_share(self.decay, self.step + 1))

    def optimizer_state(self) -> dict[str, Any]:
        """Return the state of the optimizer, with plain numbers in its groups."""
        state = self.optimizer.state_dict()
        for group in state["param_groups"]:
            group["lr"] = float(group["lr"])
        return state

    def restore(self, saved: Checkpoint, where: str) -> None:
        """Restore optimizer, averaged weights and scaler of a checkpoint."""
        before = [(group["weight_decay"], group["lr"]) for group in self.optimizer.param_groups]
        try:
            if saved.optimizer is not None:
                self.optimizer.load_state_dict(saved.optimizer)
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"{where}: the optimizer's state does not fit this model ({error}): start a new run"
            ) from error
        for group, (decay, rate) in zip(self.optimizer.param_groups, before, strict=True):
            group["weight_decay"] = decay  # of the settings, which may have changed
            saved_rate, group["lr"] = group["lr"], rate  # here a tensor may be needed
            _set_rate(group, saved_rate)
        if self.averaged is not None and saved.ema is not None:
            for name, value in saved.ema.items():
                self.averaged[name].copy_(value)
        if self.scaler is not None and saved.scaler:
            self.scaler.load_state_dict(saved.scaler)

    def statistics_of_rank(self) -> list[Tensor]:
        """Return the running statistics of the model and of its averaged weights, not copied."""
        averaged = self.averaged or {}
        return [*self.statistics.values(), *(averaged[n] for n in self.statistics if averaged)]

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Give the model its averaged weights inside the context, if there are any."""
        if self.averaged is None:
            yield
            return
        own = copy_weights(self.model)
        self.model.load_state_dict(self.averaged)
        try:
            yield
        finally:
            self.model.load_state_dict(own)


def _set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a group of parameters; a tensor keeps its memory."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def train_step(
    module: nn.Module, batches: Iterable[Batch], state: StepState, count: int = 1
) -> StepResult:
    """Take an optimizer step over the next ``count`` batches of all ranks.

    Its loss is the mean over the labelled pixels of all of these batches, which have the same size.
    ``module`` is a `Trainable`, with gradients averaged over ranks if there are several. If loss
    or gradient is not finite, it raises TrainingError and leaves the weights unchanged. If the
    engine ``skips_steps``, the device skips the update instead, and `StepResult.check` raises the
    error when the losses are read.
    """
    engine, optimizer, scaler, timed = state.engine, state.optimizer, state.scaler, state.timed
    batches, losses, counts, waited = iter(batches), [], [], 0.0
    statistics = [*state.statistics.values()] if engine.skips_steps else []
    before = torch.cat([value.flatten() for value in statistics]) if statistics else None
    # Ranks average their gradients in the last batch of the step only.
    no_sync = getattr(module, "no_sync", None)
    ranks = 1 if no_sync is None else this_rank()[1]
    several = count * ranks > 1
    for number in range(1, count + 1):
        asked = time.perf_counter()
        with timed(WAIT):
            batch = next(batches)
        waited += time.perf_counter() - asked
        with no_sync() if no_sync and number < count else nullcontext():
            with timed(COPY):
                on_device = batch.to(engine.device, non_blocking=True)
            with engine.autocast():
                parts: LossParts = module(on_device)
            with timed("backward"):
                loss, weight = parts.total, parts.weight
                assert weight is not None  # see Trainable
                if several:  # the weight of all is known after the last batch
                    loss = loss * (weight / on_device.label.numel())
                # 1, or NaN if the loss is not finite: the gradients are NaN then. Ranks average
                # them, so all ranks skip the step.
                one = loss.detach() * 0 + 1
                scaled = loss if scaler is None else scaler.scale(loss)
                scaled.backward(one)  # type: ignore[no-untyped-call]  # torch's
        losses.append(torch.stack([*parts[:3], weight.float()]).detach())
        counts.append(len(batch))
        pixels = batch.label.numel()
        del batch, on_device  # releases the buffer before the next batch is waited for
    with timed("clip"):
        scale = None
        if scaler is not None:
            scale = scaler.scale(torch.ones_like(losses[0][0]))
            scaler.unscale_(optimizer)
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        if several:
            together = torch.stack(losses)[:, 3].sum()
            sum_in_place([together] * (ranks > 1))
            torch._foreach_mul_(gradients, ranks * pixels / together.clamp(min=1e-5))
        norm = get_total_norm(gradients)
        if state.clip is not None and (engine.skips_steps or norm > state.clip):
            clip_grads_with_norm_(module.parameters(), state.clip, norm)
    result = StepResult(losses, counts, norm, waited, scale)
    if engine.skips_steps:
        skip_unless_finite(optimizer, norm)
    elif not math.isfinite(norm):
        result.check()
    with timed("optimizer"):
        optimizer.step()
        if scaler is not None:
            scaler.update()
        optimizer.zero_grad()
    state.step += 1
    if before is not None:
        restore_unless_finite(statistics, before, norm)
    if state.averaged is not None:
        with timed(AVERAGE):
            applied = norm.isfinite() if engine.skips_steps else None
            share = average_share(state.decay, state.step) if state.share is None else state.share
            update_average(state.averaged, state.model, share, applied)
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


@contextmanager
def explained(where: Callable[[int], str]) -> Iterator[None]:
    """Add a remedy, and where a run was so many steps ago, to errors of values and gradients."""
    try:
        yield
    except TrainingError as error:
        raise TrainingError(
            f"{error} {where(error.ago)} with a smaller `lr` or `clip`, or with `precision` fp32"
        ) from error
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UsageError(
            "BatchNorm has one value per channel in a batch of one: use a larger `batch_size`"
        ) from error
    except RuntimeError as error:
        if "find_unused_parameters" not in str(error):
            raise
        raise TrainingError(
            "the loss does not depend on all parameters of the model, which several ranks have "
            "to know: add `find_unused_parameters`"
        ) from error


def learning_rate(config: OptimizerConfig, epochs: float, done: float) -> float:
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
