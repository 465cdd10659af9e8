"""State of a run: progress, model, optimizer and loaders, from settings or a checkpoint."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import record_function

from geoprep.errors import GeoprepError
from geoprep.store import StoreReader
from loaders import BatchLoader, is_distributed, this_rank
from training import checkpoint as files
from training.checkpoint import BEST, LAST, Checkpoint, CheckpointError, ModelInfo
from training.data import check_store, level_gsd, load_stage, model_info
from training.engine import (
    Engine,
    average_in_place,
    data_parallel,
    gather_on_rank_zero,
    is_rank_zero,
    max_over_ranks,
    sum_over_ranks,
)
from training.model import (
    Timed,
    load_encoder_weights,
    load_initial_weights,
    make_trainable,
    prepare,
    training_only,
)
from training.settings import Config


class TrainingError(GeoprepError):
    """Training failed, for example because the loss is no longer a number.

    Parameters
    ----------
    message
        The reason.
    ago
        Number of steps since the failure, the failed step included.
    """

    def __init__(self, message: str, ago: int = 0) -> None:
        super().__init__(message)
        self.ago = ago


class StepResult(NamedTuple):
    """Result of an optimizer step.

    Attributes
    ----------
    losses
        Loss, pixelwise part and dice of each batch, fp32 (3,) on the device.
    counts
        Number of samples of each batch.
    norm
        Norm of the gradient before clipping, on the device.
    waited
        Seconds spent waiting for batches.
    scale
        Factor of the loss, fp32 without dimensions on the device; None if it is not scaled.
    """

    losses: list[Tensor]
    counts: list[int]
    norm: Tensor
    waited: float
    scale: Tensor | None = None

    def check(self, ago: int = 0) -> bool:
        """Return whether the step was applied; waits for the device.

        A step whose scaled gradient overflowed was not, and the next one has a smaller scale.

        Raises
        ------
        TrainingError
            The loss is not finite, or the gradient at a scale of 1 or less. All ranks raise it.
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


class BatchGroup(NamedTuple):
    """Batches of one optimizer step.

    Attributes
    ----------
    size
        Number of batches.
    batches
        Batches of the epoch that are done after the step.
    done
        Epochs that are done after the step, as a fraction.
    """

    size: int
    batches: int
    done: float


