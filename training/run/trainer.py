"""A run of training, read from `Trainer.fit`: epochs, validation, checkpoints."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from geoprep.errors import UsageError
from geoprep.store.reader import StoreReader
from geoprep.texts import counted
from loaders import BatchLoader, is_distributed, this_rank
from training.checkpoint import BEST, LAST, Checkpoint, RunProgress, load_weights, save
from training.data import check_store, level_gsd
from training.engine.distributed import (
    average_in_place,
    data_parallel,
    gather_on_rank_zero,
    is_rank_zero,
    max_over_ranks,
    sum_over_ranks,
)
from training.engine.native import Engine, random_state, seed_all, set_random_state
from training.evaluation.metrics import worst_class
from training.evaluation.validation import examples, validate
from training.model.trainable import Trainable
from training.pictures import choose_tiles
from training.process import RunStopped, StopSignals
from training.run.captured import CapturedStep
from training.run.parts import info_of, labels_of, load_stage, make_trainable, resume_within
from training.run.pretrained import load_encoder_weights, load_initial_weights
from training.run.report import Pace, Report
from training.run.step import (
    StepResult,
    StepState,
    batch_groups,
    explained,
    learning_rate,
    train_step,
)
from training.run.timing import Clock, StepTimer, epoch_seconds, epochs_within
from training.setting_texts import parse_interval
from training.settings import Config

PARTS = ("loss", "main", "dice")


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
    clock, epochs
        The time that is used; the number of epochs, with ``time`` a forecast by the clock.
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
        self.report, self.stop = report or Report(None, quiet=True), stop or StopSignals()
        self.progress = RunProgress() if saved is None else RunProgress.from_plain(saved.progress)
        self.clock = Clock(config.time, self.progress.seconds)
        self.info = info_of(config, stores) if saved is None else saved.info
        self.relabelled = self.progress.compare_labels(labels_of(stores))
        check_store(self.info, stores, str(folder))
        seed_all(config.seed)
        self.trainable = self.make_trainable()
        self.initial = self._load_weights(saved)
        self.state = StepState.of(self.trainable, engine, config, self.progress.step)
        self.module: nn.Module = data_parallel(
            self.trainable, engine.device, find_unused=config.find_unused_parameters
        )
        self._restore(saved)
        self.epochs, self.stage, self.position = config.length, -1, 0
        self._begin_stage(config.stage_of(self.progress.epoch))
        if saved is not None and saved.loader.get("position"):
            resume_within(self.loader, saved, folder)
            self.position = int(saved.loader["position"])
        self.alone = not is_distributed()  # nothing has to be agreed on
        steps, self._interval = parse_interval(config.save_every)
        self._save_steps = steps or sys.maxsize
        self._began, self._began_at = time.monotonic(), self.done
        self._save_at = self._began + self._interval  # as time.monotonic()
        self._timer = StepTimer()
        self._saved_step = self.progress.step if (folder / LAST).exists() else None
        self._pending: list[StepResult] = []  # their losses are still on the device
        self._scenes: list[dict[str, Any]] = []  # of the last validation, and of the best
        self._best_scenes = self._scenes

    def make_trainable(self) -> Trainable:
        """Return the untrained model with its normalisation and loss, on the CPU in fp32."""
        return make_trainable(self.config, self.info, self.engine, self.stores)

    def learning_rate(self, done: float) -> float:
        """Return the learning rate of a step at whose end so many epochs are done."""
        return learning_rate(self.config, self.epochs, done)

    def fit(self) -> None:
        """Train until all epochs are done or ``patience`` is exhausted.

        RunStopped: a signal stopped the run, which is saved. TrainingError: a value is not finite.
        """
        progress = self.progress
        with explained(self._where):
            while not self._is_finished():
                stage = self.config.stage_of(progress.epoch)
                if stage != self.stage:
                    self._begin_stage(stage)
                    self.report.line(f"stage {stage + 1}: {self.config.all_stages[stage]}")
                figures = self.train_epoch()
                self._end_epoch(figures, self.validate())
        self.report.finish(self.config, self.info, progress, self._best_scenes, self.loader)

    def _is_finished(self) -> bool:
        """Return whether all epochs or the whole time are over, or ``patience`` is exhausted."""
        config, now = self.config, self.progress
        over = config.is_finished(now.epoch, now.time_over)
        return over or config.lost_patience(now.epoch, now.best_epoch)

    def train_epoch(self) -> dict[str, float]:
        """Train on the remaining batches of the epoch; return its mean losses and its pace."""
        progress, total = self.progress, len(self.loader)
        self.loader.set_epoch(progress.epoch)
        groups = batch_groups(self.loader, self.position, self.config.accumulate)
        self.module.train()
        batches = iter(self.loader) if groups else iter(())
        self.stop.at_once = False
        self.report.begin(self._title(), total, total - sum(group.size for group in groups))
        self._pace, self._since = Pace(), time.perf_counter()
        for size, position in groups:
            done = progress.epoch + position / self.loader.samples
            if self._ends_before(done):  # the last epoch may be a part of one
                break
            self.state.set_rate(self.learning_rate(done))
            self._pending.append(self.step(self.module, batches, self.state, size))
            progress.step, self.position = self.state.step, position
            self.report.advance(size)
            timing = self.config.time or self.engine.captures
            if timing and (taken := self._timer.step(self._read)):
                self._after_timing(taken)
            # Reading the losses waits for the device, so most steps do not. Ranks have to agree on
            # stopping and saving, so they do at these steps only.
            urgent = self.alone and (self.stop.number or time.monotonic() >= self._save_at)
            every = self.config.log_every, self._save_steps
            if urgent or not all(progress.step % steps for steps in every):
                self._after_steps()
        self._read()
        average_in_place(self.state.statistics_of_rank())
        if self.config.time is not None:
            self._pass_time()
        *sums, labelled = sum_over_ranks([*progress.sums, progress.labelled], self.engine.device)
        means = (part / labelled if labelled else math.nan for part in sums)
        return dict(zip(PARTS, means, strict=True)) | self._pace.figures()

    def _after_timing(self, taken: float) -> None:
        """Tell the rate of the first steps, and how many epochs a ``time`` is about."""
        (step,) = max_over_ranks([taken], self.engine.device)
        told = f"a step takes {step:.2g} s: {self.images_per_step / step:.1f} images/s"
        if self.config.time is not None:
            left, every = self.clock.total - self.clock.now(), self.config.accumulate
            end = self.done + epochs_within(left, step, self.loader, self.validation, every)
            told += f"; about {counted(round(end, 1), 'epoch')} in {self.config.time}"
        self.report.line(told)

    def _title(self) -> str:
        """Return the number of the current epoch, and how many there are if that is known."""
        of = "" if self.config.time else f"/{math.ceil(self.epochs)}"
        return f"epoch {self.progress.epoch + 1}{of}"

    def _ends_before(self, done: float) -> bool:
        """Return whether the run ends before the step at whose end so many epochs are done."""
        if self.config.time is None:
            return done > self.epochs + 1e-9
        self._pass_time()
        self.epochs = done / self.clock.share
        return self.clock.is_over and self.position > 0  # an epoch has a step

    def _pass_time(self) -> None:
        """Read the clock after a step; UsageError if it leaves no two steps."""
        self.clock.between_steps()
        if self.clock.left < 0 and 0 < self.progress.step <= 2:
            raise UsageError(
                f"`time` {self.config.time} is too short: "
                f"{counted(self.progress.step, 'step')} took {self.clock.used:.0f} s, most of it "
                "to load and to compile. Give more `time`, or set `compile` off or `epochs`"
            )

    def _after_steps(self) -> None:
        """Read the losses of pending steps and show them; save and stop if it is time to."""
        loss, pace = self._read()
        remaining = self.clock.total - self.clock.used
        if self.config.time is None:
            per_epoch = (time.monotonic() - self._began) / max(self.done - self._began_at, 1e-9)
            remaining = per_epoch * (self.epochs - self.done)
        values = {"loss": loss, "lr": self.state.rate, **pace.figures()}
        self.report.steps(values, self.progress.step, remaining)
        # The maximum: a signal may have reached one rank only, and only rank 0 has a timer.
        due = is_rank_zero() and time.monotonic() >= self._save_at
        requests = [float(self.stop.number), float(due)]
        stopping, due_anywhere = max_over_ranks(requests, self.engine.device)
        if due_anywhere or stopping or self.progress.step % self._save_steps == 0:
            self.save()
        if stopping:
            raise RunStopped(int(stopping))

    def _read(self) -> tuple[float, Pace]:
        """Wait for the device, add the pending steps to the epoch; return their loss and pace."""
        taken, self._pending, progress = self._pending, [], self.progress
        applied = [step.check(ago=len(taken) - number) for number, step in enumerate(taken)]
        if skipped := applied.count(False):
            progress.skipped += skipped
            self.report.line(
                f"{counted(skipped, 'step')} before step {progress.step + 1} skipped, with an "
                "overflow of fp16 in the gradient; the loss is scaled less from then on"
            )
        losses = [loss for step in taken for loss in step.losses]
        counts = [count for step in taken for count in step.counts]
        rows = torch.stack(losses).tolist() if losses else []
        begun, self._since = self._since, time.perf_counter()
        pace = Pace(sum(counts), self._since - begun, sum(step.waited for step in taken))
        self._pace = Pace(*map(sum, zip(self._pace, pace, strict=True)))
        progress.add(rows)
        labelled = sum(row[3] for row in rows)
        return sum(row[0] * row[3] for row in rows) / labelled if labelled else math.nan, pace

    def validate(self) -> dict[str, float]:
        """Return the metrics on the validation tiles; nothing if this epoch is not validated."""
        config, info, done = self.config, self.info, self.progress.epoch + 1
        # With a time, the last epoch, and others that leave time for a step and its validation.
        clock, last = self.clock, self.clock.is_over
        if not last and (not config.validates(done) or clock.left < clock.step + clock.validation):
            return {}
        if self.validation is None:
            return {info.score: math.nan}
        self.report.begin("validating", len(self.validation))

        def on_batch() -> None:
            self.report.advance(1)
            if stopping := self._stopping():
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

    def _stopping(self) -> int:
        """Return the signal that reached any of the ranks; 0 for none."""
        return int(max_over_ranks([float(self.stop.number)], torch.device("cpu"))[0])

    def _end_epoch(self, figures: dict[str, float], results: dict[str, float]) -> None:
        """Record the results of an epoch, and save it."""
        progress, score = self.progress, self.info.score
        if self.config.time is not None and results:
            self.clock.after_validation()
        progress.time_over = self.clock.total if self.clock.is_over else 0.0
        self.clock.next_epoch()
        progress.seconds = self.clock.now()
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
        best = score in row and progress.is_best(row[score], row.get("val_loss", math.nan))
        title = self._title()
        progress.history.append(row)
        progress.epoch, self.position = progress.epoch + 1, 0
        progress.reset_sums()
        if best:
            self._best_scenes = self._scenes
            self.save_best()
        self.save()
        self.report.epoch(title, row, results, progress.history, best=best)
        if (stopping := self._stopping()) and not self._is_finished():
            raise RunStopped(stopping)
        self.stop.at_once = True  # all is saved

    @property
    def images_per_step(self) -> int:
        """Samples of an optimizer step of all ranks."""
        return self.loader.schedule.batch_size * self.config.accumulate * this_rank()[1]

    @property
    def done(self) -> float:
        """Epochs that are done, as a fraction."""
        return self.progress.epoch + self.position / self.loader.samples

    def _begin_stage(self, number: int) -> None:
        """Load the tiles of a stage."""
        if self.stage >= 0:
            del self.loader, self.validation  # first free the memory of their tiles
        stage, self.stage = self.config.all_stages[number], number
        self.step = CapturedStep(self.report.line) if self.engine.captures else train_step
        level = stage.level or self.stores[0].meta.levels[0]
        self.info = replace(self.info, level=level, gsd_m=level_gsd(self.stores[0], level))
        loaders = load_stage(self.config, self.info, self.stores, stage, self.engine.device)
        self.loader, self.validation = loaders
        given = *loaders, self.config.accumulate
        self.clock.steps_per_validation = epoch_seconds(1.0, *given)[1]
        if self.progress.epoch in (0, *self.config.ends):
            self.progress.forget_best()

    def _load_weights(self, saved: Checkpoint | None) -> str:
        """Load the weights that the run begins with; return a line on those of a new run."""
        model, config = self.trainable.model, self.config
        if saved is not None:
            load_weights(model, saved.model, str(self.folder))
            return ""
        if config.init_from is not None:
            return load_initial_weights(model, self.info, config.init_from)
        if config.encoder_weights == "none":
            return "random weights"
        return load_encoder_weights(model, config.encoder_weights, config.model, self.info.bands)

    def _restore(self, saved: Checkpoint | None) -> None:
        """Restore the state and the random numbers of a checkpoint."""
        rank, ranks = this_rank()
        if rank:  # every rank draws its own dropout
            seed_all(hash((self.config.seed, rank, self.progress.step)))
            self.progress.reset_sums()
        if saved is None:
            return
        self.state.restore(saved, str(self.folder))
        states = [saved.rng, *saved.rng.get("other_ranks", [])] if saved.rng else []
        if rank < len(states):  # more ranks than before keep their seeds
            set_random_state(states[rank], self.engine.device)
        if len(states) == ranks:  # other numbers of ranks take the means
            own = states[rank].get("statistics", ())
            for now, before in zip(self.state.statistics_of_rank(), own, strict=False):
                now.copy_(before)

    def save(self) -> None:
        """Write last.pt from the first rank, with the sums and random states of all ranks.

        The file has the means of the running statistics of all ranks, and those of each rank.
        """
        progress, state = self.progress, self.state
        progress.seconds = self.clock.now()
        totals = sum_over_ranks([*progress.sums, progress.labelled], self.engine.device)
        rng = random_state(self.engine.device)
        statistics = [] if self.alone else state.statistics_of_rank()
        own = [value.cpu().clone() for value in statistics]
        rng |= {"statistics": own} if own else {}
        first, *others = gather_on_rank_zero(rng) or [rng]
        average_in_place(statistics)
        try:
            if is_rank_zero():
                progress.sums, progress.labelled = totals[:-1], totals[-1]
                place = {"epoch": progress.epoch, "position": self.position}
                checkpoint = self._checkpoint(
                    optimizer=state.optimizer_state(),
                    loader=self.loader.state_dict() | place,
                    rng=first | ({"other_ranks": others} if others else {}),
                    scaler={} if state.scaler is None else state.scaler.state_dict(),
                )
                save(self.folder / LAST, checkpoint)
            else:
                progress.reset_sums()
        finally:
            for value, before in zip(statistics, own, strict=True):
                value.copy_(before)
        self._save_at, self._saved_step = time.monotonic() + self._interval, progress.step

    def save_best(self) -> None:
        """Write best.pt, the weights without the optimizer, from rank 0."""
        if is_rank_zero():
            save(self.folder / BEST, self._checkpoint())

    def _checkpoint(self, **training: Any) -> Checkpoint:  # noqa: ANN401 - fields of many types
        """Return the weights of the run; and what only training needs, as given."""
        model, averaged = self.state.model, self.state.averaged
        return Checkpoint(
            info=self.info,
            model=model.state_dict(),
            ema=averaged,
            progress=asdict(self.progress),
            config=self.config.flat(),
            environment=self.engine.environment(),
            **training,
        )

    def _where(self, ago: int) -> str:
        """Return step, epoch and seed of a failed step, and how to resume from before it."""
        step, epoch = self.progress.step + 1 - ago, self.progress.epoch + 1
        kept = f"the last checkpoint is of step {self._saved_step}: `resume` {self.folder}"
        again = kept if self._saved_step is not None else "no checkpoint was written: start again"
        return f"(step {step}, epoch {epoch}, seed {self.config.seed}); {again}"
