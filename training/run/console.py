"""Output of a run: progress bar, lines, log.txt, metrics.csv and TensorBoard.

Only rank 0 shows and writes; on other ranks the functions do nothing.
"""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from geoprep.storage import replaced
from training.engine import is_rank_zero

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LINE_SECONDS = 30.0
"""Minimum time between two lines of progress within an epoch."""


def duration(seconds: float) -> str:
    """Return a duration as text: 45 s, 12 min, 3 h 20 min."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Console:
    """Output of a run to the terminal and to files, which are closed with its context.

    Without a folder it writes no files. ``step`` is the last that is done: TensorBoard discards
    later ones of an interrupted run. ``spell`` replaces parameter names in lines.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        step: int = 0,
        quiet: bool = False,
        spell: Callable[[str], str] = str,
    ) -> None:
        self.spell, self._step = spell, step
        self._folder = folder if is_rank_zero() else None
        self._log: TextIO | None = None
        self._board: SummaryWriter | None = None
        self._open = ExitStack()
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

    def __enter__(self) -> Self:
        self._open.callback(self._bar.stop)
        if self._folder is not None:
            from torch.utils.tensorboard import SummaryWriter  # not every run needs it

            log = (self._folder / "log.txt").open("a", encoding="utf-8", buffering=1)
            self._log = self._open.enter_context(log)
            board = self._folder / "tensorboard"
            self._board = SummaryWriter(str(board), purge_step=self._step + 1)
            self._open.callback(self._board.close)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def line(self, text: str) -> None:
        """Print a line and write it to log.txt."""
        if not is_rank_zero():
            return
        text = self.spell(text)
        self._last_line = time.monotonic()
        if self._bar.live.is_started:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, flush=True)
        if self._log is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def begin_bar(self, title: str, total: int, done: int) -> None:
        """Start the progress bar; it is shown on a terminal only."""
        self._bar.reset(self._task, description=title, total=total, completed=done, state="")
        self._bar.start()

    def advance(self, batches: int) -> None:
        """Add batches that are done."""
        self._bar.advance(self._task, batches)

    def end_bar(self) -> None:
        """Remove the progress bar."""
        self._bar.stop()

    def state(self, text: str) -> None:
        """Show the state of training next to the bar, and every 30 seconds as a line."""
        self._bar.update(self._task, state=text)
        if time.monotonic() - self._last_line >= LINE_SECONDS:
            self.line(f"  {text}")

    def scalars(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Write figures to TensorBoard, grouped by name."""
        if self._board is not None:
            for name, value in values.items():
                if not math.isnan(value):
                    self._board.add_scalar(f"{group}/{name}", value, step)

    def table(self, history: list[dict[str, Any]]) -> None:
        """Write metrics.csv with one row per epoch, atomically."""
        if self._folder is None:
            return
        names = list(dict.fromkeys(name for row in history for name in row))
        with (
            replaced(self._folder / "metrics.csv") as partial,
            partial.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(history)
