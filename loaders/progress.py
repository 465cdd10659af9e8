"""A progress bar for loading, where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from loaders.reading import Progress


@contextmanager
def progress_bar(wanted: bool | Progress | None, title: str) -> Iterator[Progress | None]:
    """Yield what to call with (done, total), or None.

    Parameters
    ----------
    wanted
        True for a bar on standard error, False for none, None for one if that is a terminal; or a
        function, which is used as it is.
    title
        What is going on.
    """
    if callable(wanted):
        yield wanted
    elif wanted or (wanted is None and sys.stderr.isatty()):
        with _bar(title) as report:
            yield report
    else:
        yield None


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title)
        yield lambda done, total: bar.update(task, completed=done, total=total)
