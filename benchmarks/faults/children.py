"""Child processes with time and memory limits, forked from a server with all imports done."""

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
    """The end of a child process.

    Attributes
    ----------
    how
        ``done``, ``told`` (an error for people), ``raised`` (any other), ``killed`` (by us),
        ``died`` (by a signal of its own), ``hung`` (past its time).
    answer
        Return value of the function, or the error as text.
    seconds
        Run time of the function.
    peak
        Peak memory in bytes; 0 if unknown.
    stderr_text
        Last line of its standard error, if the function returned or raised.
    """

    how: str
    answer: Any = None
    seconds: float = 0.0
    peak: int = 0
    stderr_text: str = ""

    @property
    def orderly(self) -> bool:
        """True if it was done, reported an error, or was killed by the test."""
        return self.how in ("done", "reported", "killed")

    def __str__(self) -> str:
        lines = str(self.answer).strip().splitlines()[-1:] + [self.stderr_text] * bool(self.answer)
        return f"{self.how}: {' '.join(lines):.400}"


class ForkedProcess:
    """A function that runs in a forked process.

    Parameters
    ----------
    function, arguments
        Function and its arguments; these and the return value must be picklable.
    memory
        Limit of further address space in bytes; 0 for no limit.
    unprivileged
        Drop root's privileges, which bypass file modes.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,  # noqa: ANN401 - the function's own
        memory: int = 0,
        unprivileged: bool = False,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.faults.preload"])
        self._receive, send = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(
            target=_work, args=(send, function, arguments, memory, unprivileged)
        )
        self._process.start()
        send.close()
        if not self._receive.poll(60) or self._receive.recv() != "ready":
            raise RuntimeError("the child process did not start")
        self._start = time.monotonic()

    def end(self, *, kill_after: float | None = None, timeout: float = TIMEOUT) -> Ending:
        """Wait for the end and return it.

        Parameters
        ----------
        kill_after
            Seconds until SIGKILL; None for no kill.
        timeout
            Seconds until the process counts as hung.
        """
        limit = timeout if kill_after is None else kill_after
        answered = self._receive.poll(max(0.0, self._start + limit - time.monotonic()))
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
    unprivileged: bool = False,
) -> Ending:
    """Run a function in a child process and return its end."""
    child = ForkedProcess(function, *arguments, memory=memory, unprivileged=unprivileged)
    return child.end(kill_after=kill_after, timeout=timeout)


def _work(
    send: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    memory: int,
    unprivileged: bool,
) -> None:
    stderr_text = _redirect_output()
    if memory:
        most = resident("VmSize") + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if unprivileged and ctypes.CDLL(None).capset(*_CAPABILITIES):
        raise RuntimeError("root's privileges cannot be dropped")
    send.send("ready")
    try:
        how, answer = "done", function(*arguments)
    except GeoprepError as error:
        how, answer = "reported", f"{type(error).__name__}: {error}"
    except BaseException:
        how, answer = "raised", traceback.format_exc()
    send.send((how, answer, resident(), _last_line(stderr_text)))
    send.close()
    os.kill(os.getpid(), signal.SIGKILL)  # skips the clean-up of the interpreter


def _redirect_output() -> int:
    """Discard standard output; redirect standard error to an anonymous file and return the file."""
    null, stderr_text = os.open(os.devnull, os.O_RDWR), os.memfd_create("stderr_text")
    for stream, target in enumerate((null, null, stderr_text)):
        os.dup2(target, stream)
    return stderr_text


def _last_line(file: int) -> str:
    size = os.fstat(file).st_size
    text = os.pread(file, 2000, max(0, size - 2000)).decode(errors="replace")
    return " ".join(text.strip().splitlines()[-1:])
