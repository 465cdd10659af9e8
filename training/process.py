"""The process of a command: signals, waiting threads of OpenMP, and errors of lacking memory."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from geoprep.cpus import started_rank

SPINS = "10000"
"""Rounds for which idle threads of GNU OpenMP spin before they sleep, some tens of microseconds."""


def limit_spinning() -> None:
    """Let idle threads spin for a moment, then sleep, unless the environment says how they wait.

    Threads that sleep at once are woken hundreds of times in a step. Threads that spin on take
    processor time from other processes, so on a machine with twice as many of those as processors
    they sleep at once. Call this before torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        crowded = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
        os.environ.setdefault("GOMP_SPINCOUNT", "0" if crowded else SPINS)


_MESSAGES = re.compile(r"out[ _]of[ _](\w+_)?memory|alloc_failed|can't allocate memory", re.I)
"""Messages of the backends of torch that have no memory left."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a device or the host has no memory left."""
    if type(error).__name__ in ("MemoryError", "OutOfMemoryError"):  # the latter is torch's
        return True
    return isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt as Ctrl-C does, unless they are ignored or handled."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    # A rank that waits for others inside torch has to die at once.
    alone = threading.current_thread() is threading.main_thread() and started_rank() is None
    numbers = (signal.SIGTERM, signal.SIGHUP) if alone else ()
    taken = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


class RunStopped(Exception):  # noqa: N818 - no error: the run was saved and ended as requested
    """A run was stopped by a signal and has been saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal_name(number)}")
        self.exit_code = 128 + number


def signal_name(number: int) -> str:
    """Return the name of a signal: ``Ctrl-C``, ``SIGTERM``."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


class StopSignals:
    """Records signals inside its context; a second one interrupts at once.

    Signals that are ignored, as under ``nohup``, stay ignored. While there is nothing to save, such
    as when tiles are loaded, the first one interrupts ``at_once``.
    """

    def __init__(self) -> None:
        self.number = 0
        self.at_once = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread gets signals
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        del frame
        again = self.number > 0
        self.number = self.number or number
        if again or self.at_once:
            raise KeyboardInterrupt
