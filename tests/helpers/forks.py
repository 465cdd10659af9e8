"""Python in processes of its own without the seconds that each takes to import torch.

Run as a program this is a server: it imports everything once, then forks children for every
request (a line of JSON), which run what they are asked to and end as any Python does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

TESTS = Path(__file__).resolve().parents[1]
IMPORTED = (
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "torch.utils.tensorboard"),
    *("torch._dynamo", "torch.distributed.fsdp", "helpers.predict_cases", "helpers.tiny"),
    *("loaders.copying", "training.run.start", "training.evaluation.validation"),
    *("training.prediction.images", "training.runners.model_files", "obstore", "zarrs"),
)
"""What runs, evaluations and predictions import, much of it not before they need it."""


@dataclass(frozen=True)
class Command:
    """Words behind ``python``: ``-m`` and a module, or ``-c`` and code, and its arguments."""

    words: tuple[str, ...]
    folder: str
    environment: Mapping[str, str] = field(default_factory=dict)


class Server:
    """A module of the tests, run as a program, that answers requests: lines of JSON."""

    def __init__(self, module: str) -> None:
        paths = os.pathsep.join([str(TESTS), *sys.path])  # the packages that pytest tests
        self._server = subprocess.Popen(
            [sys.executable, "-m", module],
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def ask(self, request: Any) -> Any:
        """Return the answer to a request."""
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())


class Forks(Server):
    """Processes that have imported torch and the packages under test."""

    def __init__(self) -> None:
        super().__init__("helpers.forks")

    def run(self, *commands: Command) -> list[subprocess.CompletedProcess[str]]:
        """Run commands at the same time, to their ends."""
        ends = self.ask([asdict(command) for command in commands])
        return [
            subprocess.CompletedProcess(command.words, *end)
            for command, end in zip(commands, ends, strict=True)
        ]


def run_ranks(
    forks: Forks, words: Sequence[str], folders: Sequence[Path], **environment: str
) -> list[subprocess.CompletedProcess[str]]:
    """Run a command as ranks of one node each, every one in its folder, without a launcher."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(len(folders)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", **environment}
    return forks.run(
        *(
            Command(tuple(words), str(folder), shared | {"RANK": str(rank)})
            for rank, folder in enumerate(folders)
        )
    )


def serve() -> None:
    """Answer requests until the input ends; return in every child."""
    for name in IMPORTED:  # nothing is computed: threads would not exist in the children
        importlib.import_module(name)
    gc.freeze()  # children would copy the memory of what they look through
    for line in sys.stdin:
        children = []
        for command in json.loads(line):
            files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - `end` reads them
            number = os.fork()
            if not number:
                become(*files, **command)
                return
            children.append((number, files))
        print(json.dumps([end(*child) for child in children]), flush=True)


def become(
    out: BinaryIO, error: BinaryIO, words: list[str], folder: str, environment: dict[str, str]
) -> None:
    """Run a command in this process, as a shell does."""
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(out.fileno(), 1)
    os.dup2(error.fileno(), 2)
    os.chdir(folder)
    os.environ.update(environment)
    kind, what, *arguments = words
    sys.argv = [kind, *arguments]
    if kind == "-c":
        exec(what, {"__name__": "__main__"})
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)


def end(number: int, files: list[BinaryIO]) -> tuple[int, str, str]:
    """Return exit status, or minus a signal, and what a child printed."""
    status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    printed = []
    for file in files:
        file.seek(0)
        printed.append(file.read().decode())
    return status, *printed


if __name__ == "__main__":
    serve()


def as_rank(monkeypatch, **more):
    """Set the variables of a rank, the only one unless others are given."""
    names = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 1, **more}
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))
