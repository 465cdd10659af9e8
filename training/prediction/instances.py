"""Several processes that map images together, each on cores of its own.

One network on many cores waits for its slowest thread after every layer; several smaller ones do
not. Each process begins with images of its own and then helps with those left. What keeps two
from one map is the lock of its journal, as between commands that know nothing of each other.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, TypeAlias

from geoprep.errors import GeoprepError, UsageError
from geoprep.executors import usable_cores
from training.cli import Status
from training.prediction.job import Outcome
from training.prediction.mapping import Report
from training.prediction.options import Request
from training.prediction.report import Screen, counts, ground_rate

_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 10.0

Messages: TypeAlias = "Queue[tuple[str, Any]]"
"""What happened, and to what: ``done`` an outcome, ``say`` a line, ``fail`` an error."""

Work = Callable[[Request, tuple[int, int], float, "Messenger"], None]
"""Called with the request, which process of how many it is, when all began, and whom to tell."""


class Messenger:
    """A reporter that passes on what happens to the process that shows it.

    Parameters
    ----------
    messages
        To that process.
    """

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def begin(self, target: Path, pixels: int) -> Report:
        """Return a callback that does nothing: bars of several processes do not mix."""
        del target, pixels
        return lambda done: None

    def done(self, outcome: Outcome) -> None:
        """Pass on what became of an image."""
        self._messages.put(("done", outcome))

    def say(self, line: str) -> None:
        """Pass on a line."""
        self._messages.put(("say", line))


def share_cores(cores: Sequence[int], count: int) -> list[list[int]]:
    """Return as equal shares of neighbouring cores as there can be.

    Raises
    ------
    UsageError
        There are not as many cores.
    """
    if count > len(cores):
        raise UsageError(f"--instances {count}: this process may use {len(cores)} cores")
    edges = [len(cores) * i // count for i in range(count + 1)]
    return [list(cores[a:b]) for a, b in pairwise(edges)]


def run_instances(request: Request, work: Work) -> int:
    """Carry out a request in several processes; return the exit status.

    Parameters
    ----------
    request
        Says how many.
    work
        What a process does, a function of a module.

    Raises
    ------
    UsageError
        There are too few cores, or the device is no CPU.
    GeoprepError
        A process could not go on.
    """
    count = request.instances
    if request.device not in ("auto", "cpu"):
        raise UsageError(f"--instances {count} is for --device cpu: cores are what is shared")
    shares = share_cores(sorted(os.sched_getaffinity(0)), count)
    context = multiprocessing.get_context("spawn")
    messages: Messages = context.Queue()
    since = time.time()
    processes = [
        context.Process(
            target=_run, args=(partial(work, request, (i, count), since), cores, messages)
        )
        for i, cores in enumerate(shares)
    ]
    try:
        # The terminal's Ctrl-C reaches them as well: this process ends them, and says so.
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for process in processes:
                process.start()
        finally:
            signal.signal(signal.SIGINT, heard)
        return _watch(processes, messages, since)
    finally:
        _end(processes)


def _run(work: Callable[[Messenger], None], cores: Sequence[int], messages: Messages) -> None:
    """Be one of the processes: keep to its cores, and end when its parent does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.sched_setaffinity(0, cores)
    import torch

    torch.set_num_threads(usable_cores())
    try:
        work(Messenger(messages))
    except GeoprepError as error:
        messages.put(("fail", error))


def _watch(processes: Sequence[SpawnProcess], messages: Messages, since: float) -> int:
    """Show what the processes do until all have ended; return the exit status."""
    outcomes: dict[Path, Outcome] = {}
    with Screen(quiet=True) as screen:
        while True:
            alive = any(process.is_alive() for process in processes)
            try:
                kind, value = messages.get(timeout=0.2)
            except queue.Empty:
                if not alive:
                    break
                continue
            if kind == "fail":
                raise value
            if kind == "say":
                screen.say(value)
            else:
                _note(value, outcomes, screen)
        for line in _summary(processes, list(outcomes.values()), time.time() - since):
            screen.say(line)
    failed = any(process.exitcode for process in processes)
    failed |= any(outcome.error for outcome in outcomes.values())
    return Status.FAILED if failed else Status.DONE


def _note(outcome: Outcome, outcomes: dict[Path, Outcome], screen: Screen) -> None:
    """Keep and show what became of an image: of several reports that of who mapped it."""
    before = outcomes.get(outcome.target)
    if before is None or _weight(outcome) > _weight(before):
        outcomes[outcome.target] = outcome
        if not outcome.theirs:
            screen.done(outcome)


def _weight(outcome: Outcome) -> int:
    return 0 if outcome.theirs else 1 if outcome.stats is None else 2


def _summary(
    processes: Sequence[SpawnProcess], outcomes: Sequence[Outcome], seconds: float
) -> Iterator[str]:
    """Yield what all reached together, and which of them broke off."""
    works = [o.stats for o in outcomes if o.stats is not None]
    if works:
        network = sum(work.network_pixels for work in works) / 1e6
        mapped = sum(work.seconds for work in works)
        area = ground_rate(outcomes, seconds)
        yield (
            f"{len(processes)} processes together: {network / seconds:.2f} Mpx/s through the "
            f"network{area and f', {area}'}, their start included ({seconds:.1f} s, {mapped:.1f} s "
            "of mapping)"
        )
    yield counts(outcomes)
    for i, process in enumerate(processes, 1):
        if process.exitcode:
            yield (
                f"process {i} ended with status {process.exitcode}: run the same command again to "
                "carry on"
            )


def _end(processes: Sequence[SpawnProcess]) -> None:
    """End those that still run; what they had done is taken up by the next run."""
    running = [process for process in processes if process.pid is not None]
    for process in running:
        if process.is_alive():
            process.terminate()
    for process in running:
        process.join(_PATIENCE_S)
        if process.is_alive():
            process.kill()
            process.join()
