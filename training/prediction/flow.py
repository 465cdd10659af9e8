"""Work in a thread of its own, ahead of whoever uses it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, Full, Queue
from typing import TypeVar

Item = TypeVar("Item")
_POLL_S = 0.1


class _End:
    """Tells that nothing more comes, and why."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


@contextmanager
def ahead(items: Iterable[Item], depth: int) -> Iterator[Iterator[Item]]:
    """Consume an iterable in a thread, from beginning to end; its files stay in that thread.

    However the block ends (exhausted, broken off, by an exception or Ctrl-C), the thread has ended
    with it.

    Parameters
    ----------
    items
        Any iterable; an exception of its is raised where its next item would have come.
    depth
        Items that may wait, beside the one in the making.
    """
    queue: Queue[Item | _End] = Queue(depth)
    stop = threading.Event()

    def put(item: Item | _End) -> bool:
        while not stop.is_set():
            try:
                queue.put(item, timeout=_POLL_S)
            except Full:
                continue
            return True
        return False

    def work() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                if not put(item):
                    break
        except BaseException as raised:  # noqa: BLE001,RUF100 - handed on to the consumer
            error = raised
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
            put(_End(error))

    thread = threading.Thread(target=work, name="predict-read", daemon=True)
    thread.start()

    def taken() -> Iterator[Item]:
        while True:
            item = queue.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    try:
        yield taken()
    finally:
        stop.set()
        with_room(queue)
        thread.join()


def with_room(queue: Queue[Item]) -> None:
    """Empty a queue, so that whoever waits to put something can go on."""
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return
