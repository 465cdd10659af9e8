"""Output of a run: lines, log.txt, progress bar, metrics.csv, TensorBoard, pictures.

Only rank 0 shows and writes; on other ranks the functions do nothing.
"""

from __future__ import annotations

import csv
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from geoprep.errors import GeoprepError
from geoprep.executors.terminal import Terminal
from geoprep.storage.output_files import replaced
from geoprep.texts import counted, csv_cell, printable
from loaders import BatchLoader, this_rank
from training.checkpoint import BEST, RunProgress
from training.engine.distributed import is_rank_zero
from training.evaluation.standing import SCORES, Standing
from training.evaluation.threshold import threshold_text
from training.model.build import ModelInfo, is_code
from training.pictures import Example, draw_curves, draw_examples
from training.settings import Config

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LINE_SECONDS = 30.0
"""Minimum time between two lines of progress within an epoch."""


class Pace(NamedTuple):
    """Samples of this rank in consecutive steps, wall time, and seconds waiting for batches."""

    samples: float = 0
    seconds: float = 0.0
    waited: float = 0.0

    def figures(self) -> dict[str, float]:
        """Return the images per second of all ranks and the share of waiting; NaN without steps."""
        seconds = max(self.seconds, 1e-9) if self.samples else math.nan
        rate = this_rank()[1] * self.samples / seconds
        return {"images_per_s": rate, "data_wait": self.waited / seconds}


