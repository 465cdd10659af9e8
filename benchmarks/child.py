"""Measuring in processes of their own: a command, or a function or an object of some module.

    python -m benchmarks.child MODULE:NAME JSON

calls what is named with what the JSON object holds, and says what it returned in a line of JSON. An
object is then asked: every line of standard input names one of its methods.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]

GEOPREP = (sys.executable, "-c", "from geoprep.cli import main; main()")
"""The `geoprep` command of this very interpreter, whether or not it is on the PATH."""

TIMEOUT = 900.0
"""Seconds that one answer may take."""

CLEARED = ("LD_PRELOAD", "GLIBC_TUNABLES")
"""Of the environment, with everything that begins with MALLOC_: they choose an allocator,
which is the business of what is measured."""


class ChildError(RuntimeError):
    """A child failed or did not answer; the message is its last words."""


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in CLEARED and not k.startswith("MALLOC_")}


def run(command: Sequence[str]) -> str:
    """Run a command in a cleared environment and return what it printed.

    Raises
    ------
    ChildError
        It failed.
    """
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise ChildError(f"{' '.join(command[:4])} ...: {' | '.join(said[-4:])}")
    return done.stdout


class Child:
    """A function or an object in a process of its own, with a cleared environment.

    Parameters
    ----------
    target
        ``module:name`` of what is called.
    given
        Its arguments by name, as JSON has them.
    python
        The interpreter.
    """

    def __init__(
        self, target: str, given: Mapping[str, Any], python: str | Path = sys.executable
    ) -> None:
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with this object
        self.process = subprocess.Popen(
            [str(python), "-m", "benchmarks.child", target, json.dumps(given)],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            bufsize=1,
            start_new_session=True,  # its workers can then be ended with it
        )

    def answer(self) -> dict[str, Any]:
        """Return what the child says next.

        Raises
        ------
        ChildError
            It has ended, or is silent for too long.
        """
        assert self.process.stdout is not None
        patience = threading.Timer(TIMEOUT, self._kill)
        patience.start()
        line = self.process.stdout.readline()
        patience.cancel()
        if not line:
            raise ChildError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **arguments: float | str) -> dict[str, Any]:
        """Call a method of the object, and return its answer."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the answer will tell why
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        return self.answer()

    def _last_words(self) -> str:
        self.complaints.seek(0)
        lines = [line.strip() for line in self.complaints if line.strip()]
        return lines[-1] if lines else f"ended with status {self.process.wait()}"

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self._kill()  # what it left behind, or all of it where it hangs
        self.process.wait()
        self.complaints.close()


def ask(
    target: str, given: Mapping[str, Any], python: str | Path = sys.executable
) -> dict[str, Any]:
    """Return the answer of a function in a process of its own; see `Child`."""
    with Child(target, given, python) as child:
        return child.answer()


def serve(target: str, text: str) -> None:
    """Call what is named; let an object answer until standard input ends."""
    # A descriptor that workers and chatty libraries do not write to.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, name = target.partition(":")
    made = getattr(importlib.import_module(module), name)(**json.loads(text))
    found = made if isinstance(made, dict) else made.hello()
    answers.write(json.dumps(found) + "\n")
    for line in sys.stdin:
        asked = json.loads(line)
        found = getattr(made, asked.pop("do"))(**asked)
        answers.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    serve(*sys.argv[1:])
