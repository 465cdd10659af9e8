"""Between steps and between epochs: read the loss, show it, save, validate, stop when asked to."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch

from loaders import Batch, is_distributed, this_rank
from training.checkpoint import BEST, LAST
from training.config import counted, parse_every
from training.distributed import add_up, is_first, largest
from training.evaluation import evaluate, examples
from training.module import Taken, TrainingError, not_finite
from training.monitor.console import Console, left
from training.monitor.pictures import choose_tiles, draw_curves, draw_examples
from training.monitor.signals import Stopped, StopSignals
from training.run import Group, Run

PARTS = ("loss", "main", "dice")


class Reading(NamedTuple):
    """What the meter says about the steps since it was last read.

    Attributes
    ----------
    rows
        Loss, main part and dice of every batch.
    counts
        Samples in every batch.
    seconds, waited
        Wall time, and the part of it spent waiting for batches.
    bad
        What is wrong with the first step that is not finite, and how many steps came after it;
        None where all are.
    """

    rows: list[list[float]]
    counts: list[int]
    seconds: float
    waited: float
    bad: tuple[str, int] | None

    @property
    def samples(self) -> int:
        """Samples in all batches."""
        return sum(self.counts)

    @property
    def loss(self) -> float:
        """Mean loss over samples."""
        total = sum(n * row[0] for n, row in zip(self.counts, self.rows, strict=True))
        return total / max(self.samples, 1)


class Meter:
    """Collects losses without waiting for the device."""

    def __init__(self) -> None:
        self._taken: list[Taken] = []
        self._waited = 0.0
        self._since = time.perf_counter()

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches, counting the time that each is waited for."""
        self._since = time.perf_counter()
        asked = time.perf_counter()
        for batch in batches:
            self._waited += time.perf_counter() - asked
            yield batch
            del batch  # or its buffer would stay taken while the next one is waited for
            asked = time.perf_counter()

    def add(self, taken: Taken) -> None:
        """Take note of a step."""
        self._taken.append(taken)

    def read(self) -> Reading:
        """Wait for the device and return what came since the last reading."""
        now, taken = time.perf_counter(), self._taken
        every = [torch.stack([*parts]).float() for step in taken for parts in step.parts]
        rows: list[list[float]] = torch.stack(every).tolist() if every else []
        norms = torch.stack([step.norm for step in taken]).tolist() if taken else []
        counts = [count for step in taken for count in step.counts]
        bad = None
        first = next((i for i, norm in enumerate(norms) if not math.isfinite(norm)), None)
        if first is not None:
            losses = [float(parts.total) for parts in taken[first].parts]
            bad = not_finite(losses), len(taken) - 1 - first
        reading = Reading(rows, counts, now - self._since, self._waited, bad)
        self._taken, self._waited, self._since = [], 0.0, now
        return reading


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
        self.meter = Meter()
        self._steps, self._interval = parse_every(run.config.output.save_every)
        self._saved = self._began = time.monotonic()
        there = (run.folder / LAST).exists()
        self._saved_step = run.progress.step if there else None
        self._began_at = math.nan
        self._road_iou = math.nan

    def begin_epoch(self, *, new_stage: bool) -> None:
        """Say what begins."""
        run, progress, config = self.run, self.run.progress, self.run.config
        if new_stage and len(config.stages) > 1:
            number = config.stage_of(progress.epoch)
            self.console.line(f"stage {number + 1}: {config.stages[number]}")
        groups, total = run.groups(), len(run.data.loader)
        before = groups[0].batches - groups[0].size if groups else total
        if math.isnan(self._began_at):
            self._began_at = progress.epoch + before / total
        self.console.begin_bar(f"epoch {progress.epoch + 1}/{config.epochs}", total, before)
        self._seconds, self._waited, self._samples = 0.0, 0.0, 0

    def after_step(self, group: Group) -> None:
        """Show, save and stop where it is time to; most steps return at once.

        Parameters
        ----------
        group
            The step's batches.

        Raises
        ------
        Stopped, TrainingError
            See `training.loop.train`.
        """
        self.console.advance(group.batches)
        step = self.run.progress.step
        by_step = self._steps > 0 and step % self._steps == 0
        # Alone, a wish is granted at once; ranks must agree first, which costs a round of talk.
        urgent = not is_distributed() and (self.stop.number or self._is_due())
        if not (urgent or by_step or step % self.run.config.output.log_every == 0):
            return
        reading, stopping, save = self._read()
        self._show(reading, group.done)
        if save or by_step or stopping:
            self._save()
        if stopping:
            raise Stopped(stopping)

    def _is_due(self) -> bool:
        """Whether the last checkpoint is old enough."""
        return time.monotonic() - self._saved >= self._interval

    def _save(self) -> None:
        self.run.save()
        self._saved, self._saved_step = time.monotonic(), self.run.progress.step

    def _read(self) -> tuple[Reading, int, bool]:
        """Return what the meter says, the signal to stop at or 0, and whether to save.

        All ranks return the same wishes.
        """
        run, reading = self.run, self.meter.read()
        wishes = [
            float(reading.bad is not None),
            float(self.stop.number),
            float(is_first() and self._is_due()),
        ]
        # The largest and not the sum: the signal may have reached a single rank.
        bad, stopping, save = largest(wishes, run.engine.device)
        if bad:
            what, after = reading.bad or ("loss or gradient of another rank are not finite", 0)
            raise self._error(what, run.progress.step - after)
        run.progress.add(reading.rows, reading.counts)
        run.progress.seconds += reading.seconds
        self._seconds += reading.seconds
        self._waited += reading.waited
        self._samples += reading.samples
        return reading, int(stopping), bool(save)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say of a step that could not be taken where it was, and what to do."""
        try:
            yield
        except TrainingError as error:
            raise self._error(str(error), self.run.progress.step + 1) from error

    def _error(self, what: str, step: int) -> TrainingError:
        run = self.run
        where = f"step {step}, epoch {run.progress.epoch + 1}, seed {run.config.optim.seed}"
        again = "no checkpoint was written: start again"
        if self._saved_step is not None:
            again = f"the last checkpoint is of step {self._saved_step}: --resume {run.folder}"
        return TrainingError(
            f"{what} ({where}); {again} with a smaller --lr or --clip, or with --precision fp32"
        )

    def _show(self, reading: Reading, done: float) -> None:
        ranks = this_rank()[1]
        rate = ranks * reading.samples / max(reading.seconds, 1e-9)
        share = reading.waited / max(reading.seconds, 1e-9)
        elapsed = time.monotonic() - self._began
        remaining = elapsed / max(done - self._began_at, 1e-9) * (self.run.config.epochs - done)
        iou = "" if math.isnan(self._road_iou) else f"road IoU {self._road_iou:.3f}  "
        self.console.state(
            f"loss {reading.loss:.4f}  {iou}{rate:.1f} images/s  data wait {share:.1%}  "
            f"{left(remaining)} left"
        )
        lr = self.run.optimizer.param_groups[0]["lr"]
        scalars = {"train/loss": reading.loss, "train/lr": lr, "train/images_per_s": rate}
        self.console.scalars(scalars | {"train/data_wait": share}, self.run.progress.step)

    def end_epoch(self) -> None:
        """Validate the epoch, keep what is best, record everything, save.

        Raises
        ------
        Stopped, TrainingError
            See `training.loop.train`.
        """
        run, progress = self.run, self.run.progress
        self._read()
        totals = add_up([*progress.sums, progress.samples], run.engine.device)
        means = [total / max(totals[-1], 1) for total in totals[:-1]]
        row: dict[str, float] = {
            "epoch": progress.epoch + 1,
            "level": run.facts.level,
            "step": progress.step,
            "lr": run.optimizer.param_groups[0]["lr"],
            **dict(zip(PARTS, means, strict=True)),
            **self._validate(),
            "images_per_s": this_rank()[1] * self._samples / max(self._seconds, 1e-9),
            "data_wait": self._waited / max(self._seconds, 1e-9),
            "seconds": progress.seconds,
        }
        best = "road_iou" in row and progress.is_best(row["road_iou"])
        progress.close_epoch(row)
        if best:
            run.save_best()
        self._save()
        self._tell(row, best)
        (stopping,) = largest([float(self.stop.number)], run.engine.device)
        if stopping and progress.epoch < run.config.epochs:
            raise Stopped(int(stopping))

    def _validate(self) -> dict[str, float]:
        """Return the metrics on the validation tiles where this epoch is to be validated."""
        run, data = self.run, self.run.data
        done, every = run.progress.epoch + 1, run.config.output.val_every
        if done % every and done not in run.config.stage_ends():
            return {}
        if data.validation is None or data.validation_tiles is None:
            return {"road_iou": math.nan}
        self.console.begin_bar("validating", len(data.validation), 0)
        seen = iter(range(1, len(data.validation) + 1))

        def on_batch() -> None:
            self.console.advance(next(seen))
            if self.stop.number and not is_distributed():
                run.save(epoch_done=True)
                raise Stopped(self.stop.number)

        with run.averaged():
            results = evaluate(
                run.trainable,
                run.engine,
                run.facts,
                data.validation,
                loss=run.val_loss,
                on_batch=on_batch,
            )
            if is_first():
                self._draw(results)
        self._road_iou = results["road_iou"]
        threshold = results.get("threshold", math.nan)
        if not math.isnan(threshold):
            run.facts = replace(run.facts, threshold=threshold)
        return results

    def _draw(self, results: dict[str, float]) -> None:
        run, tiles = self.run, self.run.data.validation_tiles
        count = run.config.output.pictures
        if count < 1 or tiles is None:
            return
        folder = run.folder / "pictures"
        folder.mkdir(exist_ok=True)
        shown = examples(
            run.trainable,
            run.engine,
            run.facts,
            tiles,
            choose_tiles(tiles.road_fraction, count),
        )
        number = run.progress.epoch + 1
        title = f"epoch {number}, road IoU {results['road_iou']:.3f} over all validation tiles"
        draw_examples(folder / f"epoch_{number:03d}.png", shown, run.facts.bands, title)

    def _tell(self, row: dict[str, float], best: bool) -> None:
        progress = self.run.progress
        shown = {"val_loss": "val", "road_iou": "road IoU", "bin_iou": "bin IoU"}
        judges = self.run.data.validation is not None  # that none does, the header says once
        figures = [
            f"{label} {row[name]:.3f}" for name, label in shown.items() if judges and name in row
        ]
        if "speed_mae_mph" in row:
            figures.append(f"speed error {row['speed_mae_mph']:.1f} mph")
        self.console.end_bar()
        self.console.line(
            f"epoch {progress.epoch}/{self.run.config.epochs}  loss {row['loss']:.4f}  "
            + "".join(f"{figure}  " for figure in figures)
            + f"{row['images_per_s']:.1f} images/s  data wait {row['data_wait']:.1%}"
            + ("  best" if best and judges else "")
        )
        self.console.table(progress.history)
        timing = ("epoch", "images_per_s", "data_wait", "seconds", "lr", "loss", "level", "step")
        judged = {f"val/{k}": v for k, v in row.items() if k not in timing and k not in PARTS}
        self.console.scalars({"epoch/loss": row["loss"]} | judged, progress.step)

    def finish(self) -> None:
        """Draw the curves and say where everything is."""
        run, progress = self.run, self.run.progress
        if not is_first() or not progress.history:
            return
        draw_curves(run.folder / "curves.png", progress.history)
        patience = run.config.optim.patience
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
