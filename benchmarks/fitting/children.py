"""Asking `benchmarks.fitting.worker`, and other commands, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fitting.rungs import ROOT

CLEARED = ("LD_PRELOAD", "GLIBC_TUNABLES")
"""Of the environment, with everything that begins with MALLOC_: they choose an allocator, which
here is what a rung does."""


class CommandError(RuntimeError):
    """A command failed; the message is its last words."""


def ask(
    task: Mapping[str, Any], *, python: Path | None = None, launcher: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the worker's answer.

    Parameters
    ----------
    task
        What ``do`` names in `benchmarks.fitting.worker.TASKS`, and its arguments.
    python
        Interpreter; None for this one.
    launcher
        Options of Python that start the process, before its own command.

    Raises
    ------
    CommandError
        It failed.
    """
    executable = str(python or sys.executable)
    command = [executable, "-m", "benchmarks.fitting.worker", json.dumps(task)]
    if launcher:
        command = [executable, *launcher, *command]
    lines = run(command).splitlines()
    answers = [line for line in lines if line.startswith("{")]
    if not answers:
        raise CommandError(f"{command}: no answer")
    answer: dict[str, Any] = json.loads(answers[-1])
    return answer


def run(command: Sequence[str], **variables: str) -> str:
    """Run a command in a clean allocator's environment and return what it printed.

    Raises
    ------
    CommandError
        It failed.
    """
    kept = {k: v for k, v in os.environ.items() if k not in CLEARED and not k.startswith("MALLOC_")}
    done = subprocess.run(
        command, cwd=ROOT, env={**kept, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise CommandError(f"{' '.join(command[:4])} ...: {' | '.join(said[-4:])}")
    return done.stdout
