"""Work done ahead of its use by threads, handed over in order, whenever Ctrl-C comes.

Between any two steps of Python in the main thread a signal may raise KeyboardInterrupt: within the
locks of `threading` and `concurrent.futures` that leaves them held for ever, and within a finaliser
it is lost. So a loop touches nothing but `queue.SimpleQueue`, each of whose operations is one step;
locks, starting and waiting are left to threads, which no signal reaches. Letting go of an `Ahead`
runs no Python either: a weak reference puts itself into a queue, and the threads end by themselves.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, Self, TypeVar

from geoprep.errors import UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")

Progress = Callable[[int, int], None]
"""Called with tiles read and tiles in all, in the thread that loads."""

_EXIT_SECONDS = 5.0
"""How long the interpreter waits at its end for threads to finish what they are at."""


class Beside:
    """What else is done beside the work of an `Ahead`: here nothing.

    Attributes
    ----------
    threads
        How many run it.
    """

    threads = 0

    def run(self) -> None:
        """Do it, in each of these threads; end after `stop`."""

    def stop(self) -> None:
        """Let nobody wait for anything any longer."""


class Crew(Generic[Item, Result]):
    """The threads of an `Ahead`, and the queues between them and the loop.

    Attributes
    ----------
    tasks
        Items, each with the queue that its result goes to.
    orders
        Whatever comes out of it ends the work.
    owner
        The `Ahead`, as long as somebody has it.
    closed
        Whether it was told to end; what has not started by then does not.
    started, over
        Whether there are threads, and whether all have ended.
    """

    owner: weakref.ref[Any]

    def __init__(self, function: Callable[[Item], Result], threads: int, beside: Beside) -> None:
        self.tasks: SimpleQueue[tuple[Item, SimpleQueue[Any]] | None] = SimpleQueue()
        self.orders: SimpleQueue[object] = SimpleQueue()
        self.closed = self.started = self.over = False
        self.failure: BaseException | None = None
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._function = function
        self._threads = threads
        self._beside = beside

    def launch(self) -> None:
        """Start `run`, in a thread: to start one `threading` waits with a lock."""
        try:
            threading.Thread(target=self.run, name="loaders-crew", daemon=True).start()
        except BaseException as error:  # the system gives no more threads: for who waits
            self.failure, self.over = error, True

    def run(self) -> None:
        """Start the threads, wait for the order to end, end them; in a thread of its own."""
        _crews.add(self)
        threads: list[threading.Thread] = []
        self.started = True
        try:
            if not self.closed:
                self._start(threads)
                self.orders.get()
        except BaseException as error:  # as above
            self.failure = error
        self.closed = True
        self._beside.stop()
        for _ in range(self._threads):
            self.tasks.put(None)
        for thread in threads:
            thread.join()
        self.over = True
        self._ended.put(None)
        _crews.discard(self)

    def _start(self, threads: list[threading.Thread]) -> None:
        beside = ("loaders-read", self._beside.run, self._beside.threads)
        for kind, target, count in (beside, ("loaders-fill", self._work, self._threads)):
            for number in range(count):
                thread = threading.Thread(target=target, name=f"{kind}-{number}", daemon=True)
                thread.start()
                threads.append(thread)

    def _work(self) -> None:
        while (task := self.tasks.get()) is not None:
            if not self.closed:
                self._answer(*task)
            del task

    def _answer(self, item: Item, answer: SimpleQueue[Any]) -> None:
        try:
            result = self._function(item)
        except BaseException as error:  # at its turn
            answer.put((None, error))
        else:
            answer.put((result, None))

    def result(self, answer: SimpleQueue[Any]) -> Result:
        """Wait for what a task came to."""
        while True:
            with suppress(Empty):
                result: Result
                result, error = answer.get(timeout=1)
                break
            if self.over:
                raise self.failure or UsageError("the threads of this iteration have ended")
        try:
            if error is not None:
                raise error
            return result
        finally:
            del error  # which holds this frame

    def wait(self, seconds: float = float("inf")) -> None:
        """Wait until all threads have ended."""
        end = time.monotonic() + seconds
        while self.started and not self.over and time.monotonic() < end:
            with suppress(Empty):
                self._ended.get(timeout=0.05)  # a message that Ctrl-C took along is not missed


class Ahead(Iterator[Result], Generic[Item, Result]):
    """Iterates over ``function(item)`` of every item, in order, some of them prepared.

    A loop that is exhausted, or ended by an error of the work, leaves no thread. One that is left
    otherwise does not wait: its threads end when they have done what they are at.

    Parameters
    ----------
    function
        Called in a thread; it must not refer to this iterator.
    items
        Consumed in the caller's thread, at most ``ahead`` items before their turn.
    threads
        How many work.
    ahead
        Results that may be ready or in work while the caller is busy with one.
    beside
        What is started and ended with them.
    """

    def __init__(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        threads: int,
        ahead: int,
        beside: Beside | None = None,
    ) -> None:
        self._items = iter(items)
        self._ahead = ahead
        self._answers: deque[SimpleQueue[Any]] | None = None
        self.crew: Crew[Item, Result] = Crew(function, threads, beside or Beside())
        self.crew.owner = weakref.ref(self, self.crew.orders.put)

    def __next__(self) -> Result:
        try:
            return self._next()
        except Exception:  # StopIteration too
            self.close()
            raise
        except BaseException:
            self._end()
            raise

    def _next(self) -> Result:
        if self._answers is None:  # the first: so that nothing runs that nobody can end
            self._answers = deque()
            _thread.start_new_thread(self.crew.launch, ())
        for item in self._items:
            answer: SimpleQueue[Any] = SimpleQueue()
            self._answers.append(answer)
            self.crew.tasks.put((item, answer))
            if len(self._answers) > self._ahead:
                break
        if not self._answers:
            raise StopIteration
        return self.crew.result(self._answers.popleft())

    def _end(self) -> None:
        self.crew.closed = True
        self.crew.orders.put(None)
        self._items, self._answers = iter(()), deque()

    def close(self) -> None:
        """End the work, and wait until no thread is left."""
        self._end()
        self.crew.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield None


_crews: set[Crew[Any, Any]] = set()
"""Those at work; changed by their own threads."""


def _end_all() -> None:
    """End what still runs when the interpreter does: threads of its own it would cut down."""
    crews = list(_crews)
    for crew in crews:
        crew.orders.put(None)
    for crew in crews:
        crew.wait(_EXIT_SECONDS)


def _forget_all() -> None:
    """Say in a forked child that the threads stayed with its parent."""
    for crew in list(_crews):
        crew.failure = UsageError("this process was forked in the middle of an iteration")
        crew.closed = crew.over = True
    _crews.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)
