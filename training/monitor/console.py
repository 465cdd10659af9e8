"""What a person sees of a run, and what stays of it: bar, lines, log.txt, metrics.csv, TensorBoard.

Only the first rank shows and writes anything; in the others every call does nothing.
"""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from geoprep.storage import replaced

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from torch.utils.tensorboard import SummaryWriter

LINE_SECONDS = 30.0
"""Least time between two lines within an epoch."""


def left(seconds: float) -> str:
    """Return a time as a person says it: 45 s, 12 min, 3 h 20 min."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Console:
    """Shows and records a run.

    Parameters
    ----------
    folder
        Of the run; None shows without recording.
    quiet
        No bar.
    active
        False in all ranks but the first.
    """

    def __init__(self, folder: Path | None, *, quiet: bool = False, active: bool = True) -> None:
        self.folder = folder if active else None
        self._active = active
        self._bar_wanted = active and not quiet and sys.stderr.isatty()
        self._stack = ExitStack()
        self._bar: Bar | None = None
        self._task: Any = None
        self._board: SummaryWriter | None = None
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if self.folder is not None:
            self._log = self._stack.enter_context(
                (self.folder / "log.txt").open("a", encoding="utf-8", buffering=1)
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end_bar()
        if self._board is not None:
            self._board.close()
        self._stack.close()

    def line(self, text: str) -> None:
        """Show a line and write it to log.txt."""
        if not self._active:
            return
        self._last_line = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, flush=True)
        if self.folder is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def begin_bar(self, title: str, total: int, done: int) -> None:
        """Begin a bar, where a person is at a terminal."""
        if not self._bar_wanted:
            return
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.end_bar()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            console=Terminal(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(title, total=total, completed=done, state="")
        self._bar.start()

    def advance(self, done: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def end_bar(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def state(self, text: str) -> None:
        """Show how it goes: beside the bar, or now and then as a line."""
        if self._bar is not None:
            self._bar.update(self._task, state=text)
        if time.monotonic() - self._last_line >= LINE_SECONDS:
            self.line(f"  {text}")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Give figures to TensorBoard."""
        if self.folder is None:
            return
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            # What an interrupted run wrote after its last checkpoint is forgotten.
            self._board = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step)
        for name, value in values.items():
            if not math.isnan(value):
                self._board.add_scalar(name, value, step)

    def table(self, history: list[dict[str, float]]) -> None:
        """Write metrics.csv anew, one row per epoch; it is never half a file."""
        if self.folder is None or not history:
            return
        names = list(dict.fromkeys(name for row in history for name in row))
        with (
            replaced(self.folder / "metrics.csv") as partial,
            partial.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(history)
