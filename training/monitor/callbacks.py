"""Work between steps and epochs: read and show the loss, save, validate, stop on signals."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from loaders import BatchLoader, is_distributed, this_rank
from training.checkpoint import BEST, LAST
from training.engine import average_in_place, is_rank_zero, max_over_ranks, sum_over_ranks
from training.evaluation import examples, threshold_text, validate, worst_class
from training.monitor.console import Console, duration
from training.monitor.pictures import choose_tiles, draw_curves, draw_examples
from training.monitor.signals import RunStopped, StopSignals
from training.run import Run, StepResult, TrainingError
from training.settings import counted, parse_interval

PARTS = ("loss", "main", "dice")
TITLES = {"road_iou": "road IoU", "mean_iou": "mean IoU"}
"""Metrics that the best checkpoint is chosen by."""

CPU = torch.device("cpu")


class StepStatistics(NamedTuple):
    """Statistics of consecutive steps.

    Attributes
    ----------
    loss
        Sum of the loss over samples.
    samples
        Samples of this rank.
    seconds, waited
        Wall time, and the part of it spent waiting for batches.
    """

    loss: float
    samples: int
    seconds: float
    waited: float

    def pace(self) -> dict[str, float]:
        """Return the images per second of all ranks, and the share of time spent waiting."""
        seconds = max(self.seconds, 1e-9)
        rate = this_rank()[1] * self.samples / seconds
        return {"images_per_s": rate, "data_wait": self.waited / seconds}


class Callbacks:
    """Work around the steps of a run.

    Parameters
    ----------
    run
        The run.
    console
        Output for lines, figures and the progress bar.
    stop
        Signals that stop the run.

    Attributes
    ----------
    pending
        Results of steps whose losses have not been read from the device.
    save_steps
        Steps between checkpoints within an epoch; a huge number if they are timed.
    save_at
        `time.monotonic` of the next checkpoint; infinite if checkpoints are by steps.
    saved_step
        Step of the last checkpoint; None before the first.
    alone
        Whether there is one rank, so that nothing has to be agreed on.
    """

    def __init__(self, run: Run, console: Console, stop: StopSignals) -> None:
        self.run, self.console, self.stop = run, console, stop
        self.pending: list[StepResult] = []
        self._statistics: list[StepStatistics] = []  # of this epoch
        steps, self._interval = parse_interval(run.config.save_every)
        self.save_steps = steps or sys.maxsize
        self._began = time.monotonic()
        self.save_at = self._began + self._interval
        there = (run.folder / LAST).exists()
        self.saved_step = run.progress.step if there else None
        self.alone = not is_distributed()
        self._began_at = math.nan
        self._score = math.nan

    def begin_epoch(self, *, new_stage: bool) -> None:
        """Show the stage and the progress bar of an epoch."""
        run, epoch, config = self.run, self.run.progress.epoch, self.run.config
        self.stop.at_once = False
        if new_stage and len(config.plan) > 1:
            self.console.line(f"stage {run.stage + 1}: {config.plan[run.stage]}")
        groups, total = run.groups(), len(run.loader)
        before = groups[0].batches - groups[0].size if groups else total
        if math.isnan(self._began_at):
            self._began_at = epoch + before / total
        self.console.begin_bar(f"epoch {epoch + 1}/{run.epochs}", total, before)
        self._statistics, self._since = [], time.perf_counter()

    def after_steps(self, done: float) -> None:
        """Read the losses of pending steps and show them; save and stop if it is time to.

        Parameters
        ----------
        done
            Epochs that are done, as a fraction.

        Raises
        ------
        RunStopped, TrainingError
            See `training.loop.train`.
        """
        self._show(self._read(), done)
        # The maximum: a signal may have reached one rank only, and only rank 0 has a timer.
        requests = [float(self.stop.number), float(is_rank_zero() and self._is_due())]
        stopping, save = max_over_ranks(requests, self.run.engine.device)
        if save or stopping or self.run.progress.step % self.save_steps == 0:
            self._save()
        if stopping:
            raise RunStopped(int(stopping))

    def _is_due(self) -> bool:
        """Return whether the last checkpoint is older than the interval."""
        return time.monotonic() >= self.save_at

    def _save(self) -> None:
        self.run.save()
        self.save_at = time.monotonic() + self._interval
        self.saved_step = self.run.progress.step

    def _read(self) -> StepStatistics:
        """Wait for the device, and add the pending steps to the sums of the epoch."""
        taken, self.pending, progress = self.pending, [], self.run.progress
        applied = [step.check(ago=len(taken) - number) for number, step in enumerate(taken)]
        if skipped := applied.count(False):
            progress.skipped += skipped
            self.console.line(
                f"{counted(skipped, 'step')} before step {progress.step + 1} skipped, with an "
                "overflow of fp16 in the gradient; the loss is scaled less from then on"
            )
        losses = [loss for step in taken for loss in step.losses]
        counts = [count for step in taken for count in step.counts]
        rows = torch.stack(losses).tolist() if losses else []
        begun, self._since = self._since, time.perf_counter()
        statistics = StepStatistics(
            sum(n * row[0] for n, row in zip(counts, rows, strict=True)),
            sum(counts),
            self._since - begun,
            sum(step.waited for step in taken),
        )
        self._statistics.append(statistics)
        progress.add(rows, counts)
        progress.seconds += statistics.seconds
        return statistics

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Add the step and a remedy to errors about losses and gradients that are not finite."""
        try:
            yield
        except TrainingError as error:
            run, step = self.run, self.run.progress.step + 1 - error.ago
            where = f"step {step}, epoch {run.progress.epoch + 1}, seed {run.config.seed}"
            again = "no checkpoint was written: start again"
            if self.saved_step is not None:
                again = f"the last checkpoint is of step {self.saved_step}: `resume` {run.folder}"
            raise TrainingError(
                f"{error} ({where}); {again} with a smaller `lr` or `clip`, or with `precision` "
                "fp32"
            ) from error
        except RuntimeError as error:
            if "find_unused_parameters" not in str(error):
                raise
            raise TrainingError(
                "the loss does not depend on all parameters of the model, which several ranks have "
                "to know: add `find_unused_parameters`"
            ) from error

    def _show(self, statistics: StepStatistics, done: float) -> None:
        loss, pace = statistics.loss / statistics.samples, statistics.pace()
        per_epoch = (time.monotonic() - self._began) / max(done - self._began_at, 1e-9)
        remaining = duration(per_epoch * (self.run.epochs - done))
        title = TITLES[self.run.info.score]
        iou = "" if math.isnan(self._score) else f"{title} {self._score:.3f}  "
        self.console.state(f"loss {loss:.4f}  {iou}{_pace_text(pace)}  {remaining} left")
        scalars = {"loss": loss, "lr": self.run.optimizer.param_groups[0]["lr"], **pace}
        self.console.scalars("train", scalars, self.run.progress.step)

    def end_epoch(self) -> None:
        """Validate the epoch, save it, and record its results.

        Raises
        ------
        RunStopped, TrainingError
            See `training.loop.train`.
        """
        run, progress = self.run, self.run.progress
        self._read()
        average_in_place(run.statistics_of_rank())
        totals = [*progress.sums, progress.samples]
        *sums, samples = sum_over_ranks(totals, run.engine.device)
        results = self._validate()
        row: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "level": run.info.level,
            "step": progress.step,
            "lr": run.optimizer.param_groups[0]["lr"],
            **{name: total / max(samples, 1) for name, total in zip(PARTS, sums, strict=True)},
            **results,
            **StepStatistics(*map(sum, zip(*self._statistics, strict=True))).pace(),
            "seconds": progress.seconds,
            **({} if run.scaler is None else {"skipped": progress.skipped}),
        }
        if "worst_iou" in row:
            row["worst_class"] = worst_class(row, run.info.class_names)
        score = run.info.score
        best = score in row and progress.is_best(row[score])
        progress.history.append(row)
        progress.epoch += 1
        progress.reset_sums()
        if best:
            run.save_best()
        self._save()
        self._record(row, best)
        self.console.scalars("epoch", {"loss": row["loss"]}, progress.step)
        self.console.scalars("val", results, progress.step)
        stopping = self._stopping()
        if stopping and progress.epoch < run.epochs:
            raise RunStopped(stopping)
        self.stop.at_once = True  # all is saved

    def _stopping(self) -> int:
        """Return the signal that reached any of the ranks; 0 for none."""
        return int(max_over_ranks([float(self.stop.number)], CPU)[0])

    def _validate(self) -> dict[str, float]:
        """Return the metrics on the validation tiles; nothing if this epoch is not validated."""
        run, done = self.run, self.run.progress.epoch + 1
        if done % run.config.val_every and done not in run.config.ends:
            return {}
        if run.validation is None:
            return {run.info.score: math.nan}
        self.console.begin_bar("validating", len(run.validation), 0)
        seen = itertools.count(1)

        def on_batch() -> None:
            self.console.advance(next(seen))
            if stopping := self._stopping():
                raise RunStopped(stopping)

        arguments = (run.trainable, run.engine, run.info, run.validation)
        try:
            with run.averaged_weights():
                results = validate(*arguments, on_batch=on_batch)
                self._score = results[run.info.score]
                if is_rank_zero() and run.config.pictures:
                    self._draw(run.validation)
        except RunStopped:  # caught here, where the model has its own weights again
            run.save()
            raise
        if not math.isnan(results.get("threshold", math.nan)):
            run.info = replace(run.info, threshold=results["threshold"])
        return results

    def _draw(self, loader: BatchLoader) -> None:
        run, number = self.run, self.run.progress.epoch + 1
        folder = run.folder / "pictures"
        folder.mkdir(exist_ok=True)
        chosen = choose_tiles(loader.tiles.road_fraction, run.config.pictures)
        shown = examples(run.trainable, run.engine, run.info, loader, chosen)
        score = f"{TITLES[run.info.score]} {self._score:.3f}"
        title = f"epoch {number}, {score} over all validation tiles"
        draw_examples(folder / f"epoch_{number:03d}.png", shown, run.info.bands, title)

    def _record(self, row: dict[str, Any], best: bool) -> None:
        run, progress = self.run, self.run.progress
        parts = [f"epoch {progress.epoch}/{run.epochs}", f"loss {row['loss']:.4f}"]
        if run.validation is not None:  # the header says if there is none
            shown = {"val_loss": "val", **TITLES, "bin_iou": "bin IoU"}
            parts += [f"{label} {row[name]:.3f}" for name, label in shown.items() if name in row]
        if row.get("worst_class"):
            parts.append(f"worst {row['worst_class']} {row['worst_iou']:.3f}")
        if "speed_mae_mph" in row:
            parts.append(f"speed error {row['speed_mae_mph']:.1f} mph")
        if not math.isnan(row.get("threshold", math.nan)):
            parts.append(f"threshold {threshold_text(row, 2)}")
        parts += [_pace_text(row)] + ["best"] * (best and run.validation is not None)
        self.console.end_bar()
        self.console.line("  ".join(parts))
        self.console.table(progress.history)

    def finish(self) -> None:
        """Draw the curves and print where the results are."""
        run, progress = self.run, self.run.progress
        if not is_rank_zero() or not progress.history:
            return
        draw_curves(run.folder / "curves.png", progress.history)
        patience = run.config.patience
        if patience and run.out_of_patience:
            what = f"no better {TITLES[run.info.score]}"
            self.console.line(f"stopped early: {what} for {counted(patience, 'epoch')}")
        if not math.isnan(progress.best):
            self.console.line(
                f"best {TITLES[run.info.score]} {progress.best:.3f} after epoch "
                f"{progress.best_epoch + 1}: {run.folder / BEST}"
            )
        made = ("curves.png", "metrics.csv", "pictures", "tensorboard")
        there = ", ".join(name for name in made if (run.folder / name).exists())
        self.console.line(f"in {run.folder}: {there}")


def _pace_text(pace: Mapping[str, float]) -> str:
    return f"{pace['images_per_s']:.1f} images/s  data wait {pace['data_wait']:.1%}"
