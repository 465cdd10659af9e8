"""Progress bars on standard error, in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID, TextColumn

    from geoprep.build import Progress as BuildProgress


def _bar(*extra: TextColumn) -> Progress:
    """Return a progress bar on standard error; standard output is for results."""
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        *extra,
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        # Without ipywidgets, a notebook shows the finished bar only, as a log file does.
        console=Console(stderr=True, force_jupyter=None if find_spec("ipywidgets") else False),
    )


@contextmanager
def counting_bar(title: str, quiet: bool, per: int = 1) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback of the amounts done and in total, shown in units of ``per``.

    The bar appears at the first call.
    """
    if quiet:  # without the import of rich
        yield lambda _done, _total: None
        return
    with _bar() as bar:
        task = bar.add_task(title, total=None, visible=False)
        yield lambda done, total: bar.update(
            task, completed=done // per, total=total // per, visible=True
        )


@contextmanager
def build_bar(quiet: bool) -> Iterator[Callable[[BuildProgress], None]]:
    """Yield a callback for the progress of a build."""
    if quiet:
        yield lambda _progress: None
        return
    from rich.progress import TextColumn

    with _bar(TextColumn("{task.fields[rate]}")) as bar:
        tasks: dict[str, TaskID] = {}
        titles = {"survey": "surveying, megapixels", "build": "building, megapixels"}

        def show(progress: BuildProgress) -> None:
            if progress.stage not in tasks:
                total = round(progress.pixels / 1e6)
                tasks[progress.stage] = bar.add_task(titles[progress.stage], total=total, rate="")
            task = bar.tasks[tasks[progress.stage]]
            elapsed = task.elapsed or 0.0
            rate = ""
            if elapsed > 0 and progress.bytes_read:
                pixels = (progress.pixels_done - progress.pixels_kept) / elapsed / 1e6
                rate = f"{pixels:.1f} Mpx/s {progress.bytes_read / elapsed / 1e6:.0f} MB/s"
            bar.update(task.id, completed=round(progress.pixels_done / 1e6), rate=rate)

        yield show
