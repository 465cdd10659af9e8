"""Progress bars on standard error, in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TextColumn


def progress_bar(*extra: TextColumn) -> Progress:
    """Return a progress bar on standard error; standard output is for results."""
    from rich import progress

    from geoprep.executors.terminal import Terminal

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        *extra,
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        # Without ipywidgets, a notebook shows the finished bar only, as a log file does.
        console=Terminal(stderr=True, force_jupyter=None if find_spec("ipywidgets") else False),
    )


@contextmanager
def counting_bar(title: str, quiet: bool, per: int = 1) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback of the amounts done and in total, shown in units of ``per``.

    The bar appears at the first call.
    """
    if quiet:  # without the import of rich
        yield lambda _done, _total: None
        return
    with progress_bar() as bar:
        task = bar.add_task(title, total=None, visible=False)
        yield lambda done, total: bar.update(
            task, completed=done / per, total=total // per, visible=True
        )
