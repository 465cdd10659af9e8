"""Results computed ahead of a loop by worker threads, in order, and safe under Ctrl-C.

A signal may raise KeyboardInterrupt between any two steps of Python in the main thread: within the
locks of `threading` that leaves them locked for ever, and within a finaliser it is lost. So a loop
uses `queue.SimpleQueue` alone, each of whose operations is one step, and leaves the rest to
threads. Dropping a `Prefetcher` runs no Python: its weak reference puts itself into a queue.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from geoprep.errors import UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")

_EXIT_SECONDS = 5.0
"""How long the interpreter waits at exit for threads to finish their current item."""


class SideThreads:
    """Threads that run as long as the worker threads of a `Prefetcher`; here none."""

    threads = 0
    workers: weakref.ref[WorkerThreads[Any, Any]] | None = None  # kept alive by their `Prefetcher`

    def run(self) -> None:
        """Work, in each of the threads; return soon after `stop`."""

    def stop(self) -> None:
        """Wake up every thread that waits, and end the work."""


class WorkerThreads(Generic[Item, Result]):
    """The threads of a `Prefetcher`, and the queues between them and the loop."""

    owner: weakref.ref[Any]

    def __init__(self, function: Callable[[Item], Result], threads: int, side: SideThreads) -> None:
        self.tasks: SimpleQueue[tuple[Item, SimpleQueue[Any]] | None] = SimpleQueue()
        self.stop_requests: SimpleQueue[object] = SimpleQueue()  # any item ends the work
        self.stopping = self.started = self.ended = False
        self.failure: BaseException | None = None  # why the threads ended early
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._function, self._threads, self._side = function, threads, side

    def launch(self) -> None:
        """Start the managing thread, from a thread: starting one makes `threading` take a lock."""
        try:
            threading.Thread(target=self.run, name="loaders-manage", daemon=True).start()
        except BaseException as error:  # the system gives no more threads: `result` raises it
            self.failure, self.ended = error, True

    def run(self) -> None:
        """Start the threads, wait for a stop request, end them; in a thread of its own."""
        _running.add(self)
        threads: list[threading.Thread] = []
        self.started = True
        try:
            if not self.stopping:
                side = ("loaders-read", self._side.run, self._side.threads)
                for kind, target, count in (side, ("loaders-fill", self._work, self._threads)):
                    for number in range(count):
                        name = f"{kind}-{number}"
                        thread = threading.Thread(target=target, name=name, daemon=True)
                        thread.start()
                        threads.append(thread)
                self.stop_requests.get()
        except BaseException as error:  # as above
            self.failure = error
        self.stopping = True
        self._side.stop()
        for _ in range(self._threads):
            self.tasks.put(None)
        for thread in threads:
            thread.join()
        self.ended = True
        self._ended.put(None)
        _running.discard(self)

    def _work(self) -> None:
        while (task := self.tasks.get()) is not None:
            item, answer = task
            try:
                if not self.stopping:  # the result has no name, which would keep it
                    answer.put((self._function(item), None))
            except BaseException as error:  # raised in the loop, in order
                answer.put((None, error))
            del task, item, answer

    def result(self, answer: SimpleQueue[Any]) -> Result:
        """Wait for the result of a task, and return it or raise its error."""
        while True:
            with suppress(Empty):
                result: Result
                result, error = answer.get(timeout=1)
                break
            if self.ended:
                raise self.failure or UsageError("the threads of this iteration have ended")
        try:
            if error is not None:
                raise error
            return result
        finally:
            del error  # which refers to this frame

    def wait(self, seconds: float = float("inf")) -> None:
        """Wait until all threads have ended."""
        end = time.monotonic() + seconds
        while self.started and not self.ended and time.monotonic() < end:
            with suppress(Empty):
                self._ended.get(timeout=0.05)  # Ctrl-C may take the message: look again


class Prefetcher(Iterator[Result], Generic[Item, Result]):
    """Iterates over ``function(item)`` of every item, in order, some of them computed in advance.

    A loop that is exhausted, or ended by an error of ``function``, leaves no thread. A loop that
    is left in another way does not wait: its threads end after their current item. ``function``
    must not refer to this iterator. ``side`` starts and ends with the worker threads.
    """

    def __init__(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        threads: int,
        prefetch: int,
        side: SideThreads | None = None,
    ) -> None:
        self._items = iter(items)  # consumed by the caller
        self._prefetch = prefetch
        self._answers: deque[SimpleQueue[Any]] | None = None
        side = side or SideThreads()
        self.workers: WorkerThreads[Item, Result] = WorkerThreads(function, threads, side)
        self.workers.owner = weakref.ref(self, self.workers.stop_requests.put)
        side.workers = weakref.ref(self.workers)

    def __next__(self) -> Result:
        try:
            return self._next()
        except Exception:  # StopIteration too
            self.close()
            raise
        except BaseException:
            self.end()
            raise

    def _next(self) -> Result:
        if self._answers is None:  # only now: threads of an iterator never used would never end
            self._answers = deque()
            _thread.start_new_thread(self.workers.launch, ())
        for item in self._items:
            answer: SimpleQueue[Any] = SimpleQueue()
            self._answers.append(answer)
            self.workers.tasks.put((item, answer))
            if len(self._answers) > self._prefetch:
                break
        if not self._answers:
            raise StopIteration
        return self.workers.result(self._answers.popleft())

    def end(self) -> None:
        """End the work, without waiting."""
        self.workers.stopping = True
        self.workers.stop_requests.put(None)
        self._items, self._answers = iter(()), deque()

    def close(self) -> None:
        """End the work, and wait until no thread is left."""
        self.end()
        self.workers.wait()


_running: set[WorkerThreads[Any, Any]] = set()
"""Worker threads that have not ended; changed by their own managing threads."""


def _end_all() -> None:
    """End all worker threads at exit: the interpreter would kill daemon threads in mid-work."""
    every = list(_running)
    for workers in every:
        workers.stop_requests.put(None)
    for workers in every:
        workers.wait(_EXIT_SECONDS)


def _forget_all() -> None:
    """Mark all worker threads as ended in a forked child: they stayed with its parent."""
    for workers in list(_running):
        workers.failure = UsageError("this process was forked in the middle of an iteration")
        workers.stopping = workers.ended = True
    _running.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)
