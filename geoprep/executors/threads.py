"""Runs tasks in threads of this process; `Executor` is the interface of every executor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import islice
from typing import Final, Protocol, TypeVar

from geoprep.cpus import usable_cpus

T = TypeVar("T")
R = TypeVar("R")


_own = threading.local()


def stopped() -> bool:
    """Return whether the caller has left the loop, so that this thread's task may end early."""
    event: threading.Event | None = getattr(_own, "stopped", None)
    return event is not None and event.is_set()


class Executor(Protocol):
    """Runs plain functions on plain, picklable items that return small, picklable records."""

    @property
    def workers(self) -> int:
        """Number of tasks that run at the same time."""
        ...

    def map_unordered(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield results as they finish; after an exception no further item is started."""
        ...

    def run_everywhere(self, function: Callable[[], None]) -> None:
        """Run a function in every process that runs tasks, unless it cannot be reached."""
        ...


class Threads:
    """Threads of this process, since GDAL, the compressors and the compiled loops release the GIL.

    ``workers`` is their number; None: one per core that this process may use.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or usable_cpus()

    def run_everywhere(self, function: Callable[[], None]) -> None:
        """Run a function in this process."""
        function()

    def map_ordered(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the results in the order of the items; the first exception is raised."""
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(function, items))

    def map_unordered(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield results as they finish; after an exception no further item is started.

        Leaving the loop early, by an exception or an interrupt, waits for the items in progress;
        their tasks can check it with :func:`stopped`.
        """
        queue, event = iter(items), threading.Event()
        remember = partial(setattr, _own, "stopped", event)
        with ThreadPoolExecutor(self.workers, initializer=remember) as pool:
            running: set[Future[R]] = set()
            try:
                running.update(pool.submit(function, item) for item in islice(queue, self.workers))
                while running:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    results = [future.result() for future in done]
                    # Refill before results are yielded, so that no thread waits for the caller.
                    running |= {pool.submit(function, item) for item in islice(queue, len(done))}
                    yield from results
            finally:
                event.set()
                for future in running:
                    future.cancel()


_MOST_TOGETHER: Final = 64
"""Largest number of items that one task of `in_batches` takes."""


def in_batches(executor: Executor, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results of many short calls in the order of the items; a task makes several."""
    # A cluster takes milliseconds per task, whatever its size, so make about a thousand.
    some = max(1, min(_MOST_TOGETHER, len(items) // 1000))
    batches = ((first, items[first : first + some]) for first in range(0, len(items), some))
    found = dict(executor.map_unordered(partial(_each, function), batches))
    return [result for first in sorted(found) for result in found[first]]


def _each(function: Callable[[T], R], batch: tuple[int, Sequence[T]]) -> tuple[int, list[R]]:
    first, items = batch
    return first, [function(item) for item in items]