@dataclass(slots=True)
class RunProgress:
    """Counters of a run, which a checkpoint holds.

    Attributes
    ----------
    epoch
        Current epoch, counted from 0 over all stages.
    step
        Number of optimizer steps that are done.
    best, best_epoch
        Best validation IoU of the stage (`ModelInfo.score`), and its epoch; NaN and -1 before the
        first.
    sums, samples
        Sums of loss, pixelwise part and dice over the samples of the current epoch, and their
        number.
    seconds
        Wall time of training, over all starts.
    history
        Rows of metrics.csv, one per epoch.
    skipped
        Number of steps that were skipped, since their gradient overflowed in fp16.
    """

    epoch: int = 0
    step: int = 0
    best: float = math.nan
    best_epoch: int = -1
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    samples: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    skipped: int = 0

    def add(self, rows: Sequence[Sequence[float]], counts: Sequence[int]) -> None:
        """Add loss, pixelwise part and dice of batches to the sums of the epoch.

        Added batch by batch, the sums do not depend on how often the losses are read.
        """
        for count, row in zip(counts, rows, strict=True):
            self.sums = [total + count * part for total, part in zip(self.sums, row, strict=True)]
            self.samples += count

    def reset_sums(self) -> None:
        """Set the sums to 0: an epoch begins, or the first rank holds the sums of all ranks."""
        self.sums, self.samples = [0.0] * len(self.sums), 0

    def is_best(self, score: float) -> bool:
        """Record a validation result; return whether it is the best of its stage."""
        if not math.isnan(self.best) and not score > self.best:
            return False
        self.best, self.best_epoch = score, self.epoch
        return True

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Return the counters that `dataclasses.asdict` turned into plain values.

        Raises
        ------
        CheckpointError
            A counter is missing or unknown, as in a file of another version.
        """
        if "epoch" not in values or "step" not in values:
            raise CheckpointError(
                "this checkpoint has no epoch and step: it is for prediction only; resume from "
                "another one"
            )
        try:
            return cls(**values)
        except TypeError as error:
            raise CheckpointError(
                f"the progress in this checkpoint has another form ({error}): resume with the "
                "version that wrote it"
            ) from error


class Run:
    """Everything that a run trains and trains with.

    Parameters
    ----------
    config
        Settings.
    engine
        Device, precision and compiler.
    stores
        Stores of the tiles.
    folder
        Output folder.
    saved
        Checkpoint to resume from; None starts a new run.

    Attributes
    ----------
    progress
        Counters of the run.
    epochs, stage
        Number of epochs of all stages; index of the current stage, -1 before the first.
    info
        Inputs and outputs of the model, at the level of the current stage.
    trainable, module
        Module that returns the loss of a batch; the same with gradients averaged over ranks.
    optimizer
        Optimizer of the model's parameters.
    scaler
        Scales the loss in fp16; None in other precisions.
    averaged
        Averaged weights (EMA) by name, on the device; None without averaging.
    statistics
        Running statistics of the model: its buffers of floats, by name, not copied.
    loader, validation
        Training batches and whole validation tiles of the current stage, see `enter_stage`;
        ``validation`` is None if no scene is in the validation split.
    initial
        One line on the initial weights of a new run.
    timed
        Context manager around each phase of a step; torch's profiler shows them by default.
    """

    loader: BatchLoader
    validation: BatchLoader | None

    def __init__(
        self,
        config: Config,
        engine: Engine,
        stores: tuple[StoreReader, ...],
        folder: Path,
        saved: Checkpoint | None = None,
    ) -> None:
        self.config, self.engine, self.stores, self.folder = config, engine, stores, folder
        self.progress = RunProgress() if saved is None else RunProgress.from_plain(saved.progress)
        self.epochs, self.stage = config.ends[-1], -1
        self.timed: Timed = record_function
        self._loader_state = {} if saved is None else saved.loader
        self.info: ModelInfo = model_info(config, stores) if saved is None else saved.info
        check_store(self.info, stores, str(folder))
        torch.manual_seed(config.seed)
        self.trainable = make_trainable(config, self.info, engine, stores)
        self.initial = ""
        if saved is None:
            self.initial = self._load_initial_weights()
        else:
            model = self.trainable.model  # best.pt has no auxiliary weights: they stay at random
            whole = training_only(model) | saved.model | saved.auxiliary
            files.load_weights(model, whole, str(folder))
        self.optimizer = prepare(self.trainable, engine, config)
        self.scaler = engine.grad_scaler()
        self.module: nn.Module = data_parallel(
            self.trainable, engine.device, find_unused=config.find_unused_parameters
        )
        self.averaged: dict[str, Tensor] | None = None
        if config.ema:
            self.averaged = copy_weights(self.trainable.model)
        self.statistics = running_statistics(self.trainable.model)
        self._restore(saved)

    def _load_initial_weights(self) -> str:
        config, model = self.config, self.trainable.model
        if config.init_from is not None:
            return load_initial_weights(model, self.info, config.init_from)
        return load_encoder_weights(model, config.encoder_weights, config.model)

    def _restore(self, saved: Checkpoint | None) -> None:
        """Restore optimizer, averaged weights and random states of a checkpoint."""
        rank, _ = this_rank()
        if rank:  # every rank draws its own dropout
            torch.manual_seed(hash((self.config.seed, rank, self.progress.step)))
            self.progress.reset_sums()
        if saved is None:
            return
        if saved.optimizer is not None:
            self._restore_optimizer(saved.optimizer)
        if self.averaged is not None and saved.ema is not None:
            for name, value in saved.ema.items():
                self.averaged[name].copy_(value)
        if self.scaler is not None and saved.scaler:
            self.scaler.load_state_dict(saved.scaler)
        states = [saved.rng, *saved.rng.get("other_ranks", [])] if saved.rng else []
        if rank < len(states):  # more ranks than before keep their seeds
            set_random_state(states[rank], self.engine.device)
        if len(states) == this_rank()[1]:  # other numbers of ranks take the means
            own = states[rank].get("statistics", ())
            for now, before in zip(self.statistics_of_rank(), own, strict=False):
                now.copy_(before)

    def _restore_optimizer(self, state: dict[str, Any]) -> None:
        decay = [group["weight_decay"] for group in self.optimizer.param_groups]
        try:
            self.optimizer.load_state_dict(state)
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"{self.folder}: the optimizer's state does not fit this model ({error}): start "
                "a new run"
            ) from error
        for group, wanted in zip(self.optimizer.param_groups, decay, strict=True):
            group["weight_decay"] = wanted  # of the settings, which may have changed

    @property
    def out_of_patience(self) -> bool:
        """Whether the last stage had no better score for ``patience`` epochs."""
        patience, done = self.config.patience, self.progress.epoch
        *_, before = 0, *self.config.ends[:-1]
        if patience is None or done <= before:
            return False
        return self.progress.best_epoch >= 0 and done - 1 - self.progress.best_epoch >= patience

    def enter_stage(self) -> bool:
        """Load the tiles of the next epoch's stage; return whether the stage is new.

        Raises
        ------
        StoreError, UsageError
            The tiles cannot be loaded, or are not those of the interrupted epoch.
        """
        number, progress = self.config.stage_of(self.progress.epoch), self.progress
        entered = number != self.stage
        if entered:
            if self.stage >= 0:
                del self.loader, self.validation  # first free the memory of their tiles
            stage, self.stage = self.config.plan[number], number
            level = stage.level or self.stores[0].meta.levels[0]
            self.info = replace(self.info, level=level, gsd_m=level_gsd(self.stores[0], level))
            loaders = load_stage(self.config, self.info, self.stores, stage, self.engine.device)
            self.loader, self.validation = loaders
            if progress.epoch in (0, *self.config.ends):
                # Results at different resolutions are not comparable.
                progress.best, progress.best_epoch = math.nan, -1
        state, self._loader_state = self._loader_state, {}
        if state.get("position"):
            self.loader.load_state_dict(state)
        if not self._epoch_done:
            self.loader.set_epoch(progress.epoch)
        return entered

    @property
    def _epoch_done(self) -> bool:
        """Whether the current epoch is trained completely: the loader is at the next one."""
        return self.loader.epoch > self.progress.epoch

    def groups(self) -> list[BatchGroup]:
        """Return the remaining optimizer steps of the current epoch."""
        if self._epoch_done:
            return []
        schedule, every = self.loader.schedule, self.config.accumulate
        start = int(self.loader.state_dict()["position"])
        stride = schedule.batch_size * schedule.world_size
        first = before = -(-start // stride)
        total = first + sum(1 for _ in schedule.steps(start))
        groups = []
        while before < total:
            end = min(before - before % every + every, total)
            passed = min(1.0, (start + (end - first) * stride) / schedule.samples)
            groups.append(BatchGroup(end - before, end, self.progress.epoch + passed))
            before = end
        return groups

    def statistics_of_rank(self) -> list[Tensor]:
        """Return the running statistics of the model and of its averaged weights, not copied."""
        averaged = self.averaged or {}
        return [*self.statistics.values(), *(averaged[n] for n in self.statistics if averaged)]

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Give the model its averaged weights inside the context, if the run has any."""
        if self.averaged is None:
            yield
            return
        model = self.trainable.model
        own = copy_weights(model)
        model.load_state_dict(self.averaged)
        try:
            yield
        finally:
            model.load_state_dict(own)

    def environment(self) -> dict[str, Any]:
        """Return what the exact weights of a run depend on besides its settings."""
        return {
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
            "engine": self.engine.name,
            "precision": str(self.engine.dtype).removeprefix("torch."),
            "device": self.engine.device.type,
            "compiled": self.engine.compile_mode,
            "ranks": this_rank()[1],
        }

    def save(self) -> None:
        """Write last.pt from the first rank, with the sums and random states of all ranks.

        The file has the means of the running statistics of all ranks, and those of each rank.
        """
        progress, loader = self.progress, self.loader.state_dict()
        totals = sum_over_ranks([*progress.sums, progress.samples], self.engine.device)
        state = random_state(self.engine.device)
        statistics = self.statistics_of_rank() if is_distributed() else []
        if statistics:
            state["statistics"] = [value.cpu().clone() for value in statistics]
        states = gather_on_rank_zero(state)
        average_in_place(statistics)
        try:
            self._save_whole(totals, states, loader)
        finally:
            for value, own in zip(statistics, state.get("statistics", ()), strict=True):
                value.copy_(own)

    def _save_whole(
        self, totals: list[float], states: list[dict[str, Any]], loader: dict[str, Any]
    ) -> None:
        progress = self.progress
        if not is_rank_zero():
            progress.reset_sums()
            return
        progress.sums, progress.samples = totals[:-1], int(totals[-1])
        if self._epoch_done:  # but not validated
            loader |= {"epoch": progress.epoch, "position": self.loader.samples}
        elif loader["position"] == 0:
            loader |= {"epoch": progress.epoch}
        whole = replace(
            self._weights(),
            optimizer=self.optimizer.state_dict(),
            loader=loader,
            rng=states[0] | ({"other_ranks": states[1:]} if len(states) > 1 else {}),
            scaler={} if self.scaler is None else self.scaler.state_dict(),
            auxiliary=training_only(self.trainable.model),
        )
        files.save(self.folder / LAST, whole)

    def save_best(self) -> None:
        """Write best.pt, the weights without the optimizer, from the first rank."""
        if is_rank_zero():
            files.save(self.folder / BEST, self._weights())

    def _weights(self) -> Checkpoint:
        model, averaged = self.trainable.model, self.averaged
        spare = training_only(model)
        return Checkpoint(
            info=self.info,
            model={n: v for n, v in model.state_dict().items() if n not in spare},
            ema=averaged and {n: v for n, v in averaged.items() if n not in spare},
            progress=asdict(self.progress),
            config=self.config.flat(),
            environment=self.environment(),
        )


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's parameters and buffers by name."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of floats in a model's ``state_dict`` by name, not copied."""
    parameters = {name for name, _ in model.named_parameters()}
    return {
        name: value
        for name, value in model.state_dict().items()
        if name not in parameters and value.is_floating_point()
    }


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of all random generators as plain values and tensors."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - the one that users' models may use
    state = {
        "torch": torch.get_rng_state(),
        "python": list(random.getstate()[1]),
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Restore all random generators to a state of `random_state`."""
    torch.set_rng_state(state["torch"].cpu())
    random.setstate((3, tuple(state["python"]), None))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))  # noqa: NPY002 - as above
    if "device" in state and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state["device"].cpu())
