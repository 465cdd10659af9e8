"""A run of training, read from `Trainer.fit`: epochs of steps, validation, checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from geoprep.store.reader import StoreReader
from geoprep.texts import counted
from loaders import BatchLoader, this_rank
from training.checkpoint import Checkpoint, RunProgress
from training.data import check_store, level_gsd
from training.engine.distributed import (
    average_in_place,
    data_parallel,
    is_rank_zero,
    max_over_ranks,
)
from training.engine.native import Engine, seed_all
from training.evaluation.metrics import worst_class
from training.evaluation.validation import examples, validate
from training.model.trainable import Trainable
from training.pictures import choose_tiles
from training.process import RunStopped, StopSignals
from training.run.agreement import Agreement
from training.run.captured import CapturedStep
from training.run.checkpoints import Checkpoints
from training.run.parts import info_of, labels_of, load_stage, make_trainable, resume_within
from training.run.pretrained import first_weights
from training.run.report import Report
from training.run.results import PARTS, Results
from training.run.step import StepState, batch_groups, explained, learning_rate, train_step
from training.run.timing import StepTimer, epoch_seconds, epochs_within
from training.settings import Config


class Trainer:
    """Trains a model on stores, new or from a checkpoint to resume.

    Attributes
    ----------
    info, loader, validation
        Inputs and outputs of the model; loaders of a stage. ``validation`` is None without scenes.
    trainable, module
        The module of a step; the same with gradients averaged over ranks.
    state
        Optimizer and averaged weights.
    progress, position
        Counters, and the samples of the epoch that all ranks have passed.
    agreed
        What all ranks decide alike: its clock, when losses are read and saved, the end.
    results, checkpoints
        Results of steps that are not yet read; last.pt and best.pt.
    initial
        Line on the initial weights; empty in a resumed run.
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
        *,
        report: Report | None = None,
        stop: StopSignals | None = None,
    ) -> None:
        self.config, self.engine, self.stores, self.folder = config, engine, stores, folder
        self.report = report or Report(None, quiet=True)
        self.progress = RunProgress() if saved is None else RunProgress.from_plain(saved.progress)
        self.agreed = Agreement(config, self.progress, stop or StopSignals(), engine.device)
        self.results = Results(self.progress, self.report)
        self.info = info_of(config, stores) if saved is None else saved.info
        self.relabelled = self.progress.compare_labels(labels_of(stores))
        check_store(self.info, stores, str(folder))
        seed_all(config.seed)
        self.trainable = self.make_trainable()
        self.initial = first_weights(self.trainable.model, self.info, config, saved)
        self.state = StepState.of(self.trainable, engine, config, self.progress.step)
        self.module: nn.Module = data_parallel(
            self.trainable, engine.device, find_unused=config.find_unused_parameters
        )
        self.checkpoints = Checkpoints(folder, config, engine, self.state, self.progress)
        self.checkpoints.restore(saved)
        self.stage, self.position = -1, 0
        self._begin_stage()
        if saved is not None and saved.loader.get("position"):
            resume_within(self.loader, saved, folder)
            self.position = int(saved.loader["position"])
        self.agreed.begin(self.done)
        self._timer = StepTimer() if config.time or engine.captures else None
        self._scenes: list[dict[str, Any]] = []  # of the last validation, and of the best
        self._best_scenes = self._scenes

    def make_trainable(self) -> Trainable:
        """Return the untrained model with its normalisation and loss, on the CPU in fp32."""
        return make_trainable(self.config, self.info, self.engine, self.stores)

    def learning_rate(self, done: float) -> float:
        """Return the learning rate of a step at whose end so many epochs are done."""
        return learning_rate(self.config, self.agreed.epochs, done)

    def fit(self) -> None:
        """Train until all epochs or the time are over, or ``patience`` is exhausted.

        RunStopped: a signal stopped the run, which is saved. TrainingError: a value is not finite.
        """
        with explained(self.checkpoints.where):
            while not self.agreed.is_finished():
                self._begin_stage()
                figures = self.train_epoch()
                self._end_epoch(figures, self.validate())
        given = self.config, self.info, self.progress, self._best_scenes, self.loader
        self.report.finish(*given)

    def train_epoch(self) -> dict[str, float]:
        """Train on the remaining batches of the epoch; return its mean losses and its pace."""
        progress, loader = self.progress, self.loader
        loader.set_epoch(progress.epoch)
        groups = batch_groups(loader, self.position, self.config.accumulate)
        batches = iter(loader) if groups else iter(())
        self.module.train()
        self._begin_bar(sum(group.size for group in groups))
        for size, position in groups:
            done = progress.epoch + position / loader.samples
            if self.agreed.ends_before(done, begun=self.position > 0):
                break
            self.state.set_rate(self.learning_rate(done))
            self.results.append(self.step(self.module, batches, self.state, size))
            progress.step, self.position = self.state.step, position
            self.report.advance(size)
            self._tell_rate()
            if self.agreed.due():
                self._tell_losses()
                self._save_or_stop()
        self.results.read()
        average_in_place(self.state.statistics_of_rank())
        self.agreed.after_steps()
        return self.results.of_epoch(self.engine.device)

    def _begin_bar(self, left: int) -> None:
        """Begin to measure an epoch with so many batches left."""
        self.agreed.stop.at_once = False
        self.report.begin(self.agreed.title(), len(self.loader), len(self.loader) - left)
        self.results.begin_epoch()

    def _tell_rate(self) -> None:
        """Print the rate of the first steps, and about how many epochs a ``time`` is."""
        if self._timer is None or (taken := self._timer.step(self.results.read)) is None:
            return
        (step,) = max_over_ranks([taken], self.engine.device)
        told = f"a step takes {step:.2g} s: {self.images_per_step / step:.1f} images/s"
        if self.config.time is not None:
            config, left = self.config, self.agreed.remaining(self.done)
            given = self.loader, self.validation, config.accumulate, config.val_every
            end = self.done + epochs_within(left, step, *given)
            told += f"; about {counted(round(end, 1), 'epoch')} in {self.config.time}"
        self.report.line(told)

    def _tell_losses(self) -> None:
        """Show the loss and pace of the steps since the last time."""
        loss, pace = self.results.read()
        values = {"loss": loss, "lr": self.state.rate, **pace.figures()}
        self.report.steps(values, self.progress.step, self.agreed.remaining(self.done))

    def _save_or_stop(self) -> None:
        """Save the run and stop it, if it is time to."""
        save, stopping = self.agreed.requests()
        if save:
            self.save()
        if stopping:
            raise RunStopped(stopping)

    def validate(self) -> dict[str, float]:
        """Return the metrics on the validation tiles; nothing if this epoch is not validated."""
        config, info, done = self.config, self.info, self.progress.epoch + 1
        if not self.agreed.validates():
            return {}
        if self.validation is None:
            return {info.score: math.nan}
        self.report.begin("validating", len(self.validation))

        def on_batch() -> None:
            self.report.advance(1)
            if stopping := self.agreed.signal():
                raise RunStopped(stopping)

        given = self.trainable, self.engine, info, self.validation
        try:
            with self.state.averaged_weights():
                results, self._scenes = validate(*given, on_batch=on_batch)
                tiles, count = self.validation.tiles, config.pictures * is_rank_zero()
                chosen = choose_tiles(tiles.road_fraction, tiles.table["valid_fraction"], count)
                shown = examples(*given, chosen)
        except RunStopped:  # caught here, where the model has its own weights again
            self.save()
            raise
        self.report.validated(done, info.score, results[info.score], shown, info.bands)
        if not math.isnan(results.get("threshold", math.nan)):
            self.info = replace(info, threshold=results["threshold"])
        return results

    def _end_epoch(self, figures: dict[str, float], results: dict[str, float]) -> None:
        """Record the results of an epoch, and save them if it was validated or it is time to."""
        progress, score, title = self.progress, self.info.score, self.agreed.title()
        self.agreed.after_epoch(validated=bool(results))
        row = self._row(figures, results)
        best = score in row and progress.is_best(row[score], row.get("val_loss", math.nan))
        progress.history.append(row)
        progress.epoch, self.position = progress.epoch + 1, 0
        progress.reset_sums()
        if best:
            self._best_scenes = self._scenes
            self.checkpoints.save_best(self.info)
        save, stopping = self.agreed.requests()
        if saved := bool(results or save or stopping):
            self.save()
        self.report.epoch(title, row, results, progress.history, best=best, saved=saved)
        if stopping and not self.agreed.is_finished():
            raise RunStopped(stopping)
        self.agreed.stop.at_once = saved  # else there is something to lose

    def save(self) -> None:
        """Write last.pt."""
        self.progress.seconds = self.agreed.clock.now()
        self.checkpoints.save(self.info, self.loader, self.position)
        self.agreed.saved()

    def _row(self, figures: dict[str, float], results: dict[str, float]) -> dict[str, Any]:
        """Return the row of metrics.csv of an epoch."""
        progress = self.progress
        row: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "level": self.info.level,
            "step": progress.step,
            "lr": self.state.rate,
            **{name: figures[name] for name in PARTS},
            **results,
            **{name: value for name, value in figures.items() if name not in PARTS},
            "seconds": progress.seconds,
            **({} if self.state.scaler is None else {"skipped": progress.skipped}),
        }
        if "worst_iou" in row:
            row["worst_class"] = worst_class(row, self.info.class_names)
        return row

    @property
    def images_per_step(self) -> int:
        """Samples of an optimizer step of all ranks."""
        return self.loader.schedule.batch_size * self.config.accumulate * this_rank()[1]

    @property
    def done(self) -> float:
        """Epochs that are done, as a fraction."""
        return self.progress.epoch + self.position / self.loader.samples

    def _begin_stage(self) -> None:
        """Load the tiles of the stage of the current epoch, unless they are loaded."""
        before, self.stage = self.stage, self.config.stage_of(self.progress.epoch)
        if before == self.stage:
            return
        if before >= 0:
            del self.loader, self.validation  # first free the memory of their tiles
        stage = self.config.all_stages[self.stage]
        self.step = CapturedStep(self.report.line) if self.engine.captures else train_step
        level = stage.level or self.stores[0].meta.levels[0]
        self.info = replace(self.info, level=level, gsd_m=level_gsd(self.stores[0], level))
        loaders = load_stage(self.config, self.info, self.stores, stage, self.engine.device)
        self.loader, self.validation = loaders
        every = self.config.accumulate
        self.agreed.clock.steps_per_validation = epoch_seconds(1.0, *loaders, every)[1]
        if self.progress.epoch in (0, *self.config.ends):
            self.progress.forget_best()
        if before >= 0:
            self.report.line(f"stage {self.stage + 1}: {stage}")
