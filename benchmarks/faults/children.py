"""Children that may be killed, starved and watched: forked from a server that has all imported."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import struct
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

from benchmarks.machine import resident
from geoprep.errors import GeoprepError

_CAPABILITIES = struct.pack("<Ii", 0x20080522, 0), bytes(24)
"""Header (version 3, this thread) and contents (none at all) of capset(2)."""
TIMEOUT = 120.0


@dataclass(frozen=True)
class Ending:
    """How a child ended.

    Attributes
    ----------
    how
        ``done``, ``told`` (an error for people), ``raised`` (any other), ``killed`` (by us),
        ``died`` (by a signal of its own), ``hung`` (past its time).
    answer
        What the function returned, or the error in words.
    seconds
        From its first line of work on.
    peak
        Bytes of memory it held at most; 0 where it could not tell.
    said
        Last line on its standard error, where it came to an end.
    """

    how: str
    answer: Any = None
    seconds: float = 0.0
    peak: int = 0
    said: str = ""

    @property
    def orderly(self) -> bool:
        """Whether it ended as a command may end."""
        return self.how in ("done", "told", "killed")

    def __str__(self) -> str:
        told = str(self.answer).strip().splitlines()[-1:] + [self.said] * bool(self.answer)
        return f"{self.how}: {' '.join(told):.400}"


class Child:
    """A function that runs in a process of its own.

    Parameters
    ----------
    function, arguments
        Picklable; what it returns too.
    memory
        Bytes of address space that it may take beyond what it begins with.
    powerless
        Without root's privileges: else modes of files mean nothing to it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,  # noqa: ANN401 - the function's own
        memory: int = 0,
        powerless: bool = False,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.faults.warm"])
        self._receive, send = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(
            target=_work, args=(send, function, arguments, memory, powerless)
        )
        self._process.start()
        send.close()
        if not self._receive.poll(60) or self._receive.recv() != "ready":
            raise RuntimeError("a child does not start")
        self._start = time.monotonic()

    def end(self, *, kill_after: float | None = None, timeout: float = TIMEOUT) -> Ending:
        """Return how it ends; ``kill_after`` so many seconds by SIGKILL, unless it is done."""
        patience = timeout if kill_after is None else kill_after
        answered = self._receive.poll(max(0.0, self._start + patience - time.monotonic()))
        seconds = time.monotonic() - self._start
        try:
            how, answer, *more = self._receive.recv() if answered else ("", None)
        except EOFError:
            how, answer, more = "died", None, []
        if not answered:
            how = "hung" if kill_after is None else "killed"
        if how in ("hung", "killed"):
            self._process.kill()
            answer = f"after {seconds:.1f} s"
        self._process.join()
        if how == "died":
            answer = f"status {self._process.exitcode}"
        self._receive.close()
        return Ending(how, answer, seconds, *more)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def run(
    function: Callable[..., Any],
    *arguments: Any,  # noqa: ANN401 - the function's own
    kill_after: float | None = None,
    timeout: float = TIMEOUT,
    memory: int = 0,
    powerless: bool = False,
) -> Ending:
    """Run a function in a child to its end."""
    child = Child(function, *arguments, memory=memory, powerless=powerless)
    return child.end(kill_after=kill_after, timeout=timeout)


def _work(
    send: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    memory: int,
    powerless: bool,
) -> None:
    said = _keep_quiet()
    if memory:
        most = resident("VmSize") + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if powerless and ctypes.CDLL(None).capset(*_CAPABILITIES):
        raise RuntimeError("root's privileges cannot be given up")
    send.send("ready")
    try:
        how, answer = "done", function(*arguments)
    except GeoprepError as error:
        how, answer = "told", f"{type(error).__name__}: {error}"
    except BaseException:
        how, answer = "raised", traceback.format_exc()
    send.send((how, answer, resident(), _last_line(said)))
    send.close()
    os.kill(os.getpid(), signal.SIGKILL)  # nothing of what ends a process is of interest


def _keep_quiet() -> int:
    """Send what is printed to nowhere, errors to a file without a name; return the file."""
    nowhere, said = os.open(os.devnull, os.O_RDWR), os.memfd_create("said")
    for stream, target in enumerate((nowhere, nowhere, said)):
        os.dup2(target, stream)
    return said


def _last_line(file: int) -> str:
    size = os.fstat(file).st_size
    text = os.pread(file, 2000, max(0, size - 2000)).decode(errors="replace")
    return " ".join(text.strip().splitlines()[-1:])
