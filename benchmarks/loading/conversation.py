"""Talking to a loader in a process of its own, in lines of JSON (see `benchmarks.peers.run`)."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.peers.base import Task

ROOT = Path(__file__).resolve().parents[2]

TIMEOUT = 300.0
"""Seconds a peer may take to answer."""


class PeerError(RuntimeError):
    """A peer failed or did not answer."""


class Conversation:
    """A peer's process, and its side of the conversation.

    Parameters
    ----------
    module
        Of `benchmarks.peers`.
    task
        What to run it on.
    python
        Interpreter.
    """

    def __init__(self, module: str, task: Task, python: Path) -> None:
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with this object
        command = [str(python), "-m", "benchmarks.peers.run", module, task.dump()]
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
        """Return what the peer says next.

        Raises
        ------
        PeerError
            It has ended, or is silent for too long.
        """
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty as error:
            raise PeerError(f"no answer within {timeout:.0f} s") from error
        if not line:
            raise PeerError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **arguments: float) -> dict[str, Any]:
        """Tell the peer to do something, and return its answer."""
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
