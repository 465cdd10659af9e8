"""What a person sees of a run, and what stays of it: bar, lines, log.txt, metrics.csv, TensorBoard.

Before the first step the header says what will be done: data, plan, network, machine, memory.

Only the first rank shows and writes anything; in the others every call does nothing.
"""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from geoprep.storage import replaced
from loaders import this_rank
from training.config import counted
from training.engine import describe, is_first
from training.run import Run

if TYPE_CHECKING:
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
    """Shows and records a run, see `opened`.

    Parameters
    ----------
    bar
        Shown while it is started.
    folder
        Of the run; None shows without recording.
    log, board
        Where lines and figures go, in a folder.
    """

    def __init__(
        self,
        bar: Progress,
        folder: Path | None = None,
        log: TextIO | None = None,
        board: SummaryWriter | None = None,
    ) -> None:
        self._bar, self._folder, self._log, self._board = bar, folder, log, board
        self._task = bar.add_task("", state="")
        self._last_line = time.monotonic()

    def line(self, text: str) -> None:
        """Show a line and write it to log.txt."""
        if not is_first():
            return
        self._last_line = time.monotonic()
        if self._bar.live.is_started:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, flush=True)
        if self._log is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def begin_bar(self, title: str, total: int, done: int) -> None:
        """Begin a bar, where a person is at a terminal."""
        self._bar.reset(self._task, description=title, total=total, completed=done, state="")
        self._bar.start()

    def advance(self, done: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=done)

    def end_bar(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def state(self, text: str) -> None:
        """Show how it goes: beside the bar, or now and then as a line."""
        self._bar.update(self._task, state=text)
        if time.monotonic() - self._last_line >= LINE_SECONDS:
            self.line(f"  {text}")

    def scalars(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Give figures to TensorBoard, under the name of their group."""
        if self._board is not None:
            for name, value in values.items():
                if not math.isnan(value):
                    self._board.add_scalar(f"{group}/{name}", value, step)

    def table(self, history: list[dict[str, float]]) -> None:
        """Write metrics.csv anew, one row per epoch; it is never half a file."""
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


@contextmanager
def opened(folder: Path | None, *, step: int = 0, quiet: bool = False) -> Iterator[Console]:
    """Yield a console, whose bar and files are closed in the end.

    Parameters
    ----------
    folder
        Of the run; None shows without recording.
    step
        The last that was taken: what an interrupted run wrote to TensorBoard of later ones is
        forgotten.
    quiet
        No bar.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        console=Terminal(stderr=True),
        transient=True,
        disable=quiet or not is_first() or not sys.stderr.isatty(),
    )
    with ExitStack() as stack:
        stack.callback(bar.stop)
        if folder is None or not is_first():
            yield Console(bar)
            return
        from torch.utils.tensorboard import SummaryWriter  # which not every run needs

        log = stack.enter_context((folder / "log.txt").open("a", encoding="utf-8", buffering=1))
        board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
        stack.callback(board.close)
        yield Console(bar, folder, log, board)


def header(run: Run, allocator: str, memory: str) -> Iterator[tuple[str, str]]:
    """Yield what a person should know of a run, as name and value.

    Parameters
    ----------
    run
        It, at its first stage.
    allocator
        What `training.engine.host.keep_memory` said.
    memory
        What the run needs, for people.
    """
    progress, stages = run.progress, run.config.plan
    begun = f"epoch {progress.epoch + 1}, step {progress.step}"
    yield "run", f"{run.folder}, {'from the beginning' if not progress.step else 'from ' + begun}"
    yield "data", ", ".join(store.location for store in run.stores)
    yield "", _tiles(run)
    yield "stages", "; ".join(map(str, stages))
    yield "samples", _samples(run)
    yield "network", _network(run)
    yield "learning", _learning(run)
    yield from describe(run.engine)
    yield "allocator", allocator
    yield "memory", memory


def _tiles(run: Run) -> str:
    """Return how many tiles there are, how large, how they are cut, and what was left out."""
    tiles, facts = run.loader.tiles, run.facts
    judges = "none to validate on (best.pt is that of the last epoch)"
    if run.validation is not None:
        judges = f"{len(run.validation.tiles)} to validate on"
    parts = [f"{counted(len(tiles), 'tile')} to learn from, {judges}"]
    if facts.folds is not None:
        parts.append(f"fold {facts.fold} of {facts.folds} validates (counted from 0)")
    parts += [
        f"{facts.level} x {facts.level} pixels of {_metres(facts.gsd_m)}",
        f"bands {', '.join(facts.bands)}",
    ]
    if tiles.left_out:
        parts.append(f"left out: {', '.join(f'{n} {why}' for why, n in tiles.left_out.items())}")
    return "; ".join(parts)


def _metres(gsd: tuple[float, float]) -> str:
    x, y = (f"{metres:.2g}" for metres in gsd)
    return f"{x} m" if x == y else f"{x} x {y} m"


def _samples(run: Run) -> str:
    loader, every, ranks = run.loader, run.config.accumulate, this_rank()[1]
    per_tile, size = loader.sampling.crops_per_tile, loader.schedule.batch_size
    samples = f"{loader.samples} per epoch, {per_tile} per tile"
    if loader.drawn_tiles < len(loader.tiles):
        samples += f" of {loader.drawn_tiles} tiles that have enough road"
    if per_tile < run.config.crops_per_tile:
        samples += " (no window is smaller than a tile)"
    step = f"{size} per batch"
    step += f" x {ranks} ranks" if ranks > 1 else ""
    step += f" x {every} batches per step" if every > 1 else ""
    together = f" = {size * ranks * every} per step" if ranks * every > 1 else ""
    return f"{samples}, {step}{together}, {counted(-(-len(loader) // every), 'step')} per epoch"


def _network(run: Run) -> str:
    parameters = sum(p.numel() for p in run.trainable.network.parameters())
    facts = run.facts
    binary = run.config.targets == "auto" and facts.targets == "binary"
    why = ": the roads of a store have no speeds" if binary else ""
    made = f"; {run.initial}" if run.initial else ""
    return (
        f"{facts.network}, {parameters / 1e6:.1f} M parameters, {len(facts.bands)} bands -> "
        f"{facts.channels} channels ({facts.targets}{why}){made}"
    )


def _learning(run: Run) -> str:
    config = run.config
    averaged = f", averaged weights (decay {config.ema:g})" if config.ema else ""
    return (
        f"{config.loss}; {config.optimizer}, {config.schedule} up to {config.lr:g}, "
        f"{counted(run.epochs, 'epoch')}{averaged}; seed {config.seed}"
    )
