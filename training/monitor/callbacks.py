"""Between steps and between epochs: read the loss, show it, save, judge, stop when asked to."""

from __future__ import annotations

import math
import time

from loaders import is_distributed, this_rank
from training.distributed import add_up, is_first
from training.errors import TrainingError
from training.monitor.console import Watch, left
from training.monitor.meter import PARTS, Reading
from training.monitor.pictures import choose_tiles, draw_curves, draw_examples
from training.monitor.signals import Stopped, StopSignals
from training.run import Run
from training.saving import SaveClock
from training.validate import evaluate, examples


class Lookout:
    """Looks after a run.

    Parameters
    ----------
    run
        It.
    watch
        Where things are shown and written.
    stop
        Whether somebody wants the run to stop.
    """

    def __init__(self, run: Run, watch: Watch, stop: StopSignals) -> None:
        self.run, self.watch, self.stop = run, watch, stop
        self._clock = SaveClock(run.config.output.save_every)
        self._began = time.monotonic()
        self._began_at = math.nan
        self._road_iou = math.nan

    def begin_epoch(self, *, new_stage: bool) -> None:
        """Say what begins."""
        run = self.run
        if new_stage and len(run.plan.stages) > 1:
            number = run.plan.stage_of(run.progress.epoch)
            self.watch.line(f"stage {number + 1}: {run.plan.stages[number]}")
        pace = run.pace()
        if math.isnan(self._began_at):
            self._began_at = run.progress.epoch + pace.start / pace.samples
        title = f"epoch {run.progress.epoch + 1}/{run.plan.epochs}"
        self.watch.begin_bar(title, pace.total, pace.before)
        self._seconds, self._waited, self._samples = 0.0, 0.0, 0

    def after_step(self, done: float, batches: int) -> None:
        """Show, save and stop where it is time to; most steps return at once.

        Parameters
        ----------
        done
            Epochs done, with the part of this one.
        batches
            Batches done of this epoch.

        Raises
        ------
        Stopped, TrainingError
            See `training.loop.fit`.
        """
        self.watch.advance(batches)
        step = self.run.progress.step
        by_step = self._clock.due_by_step(step)
        # Alone, a wish is granted at once; ranks must agree first, which costs a round of talk.
        urgent = not is_distributed() and (self.stop.number or self._clock.due_by_time())
        if not (urgent or by_step or step % self.run.config.output.log_every == 0):
            return
        reading, stopping, save = self._read()
        self._show(reading, done)
        if save or by_step or stopping:
            self.run.save()
            self._clock.saved()
        if stopping:
            raise Stopped(stopping)

    def _read(self) -> tuple[Reading, int, bool]:
        """Return what the meter says, the signal to stop at or 0, and whether to save.

        All ranks return the same wishes.
        """
        reading = self.run.meter.read()
        wishes = [
            float(reading.bad is not None),
            float(self.stop.number),
            float(is_first() and self._clock.due_by_time()),
        ]
        bad, stopping, save = add_up(wishes, self.run.engine.device)
        if bad:
            self._give_up(reading)
        self.run.progress.add(reading)
        self._seconds += reading.seconds
        self._waited += reading.waited
        self._samples += reading.samples
        ranks = this_rank()[1]
        return reading, int(self.stop.number or stopping / ranks), bool(save)

    def _give_up(self, reading: Reading) -> None:
        """Say which batch made the loss something else than a number, and raise."""
        run, rank = self.run, this_rank()[0]
        path = run.folder / f"bad_batch{f'.rank{rank}' if rank else ''}.json"
        text = "another rank"
        if reading.bad is not None:
            behind = (len(reading.rows) - 1 - reading.bad) // run.config.optim.accumulate
            step = run.progress.step - behind
            about = {"step": step, "epoch": run.progress.epoch, "level": run.facts.level}
            run.meter.write_bad(path, reading.bad, about | {"stores": list(run.facts.stores)})
            text = f"step {step}; which tiles and windows it had is in {path}"
        raise TrainingError(
            f"the loss is not a number ({text}). Nothing was saved since: go on from the last "
            f"checkpoint with a smaller --lr or --clip (--resume {run.folder}), or with "
            "--precision fp32"
        )

    def _show(self, reading: Reading, done: float) -> None:
        ranks = this_rank()[1]
        rate = ranks * reading.samples / max(reading.seconds, 1e-9)
        share = reading.waited / max(reading.seconds, 1e-9)
        elapsed = time.monotonic() - self._began
        remaining = elapsed / max(done - self._began_at, 1e-9) * (self.run.plan.epochs - done)
        iou = "" if math.isnan(self._road_iou) else f"road IoU {self._road_iou:.3f}  "
        self.watch.state(
            f"loss {reading.loss:.4f}  {iou}{rate:.1f} images/s  data wait {share:.1%}  "
            f"{left(remaining)} left"
        )
        lr = self.run.optimizer.param_groups[0]["lr"]
        scalars = {"train/loss": reading.loss, "train/lr": lr, "train/images_per_s": rate}
        self.watch.scalars(scalars | {"train/data_wait": share}, self.run.progress.step)

    def end_epoch(self) -> None:
        """Judge the epoch, keep what is best, record everything, save.

        Raises
        ------
        Stopped, TrainingError
            See `training.loop.fit`.
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
            **self._judge(),
            "images_per_s": this_rank()[1] * self._samples / max(self._seconds, 1e-9),
            "data_wait": self._waited / max(self._seconds, 1e-9),
            "seconds": progress.seconds,
        }
        best = "road_iou" in row and progress.is_best(row["road_iou"])
        progress.close_epoch(row)
        if best:
            run.save_best()
        run.save()
        self._clock.saved()
        self._tell(row, best)
        (_, stopping) = add_up([0.0, float(self.stop.number)], run.engine.device)
        if stopping and progress.epoch < run.plan.epochs:
            raise Stopped(self.stop.number or int(stopping))

    def _judge(self) -> dict[str, float]:
        """Return the metrics on the validation tiles where this epoch is to be judged."""
        run = self.run
        epoch, data = run.progress.epoch, run.data
        every, last = run.config.output.val_every, run.plan.is_last_of_stage(epoch)
        if not (last or (epoch + 1) % every == 0):
            return {}
        if data.validation is None or data.validation_tiles is None:
            return {"road_iou": math.nan}
        self.watch.begin_bar("validating", len(data.validation), 0)
        seen = iter(range(1, len(data.validation) + 1))

        def on_batch() -> None:
            self.watch.advance(next(seen))
            if self.stop.number and not is_distributed():
                run.save(epoch_done=True)
                raise Stopped(self.stop.number)

        with run.averaged():
            results = evaluate(
                run.trainable,
                run.engine,
                run.facts,
                data.validation,
                loss=run.judge,
                on_batch=on_batch,
            )
            if is_first():
                self._draw(results)
        self._road_iou = results["road_iou"]
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
        figures = [f"{label} {row[name]:.3f}" for name, label in shown.items() if name in row]
        if "speed_mae_mph" in row:
            figures.append(f"speed error {row['speed_mae_mph']:.1f} mph")
        self.watch.end_bar()
        self.watch.line(
            f"epoch {progress.epoch}/{self.run.plan.epochs}  loss {row['loss']:.4f}  "
            + "".join(f"{figure}  " for figure in figures)
            + f"{row['images_per_s']:.1f} images/s  data wait {row['data_wait']:.1%}"
            + ("  best" if best else "")
        )
        self.watch.table(progress.history)
        timing = ("epoch", "images_per_s", "data_wait", "seconds", "lr", "loss", "level", "step")
        judged = {f"val/{k}": v for k, v in row.items() if k not in timing and k not in PARTS}
        self.watch.scalars({"epoch/loss": row["loss"]} | judged, progress.step)

    def finish(self) -> None:
        """Draw the curves and say where everything is."""
        run, progress = self.run, self.run.progress
        if not is_first() or not progress.history:
            return
        draw_curves(run.folder / "curves.png", progress.history)
        if run.out_of_patience:
            self.watch.line(
                f"stopped early: no better road IoU in {run.config.optim.patience} epochs"
            )
        if not math.isnan(progress.best):
            self.watch.line(
                f"best road IoU {progress.best:.3f} after epoch {progress.best_epoch + 1}: "
                f"{run.folder / 'best.pt'}"
            )
        self.watch.line(f"curves.png, metrics.csv, pictures/ and tensorboard/ are in {run.folder}")
