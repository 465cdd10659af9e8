"""Between steps and between epochs: read the loss, show it, save, validate, stop when asked to."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch

from loaders import BatchLoader, is_distributed, this_rank
from training.checkpoint import BEST, LAST
from training.config import counted, parse_every
from training.engine import add_up, is_first, largest
from training.evaluation import evaluate, examples
from training.module import Taken, TrainingError
from training.monitor.console import Console, left
from training.monitor.pictures import choose_tiles, draw_curves, draw_examples
from training.monitor.signals import Stopped, StopSignals
from training.run import Group, Run

PARTS = ("loss", "main", "dice")


class Reading(NamedTuple):
    """What is known of some steps.

    Attributes
    ----------
    loss
        Summed over samples.
    samples
        Of this rank.
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
    """What happens around the steps of a run.

    Parameters
    ----------
    run
        Whose steps these are.
    console
        Where things are shown and written.
    stop
        Whether somebody wants the run to stop.
    """

    def __init__(self, run: Run, console: Console, stop: StopSignals) -> None:
        self.run, self.console, self.stop = run, console, stop
        self._taken: list[Taken] = []  # whose losses nobody has waited for yet
        self._readings: list[Reading] = []  # of this epoch
        self._steps, self._interval = parse_every(run.config.save_every)
        self._saved = self._began = time.monotonic()
        there = (run.folder / LAST).exists()
        self._saved_step = run.progress.step if there else None
        self._alone = not is_distributed()
        self._began_at = math.nan
        self._road_iou = math.nan

    def begin_epoch(self, *, new_stage: bool) -> None:
        """Say what begins."""
        run, epoch, config = self.run, self.run.progress.epoch, self.run.config
        if new_stage and len(config.plan) > 1:
            self.console.line(f"stage {run.stage + 1}: {config.plan[run.stage]}")
        groups, total = run.groups(), len(run.loader)
        before = groups[0].batches - groups[0].size if groups else total
        if math.isnan(self._began_at):
            self._began_at = epoch + before / total
        self.console.begin_bar(f"epoch {epoch + 1}/{run.epochs}", total, before)
        self._readings, self._since = [], time.perf_counter()

    def after_step(self, taken: Taken, group: Group) -> None:
        """Show, save and stop where it is time to; most steps return at once.

        Parameters
        ----------
        taken
            The step.
        group
            Its batches.

        Raises
        ------
        Stopped, TrainingError
            See `training.loop.train`.
        """
        self._taken.append(taken)
        self.console.advance(group.batches)
        step = self.run.progress.step
        by_step = self._steps > 0 and step % self._steps == 0
        # Alone, a wish is granted at once; ranks must agree first, which costs a round of talk.
        urgent = self._alone and (self.stop.number or self._is_due())
        if not (urgent or by_step or step % self.run.config.log_every == 0):
            return
        self._show(self._read(), group.done)
        # The largest and not the sum: the signal may have reached a single rank.
        wishes = [float(self.stop.number), float(is_first() and self._is_due())]
        stopping, save = largest(wishes, self.run.engine.device)
        if save or by_step or stopping:
            self._save()
        if stopping:
            raise Stopped(int(stopping))

    def _is_due(self) -> bool:
        """Whether the last checkpoint is old enough."""
        return time.monotonic() - self._saved >= self._interval

    def _save(self) -> None:
        self.run.save()
        self._saved, self._saved_step = time.monotonic(), self.run.progress.step

    def _read(self) -> Reading:
        """Wait for the device, and add what was not read yet to the running epoch."""
        taken, self._taken, progress = self._taken, [], self.run.progress
        for number, step in enumerate(taken):
            step.check(ago=len(taken) - number)
        losses = [loss for step in taken for loss in step.losses]
        counts = [count for step in taken for count in step.counts]
        rows = torch.stack(losses).tolist() if losses else []
        begun, self._since = self._since, time.perf_counter()
        reading = Reading(
            sum(n * row[0] for n, row in zip(counts, rows, strict=True)),
            sum(counts),
            self._since - begun,
            sum(step.waited for step in taken),
        )
        self._readings.append(reading)
        progress.add(rows, counts)
        progress.seconds += reading.seconds
        return reading

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say of a step that is not finite which it was, and what to do."""
        try:
            yield
        except TrainingError as error:
            run, step = self.run, self.run.progress.step + 1 - error.ago
            where = f"step {step}, epoch {run.progress.epoch + 1}, seed {run.config.seed}"
            again = "no checkpoint was written: start again"
            if self._saved_step is not None:
                again = f"the last checkpoint is of step {self._saved_step}: --resume {run.folder}"
            raise TrainingError(
                f"{error} ({where}); {again} with a smaller --lr or --clip, or with --precision "
                "fp32"
            ) from error

    def _show(self, reading: Reading, done: float) -> None:
        loss, pace = reading.loss / reading.samples, reading.pace()
        per_epoch = (time.monotonic() - self._began) / max(done - self._began_at, 1e-9)
        remaining = left(per_epoch * (self.run.epochs - done))
        iou = "" if math.isnan(self._road_iou) else f"road IoU {self._road_iou:.3f}  "
        self.console.state(f"loss {loss:.4f}  {iou}{_told(pace)}  {remaining} left")
        scalars = {"loss": loss, "lr": self.run.optimizer.param_groups[0]["lr"], **pace}
        self.console.scalars("train", scalars, self.run.progress.step)

    def end_epoch(self) -> None:
        """Validate the epoch, keep what is best, record everything, save.

        Raises
        ------
        Stopped, TrainingError
            See `training.loop.train`.
        """
        run, progress, device = self.run, self.run.progress, self.run.engine.device
        self._read()
        *sums, samples = add_up([*progress.sums, progress.samples], device)
        results = self._validate()
        row: dict[str, float] = {
            "epoch": progress.epoch + 1,
            "level": run.facts.level,
            "step": progress.step,
            "lr": run.optimizer.param_groups[0]["lr"],
            **{name: total / max(samples, 1) for name, total in zip(PARTS, sums, strict=True)},
            **results,
            **Reading(*map(sum, zip(*self._readings, strict=True))).pace(),
            "seconds": progress.seconds,
        }
        best = "road_iou" in row and progress.is_best(row["road_iou"])
        progress.history.append(row)
        progress.epoch += 1
        progress.forget_sums()
        if best:
            run.save_best()
        self._save()
        self._tell(row, best)
        self.console.scalars("epoch", {"loss": row["loss"]}, progress.step)
        self.console.scalars("val", results, progress.step)
        (stopping,) = largest([float(self.stop.number)], device)
        if stopping and progress.epoch < run.epochs:
            raise Stopped(int(stopping))

    def _validate(self) -> dict[str, float]:
        """Return the metrics on the validation tiles where this epoch is to be validated."""
        run, done = self.run, self.run.progress.epoch + 1
        if done % run.config.val_every and done not in run.config.ends:
            return {}
        if run.validation is None:
            return {"road_iou": math.nan}
        self.console.begin_bar("validating", len(run.validation), 0)
        seen = iter(range(1, len(run.validation) + 1))

        def on_batch() -> None:
            self.console.advance(next(seen))
            if self.stop.number and self._alone:
                raise Stopped(self.stop.number)

        judged = (run.trainable, run.engine, run.facts, run.validation)
        try:
            with run.averaged():
                results = evaluate(*judged, on_batch=on_batch)
                self._road_iou = results["road_iou"]
                if is_first() and run.config.pictures:
                    self._draw(run.validation)
        except Stopped:  # caught here, where the network has its own weights again
            run.save(epoch_done=True)
            raise
        if not math.isnan(results["threshold"]):
            run.facts = replace(run.facts, threshold=results["threshold"])
        return results

    def _draw(self, loader: BatchLoader) -> None:
        run, number = self.run, self.run.progress.epoch + 1
        folder = run.folder / "pictures"
        folder.mkdir(exist_ok=True)
        chosen = choose_tiles(loader.tiles.road_fraction, run.config.pictures)
        shown = examples(run.trainable, run.engine, run.facts, loader, chosen)
        title = f"epoch {number}, road IoU {self._road_iou:.3f} over all validation tiles"
        draw_examples(folder / f"epoch_{number:03d}.png", shown, run.facts.bands, title)

    def _tell(self, row: dict[str, float], best: bool) -> None:
        run, progress = self.run, self.run.progress
        parts = [f"epoch {progress.epoch}/{run.epochs}", f"loss {row['loss']:.4f}"]
        if run.validation is not None:  # that none judges, the header says once
            shown = {"val_loss": "val", "road_iou": "road IoU", "bin_iou": "bin IoU"}
            parts += [f"{label} {row[name]:.3f}" for name, label in shown.items() if name in row]
        if "speed_mae_mph" in row:
            parts.append(f"speed error {row['speed_mae_mph']:.1f} mph")
        parts += [_told(row)] + ["best"] * (best and run.validation is not None)
        self.console.end_bar()
        self.console.line("  ".join(parts))
        self.console.table(progress.history)

    def finish(self) -> None:
        """Draw the curves and say where everything is."""
        run, progress = self.run, self.run.progress
        if not is_first() or not progress.history:
            return
        draw_curves(run.folder / "curves.png", progress.history)
        patience = run.config.patience
        if patience and run.out_of_patience:
            self.console.line(f"stopped early: no better road IoU in {counted(patience, 'epoch')}")
        if not math.isnan(progress.best):
            self.console.line(
                f"best road IoU {progress.best:.3f} after epoch {progress.best_epoch + 1}: "
                f"{run.folder / BEST}"
            )
        made = ("curves.png", "metrics.csv", "pictures", "tensorboard")
        there = ", ".join(name for name in made if (run.folder / name).exists())
        self.console.line(f"in {run.folder}: {there}")


def _told(pace: Mapping[str, float]) -> str:
    return f"{pace['images_per_s']:.1f} images/s  data wait {pace['data_wait']:.1%}"
