"""Run a command, or a function or object of a module, in a separate process.

    python -m benchmarks.child MODULE:NAME JSON

calls the function or class with the arguments in the JSON object and prints the result as one line
of JSON. Of an object, every further line of standard input names a method to call.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from benchmarks.memory import MemorySampler
from geoprep.errors import GeoprepError

ROOT = Path(__file__).resolve().parents[1]

GEOPREP = (sys.executable, "-c", "from geoprep.cli import main; main()")
"""The `geoprep` command of this interpreter, whether or not it is on the PATH."""

TIMEOUT = 900.0
"""Time limit of one answer in seconds."""

CLEARED = ("LD_PRELOAD", "GLIBC_TUNABLES")
"""Environment variables removed for child processes, with all that begin with MALLOC_: the measured
code itself chooses the allocator."""


class ChildError(GeoprepError):
    """A child process failed or did not answer; the message is its last line of output."""


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in CLEARED and not k.startswith("MALLOC_")}


def run(command: Sequence[str]) -> str:
    """Run a command in a cleared environment and return what it printed.

    Raises
    ------
    ChildError
        The command failed.
    """
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise ChildError(f"{' '.join(command[:4])} ...: {' | '.join(lines[-4:])}")
    return done.stdout


def measure(command: Sequence[str], interval: float = 0.02) -> tuple[float, int]:
    """Run a command as `run` does; return its seconds, and its peak PSS in bytes with children.

    Parameters
    ----------
    interval
        Seconds between two measurements of its memory.
    """
    with tempfile.TemporaryFile("w+") as messages:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(), stdout=subprocess.DEVNULL, stderr=messages
        )
        with MemorySampler(process.pid, interval) as sampler:
            process.wait()
        seconds = time.perf_counter() - start
        if process.returncode:
            messages.seek(0)
            raise ChildError(f"{' '.join(command[:4])} ...: {messages.read().strip()[-500:]}")
    return seconds, sampler.peak


class ChildProcess:
    """A function or an object in a separate process, without variables that choose an allocator.

    Parameters
    ----------
    target
        ``module:name`` of the function or class to call.
    given
        Its keyword arguments, as JSON values.
    python
        Python interpreter to run.
    """

    def __init__(
        self, target: str, given: Mapping[str, Any], python: str | Path = sys.executable
    ) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with this object
        self.process = subprocess.Popen(
            [str(python), "-m", "benchmarks.child", target, json.dumps(given)],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            bufsize=1,
            start_new_session=True,  # so that its workers can be killed with it
        )

    def answer(self) -> dict[str, Any]:
        """Return the next answer of the process.

        Raises
        ------
        ChildError
            The process has ended, or did not answer within the time limit.
        """
        assert self.process.stdout is not None
        timer = threading.Timer(TIMEOUT, self._kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            raise ChildError(self._last_error())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **arguments: float | str) -> dict[str, Any]:
        """Call a method of the object and return its answer."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # `answer` raises the cause
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        return self.answer()

    def _last_error(self) -> str:
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors if line.strip()]
        return lines[-1] if lines else f"ended with status {self.process.wait()}"

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self._kill()  # also its own children, or a process that hangs
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def ask(
    target: str, given: Mapping[str, Any], python: str | Path = sys.executable
) -> dict[str, Any]:
    """Return the answer of a function in a separate process; see `ChildProcess`."""
    with ChildProcess(target, given, python) as child:
        return child.answer()


def serve(target: str, text: str) -> None:
    """Call the target; if it is an object, call its methods until standard input ends."""
    # Workers and libraries write to standard output: answers use a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, name = target.partition(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(text))
    answer = result if isinstance(result, dict) else result.describe()
    answers.write(json.dumps(answer) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(result, request.pop("do"))(**request)
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    serve(*sys.argv[1:])
