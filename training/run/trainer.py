"""The training loop: epochs, and the work between steps, read from `Trainer.fit`."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from loaders import BatchLoader, is_distributed, this_rank
from training.checkpoint import BEST, LAST
from training.engine import average_in_place, is_rank_zero, max_over_ranks, sum_over_ranks
from training.evaluation import SCORES, Standing, examples, threshold_text, validate, worst_class
from training.model import is_code
from training.pictures import choose_tiles, draw_curves, draw_examples
from training.run.console import Console, duration
from training.run.state import Run
from training.run.step import StepResult, TrainingError, training_step
from training.setting_texts import counted, parse_interval
from training.signals import RunStopped, StopSignals

PARTS = ("loss", "main", "dice")
CPU = torch.device("cpu")


class Pace(NamedTuple):
    """Samples of this rank in consecutive steps, wall time, and seconds waiting for batches."""

    samples: float = 0
    seconds: float = 0.0
    waited: float = 0.0

    def plus(self, other: Pace) -> Pace:
        """Return the pace of both."""
        return Pace(*map(sum, zip(self, other, strict=True)))

    def figures(self) -> dict[str, float]:
        """Return the images per second of all ranks and the share of waiting; NaN without steps."""
        seconds = max(self.seconds, 1e-9) if self.samples else math.nan
        rate = this_rank()[1] * self.samples / seconds
        return {"images_per_s": rate, "data_wait": self.waited / seconds}


class Trainer:
    """Trains a run: takes its steps, reads and shows the loss, saves, validates, stops.

    ``pending`` are results of steps whose losses have not been read from the device. The next
    checkpoint is due at ``save_at`` (`time.monotonic`) or after ``save_steps``. ``alone``: there is
    one rank, so that nothing has to be agreed on.
    """

    def __init__(self, run: Run, console: Console, stop: StopSignals) -> None:
        self.run, self.console, self.stop = run, console, stop
        self.pending: list[StepResult] = []
        self.alone = not is_distributed()
        steps, self._interval = parse_interval(run.config.save_every)
        self.save_steps = steps or sys.maxsize
        self._began, self._began_at = time.monotonic(), run.done
        self.save_at = self._began + self._interval
        there = (run.folder / LAST).exists()
        self._saved_step = run.progress.step if there else None
        self._score = math.nan
        self._scenes: list[dict[str, Any]] = []  # of the last validation, and of the best
        self._best_scenes = self._scenes

    def fit(self) -> None:
        """Train until all epochs are done or ``patience`` is exhausted.

        RunStopped: a signal stopped the run, which is saved. TrainingError: a value is not finite.
        """
        run, plan = self.run, self.run.config.plan
        with self._explained():
            while run.progress.epoch < run.epochs and not run.out_of_patience:
                if run.enter_stage() and len(plan) > 1:
                    self.console.line(f"stage {run.stage + 1}: {plan[run.stage]}")
                self.train_epoch()
                self.end_epoch()
        self._finish()

    def train_epoch(self) -> None:
        """Train on the remaining batches of the current epoch."""
        run, total = self.run, len(self.run.loader)
        run.module.train()
        groups = run.groups()
        batches = iter(run.loader) if groups else iter(())
        self.stop.at_once = False
        title = f"epoch {run.progress.epoch + 1}/{run.epochs}"
        self.console.begin_bar(title, total, total - sum(group.size for group in groups))
        self._pace, self._since = Pace(), time.perf_counter()
        for group in groups:
            self.pending.append(training_step(run, batches, group))
            self.console.advance(group.size)
            # Reading the losses waits for the device, so most steps do not. Ranks have to agree on
            # stopping and saving, so they do at these steps only.
            step, now = run.progress.step, time.monotonic()
            urgent = self.alone and (self.stop.number or now >= self.save_at)
            if urgent or not step % run.config.log_every or not step % self.save_steps:
                self._after_steps()

    def _after_steps(self) -> None:
        """Read the losses of pending steps and show them; save and stop if it is time to."""
        self._show(*self._read())
        # The maximum: a signal may have reached one rank only, and only rank 0 has a timer.
        due = is_rank_zero() and time.monotonic() >= self.save_at
        requests = [float(self.stop.number), float(due)]
        stopping, save = max_over_ranks(requests, self.run.engine.device)
        if save or stopping or self.run.progress.step % self.save_steps == 0:
            self._save()
        if stopping:
            raise RunStopped(int(stopping))

    def _save(self) -> None:
        self.run.save()
        self.save_at = time.monotonic() + self._interval
        self._saved_step = self.run.progress.step

    def _read(self) -> tuple[float, Pace]:
        """Wait for the device, add the pending steps to the epoch; return their loss and pace."""
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
        pace = Pace(sum(counts), self._since - begun, sum(step.waited for step in taken))
        self._pace = self._pace.plus(pace)
        progress.add(rows, counts)
        progress.seconds += pace.seconds
        total = sum(n * row[0] for n, row in zip(counts, rows, strict=True))
        return total / max(pace.samples, 1), pace

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add the step and a remedy to errors about losses and gradients that are not finite."""
        try:
            yield
        except TrainingError as error:
            run, step = self.run, self.run.progress.step + 1 - error.ago
            where = f"step {step}, epoch {run.progress.epoch + 1}, seed {run.config.seed}"
            again = "no checkpoint was written: start again"
            if self._saved_step is not None:
                again = f"the last checkpoint is of step {self._saved_step}: `resume` {run.folder}"
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

    def _show(self, loss: float, pace: Pace) -> None:
        run, done, figures = self.run, self.run.done, pace.figures()
        per_epoch = (time.monotonic() - self._began) / max(done - self._began_at, 1e-9)
        remaining = duration(per_epoch * (run.epochs - done))
        iou = "" if math.isnan(self._score) else f"{SCORES[run.info.score]} {self._score:.3f}  "
        self.console.state(f"loss {loss:.4f}  {iou}{_pace_text(figures)}  {remaining} left")
        scalars = {"loss": loss, "lr": run.optimizer.param_groups[0]["lr"], **figures}
        self.console.scalars("train", scalars, run.progress.step)

    def end_epoch(self) -> None:
        """Validate the epoch, save it, and record its results."""
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
            **self._pace.figures(),
            "seconds": progress.seconds,
            **({} if run.scaler is None else {"skipped": progress.skipped}),
        }
        if "worst_iou" in row:
            row["worst_class"] = worst_class(row, run.info.class_names)
        best = run.info.score in row and progress.is_best(row[run.info.score])
        progress.history.append(row)
        progress.epoch, run.position = progress.epoch + 1, 0
        progress.reset_sums()
        if best:
            self._best_scenes = self._scenes
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

        def on_batch() -> None:
            self.console.advance(1)
            if stopping := self._stopping():
                raise RunStopped(stopping)

        arguments = (run.trainable, run.engine, run.info, run.validation)
        try:
            with run.averaged_weights():
                results, self._scenes = validate(*arguments, on_batch=on_batch)
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
        tiles = loader.tiles
        chosen = choose_tiles(
            tiles.road_fraction, tiles.table["valid_fraction"], run.config.pictures
        )
        shown = examples(run.trainable, run.engine, run.info, loader, chosen)
        score = f"{SCORES[run.info.score]} {self._score:.3f}"
        title = f"epoch {number}, {score} over all validation tiles"
        draw_examples(folder / f"epoch_{number:03d}.png", shown, run.info.bands, title)

    def _record(self, row: dict[str, Any], best: bool) -> None:
        run, progress = self.run, self.run.progress
        parts = [f"epoch {progress.epoch}/{run.epochs}", f"loss {row['loss']:.4f}"]
        if run.validation is not None:  # the header says if there is none
            shown = {"val_loss": "val", **SCORES}
            parts += [f"{label} {row[name]:.3f}" for name, label in shown.items() if name in row]
        if row.get("worst_class"):
            parts.append(f"worst {row['worst_class']} {row['worst_iou']:.3f}")
        if "speed_mae_mph" in row:
            parts.append(f"speed error {row['speed_mae_mph']:.1f} mph")
        if not math.isnan(row.get("threshold", math.nan)):
            parts.append(f"threshold {threshold_text(row, 2)}")
        if not math.isnan(row["data_wait"]):
            parts.append(_pace_text(row))
        parts += ["best"] * (best and run.validation is not None)
        self.console.end_bar()
        self.console.line("  ".join(parts))
        self.console.table(progress.history)

    def _finish(self) -> None:
        """Draw the curves and print where the results are."""
        run, progress = self.run, self.run.progress
        if not is_rank_zero() or not progress.history:
            return
        draw_curves(run.folder / "curves.png", progress.history)
        patience = run.config.patience
        if patience and run.out_of_patience:
            what = f"no better {SCORES[run.info.score]}"
            self.console.line(f"stopped early: {what} for {counted(patience, 'epoch')}")
        if not math.isnan(progress.best):
            self.console.line(
                f"best {SCORES[run.info.score]} {progress.best:.3f} after epoch "
                f"{progress.best_epoch + 1}: {run.folder / BEST}"
            )
            for line in self._standing():
                self.console.line(line)
        made = ("curves.png", "metrics.csv", "pictures", "tensorboard")
        there = ", ".join(name for name in made if (run.folder / name).exists())
        self.console.line(f"in {run.folder}: {there}")

    def _standing(self) -> Iterator[str]:
        """Yield at most three lines: the spread over scenes, a next step, and where more is."""
        run = self.run
        standing = Standing(
            score=run.info.score,
            scenes=self._best_scenes,
            history=run.progress.history,
            training_scenes=len(np.unique(run.loader.tiles.table[["store", "scene"]])),
        )
        if facts := standing.facts()[:2]:  # a resumed run may have its best epoch behind it
            yield "; ".join(f"{name}: {text}" for name, text in facts)
        yield from [f"next step: {step}" for step in standing.next_steps()[:1]]
        words = ["geoprep", "evaluate", str(run.folder), *run.config.stores]
        words += ["--model", run.info.model] if is_code(run.info.model) else []
        yield f"more: {shlex.join(words)} --baseline"


def _pace_text(pace: Mapping[str, float]) -> str:
    return f"{pace['images_per_s']:.1f} images/s  data wait {pace['data_wait']:.1%}"
