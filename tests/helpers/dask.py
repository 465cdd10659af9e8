"""A local Dask cluster in separate processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).parents[1]


@dataclass
class Cluster:
    """A scheduler and its workers; ``folder`` holds their logs."""

    folder: Path
    environment: dict[str, str]
    address: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str) -> Path:
        """Start ``dask ...``; return its log."""
        log = self.folder / f"{len(self.processes)}.log"
        command = [sys.executable, "-m", "dask", *arguments]
        with log.open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    command, stderr=out, stdout=out, env=self.environment, start_new_session=True
                )
            )
        return log


def waited_for(log: Path, pattern: str, seconds: float = 300) -> str:
    """Return the first report of a process."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if match := re.search(pattern, log.read_text()):
            return match[1]
        time.sleep(0.05)
    raise TimeoutError(log.read_text())


@contextmanager
def dask_cluster(folder: Path, workers: int = 2, *, failures: int = 3) -> Iterator[Cluster]:
    """Start a scheduler and workers; ``failures`` of a task's workers may die before it fails."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(failures),
    }
    cluster = Cluster(folder, environment)
    log = cluster.start(
        *("scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
    )
    try:
        cluster.address = waited_for(log, r"Scheduler at:\s+(tcp://\S+)")
        # Of one thread; its nanny starts it again when it dies.
        worker = ("worker", cluster.address, "--nthreads", "1", "--no-dashboard")
        place = ("--local-directory", str(folder))
        for one in [cluster.start(*worker, *place) for _ in range(workers)]:
            waited_for(one, r"Registered to:\s+(tcp://\S+)")
        yield cluster
    finally:
        for process in cluster.processes:  # each with what it has started
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
