"""Measuring in a process of its own: one question and its answer, or a conversation."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parents[1]

TIMEOUT = 300.0
"""Seconds that one answer of a conversation may take."""

CLEARED = ("LD_PRELOAD", "GLIBC_TUNABLES")
"""Of the environment, with everything that begins with MALLOC_: they choose an allocator,
which is the business of what is measured."""


class ChildError(RuntimeError):
    """A child failed or did not answer; the message is its last words."""


def run(command: Sequence[str], **variables: str) -> str:
    """Run a command in a cleared environment and return what it printed.

    Raises
    ------
    ChildError
        It failed.
    """
    kept = {k: v for k, v in os.environ.items() if k not in CLEARED and not k.startswith("MALLOC_")}
    done = subprocess.run(
        command, cwd=ROOT, env={**kept, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise ChildError(f"{' '.join(command[:4])} ...: {' | '.join(said[-4:])}")
    return done.stdout


def ask(
    module: str,
    task: Mapping[str, Any],
    *,
    python: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a module on a task; return the JSON object that is the last line of its output.

    Parameters
    ----------
    module
        Run as ``python -m MODULE JSON``.
    task
        What it finds in ``sys.argv[1]``, as JSON.
    python
        Interpreter; None for this one.
    variables
        Of its environment, beside those of this process.

    Raises
    ------
    ChildError
        It failed, or gave no answer.
    """
    command = [str(python or sys.executable), "-m", module, json.dumps(task)]
    answers = [
        line for line in run(command, **(variables or {})).splitlines() if line.startswith("{")
    ]
    if not answers:
        raise ChildError(f"{command}: no answer")
    answer: dict[str, Any] = json.loads(answers[-1])
    return answer


class Conversation:
    """A child that lives on and answers one question after the other, in lines of JSON.

    Parameters
    ----------
    command
        What to run.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with this object
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            bufsize=1,
            start_new_session=True,  # its workers can then be ended with it
        )
        self._answers: queue.Queue[str] = queue.Queue()
        assert self.process.stdout is not None
        reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._answers.put(line)
        self._answers.put("")

    def answer(self, timeout: float = TIMEOUT) -> dict[str, Any]:
        """Return what the child says next.

        Raises
        ------
        ChildError
            It has ended, or is silent for too long.
        """
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty as error:
            raise ChildError(f"no answer within {timeout:.0f} s") from error
        if not line:
            raise ChildError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **arguments: float | str) -> dict[str, Any]:
        """Tell the child to do something, and return its answer."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the answer will tell why
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        return self.answer()

    def _last_words(self) -> str:
        self.complaints.seek(0)
        lines = [line.strip() for line in self.complaints if line.strip()]
        return lines[-1] if lines else f"ended with status {self.process.wait()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with suppress(ProcessLookupError):  # what it left behind, or all of it where it hangs
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.complaints.close()
