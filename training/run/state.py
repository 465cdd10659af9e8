"""State of a run: progress, model, optimizer and loaders, from settings or a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.profiler import record_function

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
    random_state,
    seed_all,
    set_random_state,
    sum_over_ranks,
)
from training.model import (
    Timed,
    copy_weights,
    load_encoder_weights,
    load_initial_weights,
    load_weights,
    make_trainable,
    prepare,
    running_statistics,
    training_only,
)
from training.runners import training_extent, write_item
from training.settings import Config


class BatchGroup(NamedTuple):
    """Batches of one optimizer step."""

    size: int
    """Number of batches."""
    position: int
    """Samples of the epoch that all ranks have passed after the step."""


@dataclass(slots=True)
class RunProgress:
    """Counters of a run, which a checkpoint holds."""

    epoch: int = 0
    """Current epoch, counted from 0 over all stages."""
    step: int = 0
    """Number of optimizer steps that are done."""
    best: float = math.nan
    """Best validation IoU of the stage (`ModelInfo.score`)."""
    best_epoch: int = -1
    """Its epoch; -1 before the first."""
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Sums of loss, pixelwise part and dice over the samples of the current epoch."""
    samples: int = 0
    """Number of these samples."""
    seconds: float = 0.0
    """Wall time of training, over all starts."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Rows of metrics.csv, one per epoch."""
    skipped: int = 0
    """Steps that were skipped, since their gradient overflowed in fp16."""

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
        """Return the counters that `dataclasses.asdict` turned into plain values."""
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
    """Everything that a run trains and trains with, new or from a checkpoint to resume.

    ``info`` and the loaders are those of the current ``stage``, see `enter_stage`. ``validation``
    is None if no scene is in the validation split. ``module`` is ``trainable`` with gradients
    averaged over ranks. ``averaged`` (EMA) and ``statistics`` (running ones) are tensors by name.
    ``timed`` is a context manager around each phase of a step.
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
        self.position = 0  # samples of the epoch that all ranks have passed
        self.timed: Timed = record_function
        self._loader_state = {} if saved is None else saved.loader
        self.info: ModelInfo = model_info(config, stores) if saved is None else saved.info
        check_store(self.info, stores, str(folder))
        seed_all(config.seed)
        self.trainable = make_trainable(config, self.info, engine, stores)
        model, self.initial = self.trainable.model, ""
        if saved is not None:  # best.pt has no auxiliary weights: they stay at random
            whole = training_only(model) | saved.model | saved.auxiliary
            load_weights(model, whole, str(folder))
        elif config.init_from is not None:
            self.initial = load_initial_weights(model, self.info, config.init_from)
        else:
            self.initial = load_encoder_weights(model, config.encoder_weights, config.model)
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

    def _restore(self, saved: Checkpoint | None) -> None:
        """Restore optimizer, averaged weights and random states of a checkpoint."""
        rank, _ = this_rank()
        if rank:  # every rank draws its own dropout
            seed_all(hash((self.config.seed, rank, self.progress.step)))
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
        """Go to the position in the current epoch; return whether its stage is new, and loaded."""
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
            self.position = int(state["position"])
        self.loader.set_epoch(progress.epoch)
        return entered

    def groups(self) -> list[BatchGroup]:
        """Return the remaining optimizer steps of the current epoch."""
        schedule, every = self.loader.schedule, self.config.accumulate
        number = -(-self.position // (schedule.batch_size * schedule.world_size))
        steps, groups, size = list(schedule.steps(self.position)), [], 0
        for step in steps:
            number, size = number + 1, size + 1
            if number % every == 0 or step is steps[-1]:
                groups.append(BatchGroup(size, step.done))
                size = 0
        return groups

    @property
    def done(self) -> float:
        """Epochs that are done, as a fraction."""
        return self.progress.epoch + self.position / self.loader.samples

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
        progress = self.progress
        totals = sum_over_ranks([*progress.sums, progress.samples], self.engine.device)
        state = random_state(self.engine.device)
        statistics = self.statistics_of_rank() if is_distributed() else []
        if statistics:
            state["statistics"] = [value.cpu().clone() for value in statistics]
        states = gather_on_rank_zero(state)
        average_in_place(statistics)
        if is_rank_zero():
            progress.sums, progress.samples = totals[:-1], int(totals[-1])
        else:
            progress.reset_sums()
        try:
            if is_rank_zero():
                self._save_last(states)
        finally:
            for value, own in zip(statistics, state.get("statistics", ()), strict=True):
                value.copy_(own)

    def _save_last(self, states: Sequence[dict[str, Any]]) -> None:
        place = {"epoch": self.progress.epoch, "position": self.position}
        whole = replace(
            self._weights(),
            optimizer=self.optimizer.state_dict(),
            loader=self.loader.state_dict() | place,
            rng=states[0] | ({"other_ranks": [*states[1:]]} if len(states) > 1 else {}),
            scaler={} if self.scaler is None else self.scaler.state_dict(),
            auxiliary=training_only(self.trainable.model),
        )
        files.save(self.folder / LAST, whole)

    def save_best(self) -> None:
        """Write best.pt, the weights without the optimizer, and its item, from the first rank."""
        if is_rank_zero():
            weights = self._weights()
            files.save(self.folder / BEST, weights)
            write_item(self.folder / BEST, weights, training_extent(self.stores))

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
