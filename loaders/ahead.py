"""Work done ahead of its use by threads, handed over in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int
) -> Generator[Result, None, None]:
    """Yield ``function(item)`` of every item, in order, up to ``ahead`` of them prepared.

    However the loop over it ends (exhausted, broken, by an exception or Ctrl-C) its threads have
    ended with it.

    Parameters
    ----------
    function
        Called in a thread.
    items
        Consumed in the caller's thread, at most ``ahead`` items before their turn.
    threads
        How many.
    ahead
        Results that may be ready or in work while the caller is busy with one.
    """
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, "loaders-fill")
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