def duration(seconds: float) -> str:
    """Return a duration as text: 45 s, 12 min, 3 h 20 min."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Report:
    """Shows a run on the terminal, and in the files of its folder while they are open.

    Parameters
    ----------
    folder
        Folder of the run; None to write no files.
    quiet
        Whether to hide the progress bar.
    spell
        Replaces parameter names in lines.
    """

    def __init__(
        self, folder: Path | None, *, quiet: bool = False, spell: Callable[[str], str] = str
    ) -> None:
        self.spell, self._folder = spell, folder if is_rank_zero() else None
        self._log: TextIO | None = None
        self._board: SummaryWriter | None = None
        self._score = ""  # of the last validation
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            console=Terminal(stderr=True),
            transient=True,
            disable=quiet or not is_rank_zero() or not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("", state="")
        self._last_line = time.monotonic()

    @contextmanager
    def files(self, step: int) -> Iterator[None]:
        """Open log.txt and TensorBoard, which discards what an interrupted run wrote after a step.

        At the end the progress bar is removed as well.
        """
        try:
            if self._folder is None:
                yield
                return
            from torch.utils.tensorboard import SummaryWriter  # not every run needs it

            with (self._folder / "log.txt").open("a", encoding="utf-8", buffering=1) as self._log:
                board = str(self._folder / "tensorboard")
                with SummaryWriter(board, purge_step=step + 1) as self._board:
                    yield
        finally:
            self._bar.stop()
            self._log = self._board = None

    def line(self, text: str) -> None:
        """Print a line and write it to log.txt."""
        if not is_rank_zero():
            return
        text = printable(self.spell(text))
        self._last_line = time.monotonic()
        if self._bar.live.is_started:
            self._bar.console.print(text, soft_wrap=True)
        else:
            print(text, flush=True)
        if self._log is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    @contextmanager
    def _spared(self, path: Path) -> Iterator[None]:
        """Go on without a picture or table that the disk does not take; a line names it."""
        try:
            yield
        except (GeoprepError, OSError) as error:
            self.line(f"warning: {path.name} is missing ({error})")

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Start the progress bar; it is shown on a terminal only."""
        self._bar.reset(self._task, description=title, total=total, completed=done, state="")
        self._bar.start()

    def advance(self, batches: int) -> None:
        """Add batches that are done."""
        self._bar.advance(self._task, batches)

    def end(self) -> None:
        """Remove the progress bar."""
        self._bar.stop()

    def steps(self, values: Mapping[str, float], step: int, remaining: float) -> None:
        """Show loss, rate and remaining seconds beside the bar, and every 30 seconds as a line."""
        pace = f"{_pace(values)}  {duration(remaining)} left"
        text = f"loss {values['loss']:.4f}  {self._score}{pace}"
        self._bar.update(self._task, state=text)
        if time.monotonic() - self._last_line >= LINE_SECONDS:
            self.line(f"  {text}")
        self._scalars("train", values, step)

    def validated(
        self, epoch: int, score: str, value: float, shown: Sequence[Example], bands: Sequence[str]
    ) -> None:
        """Remember the score of an epoch, and draw its examples."""
        text = f"{SCORES[score]} {'none' if math.isnan(value) else f'{value:.3f}'}"
        self._score = f"{text}  "
        if self._folder is not None and shown:
            picture = self._folder / "pictures" / f"epoch_{epoch:03d}.png"
            title = f"epoch {epoch}, {text} over all validation tiles"
            with self._spared(picture):
                picture.parent.mkdir(exist_ok=True)
                draw_examples(picture, shown, bands, title)

    def epoch(
        self,
        title: str,
        row: Mapping[str, Any],
        results: Mapping[str, float],
        history: Sequence[Mapping[str, Any]],
        *,
        best: bool,
        saved: bool,
    ) -> None:
        """Show the row of an epoch with its results of validation, and write metrics.csv.

        Of epochs that are not saved one in 30 seconds is shown.
        """
        self._scalars("epoch", {"loss": row["loss"]}, row["step"])
        self._scalars("val", results, row["step"])
        if not saved and time.monotonic() - self._last_line < LINE_SECONDS:
            return
        shown = {"val_loss": "val", **SCORES}
        parts = [title, f"loss {row['loss']:.4f}"]
        parts += [
            f"{label} {row[name]:.3f}"
            for name, label in shown.items()
            if "val_loss" in row and not math.isnan(row.get(name, math.nan))
        ]
        if row.get("worst_class"):
            parts.append(f"worst {row['worst_class']} {row['worst_iou']:.3f}")
        if "speed_mae_mph" in row:
            parts.append(f"speed error {row['speed_mae_mph']:.1f} mph")
        if not math.isnan(row.get("threshold", math.nan)):
            parts.append(f"threshold {threshold_text(row, 2)}")
        if not math.isnan(row["data_wait"]):
            parts.append(_pace(row))
        self.end()
        self.line("  ".join([*parts, *["best"] * (best and "val_loss" in row)]))
        self._table(history)

    def finish(
        self,
        config: Config,
        info: ModelInfo,
        progress: RunProgress,
        scenes: Sequence[Mapping[str, Any]],
        loader: BatchLoader,
    ) -> None:
        """Show what came out, how scenes differ, a next step, and where the results are.

        ``scenes`` are the results of the best epoch per scene, ``loader`` is that of the training
        tiles.
        """
        if self._folder is None or not progress.history:
            return
        title, best_score = SCORES[info.score], progress.best
        if math.isnan(best_score):
            title, best_score = "validation loss", progress.best_loss
        over = config.lost_patience(progress.history, progress.best_epoch)
        if over and config.patience:
            count = counted(config.patience, "validation")
            self.line(f"stopped early: no better {title} for {count}")
        if not math.isnan(best_score):
            epoch, best = progress.best_epoch + 1, self._folder / BEST
            self.line(f"best {title} {best_score:.3f} after epoch {epoch}: {best}")
            standing = Standing(score=info.score, scenes=scenes, history=progress.history)
            if facts := standing.facts()[:2]:  # a resumed run may have its best epoch behind it
                self.line("; ".join(f"{name}: {text}" for name, text in facts))
            for step in standing.next_steps()[:1]:
                self.line(f"next step: {step}")
            words = ["geoprep", "evaluate", str(self._folder), *config.stores]
            words += ["--model", info.model] if is_code(info.model) else []
            self.line(f"more: {shlex.join(words)} --baseline")
        with self._spared(curves := self._folder / "curves.png"):
            draw_curves(curves, progress.history)
        names = ("curves.png", "metrics.csv", "pictures", "tensorboard")
        there = ", ".join(name for name in names if (self._folder / name).exists())
        self.line(f"in {self._folder}: {there}")

    def _scalars(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Write figures to TensorBoard, grouped by name."""
        if self._board is not None:
            for name, value in values.items():
                if not math.isnan(value):
                    self._board.add_scalar(f"{group}/{name}", value, step)

    def _table(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Write metrics.csv with one row per epoch, atomically."""
        if self._folder is None:
            return
        names = list(dict.fromkeys(name for row in history for name in row))
        with (
            self._spared(table := self._folder / "metrics.csv"),
            replaced(table) as partial,
            partial.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(
                {name: csv_cell(value) for name, value in row.items()} for row in history
            )


def _pace(values: Mapping[str, float]) -> str:
    return f"{values['images_per_s']:.1f} images/s  data wait {values['data_wait']:.1%}"
