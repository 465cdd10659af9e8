"""What processes really hold: unique, proportional and resident memory of a process tree.

RSS counts a shared page once for every process that maps it, so eight workers over one copy of
10 GB seem to hold 80 GB. USS counts the pages that nobody else maps, what would come back if the
process ended; PSS gives every process its share of a shared page, so that the sum over processes
is what the machine has given out. Read from ``/proc/<pid>/smaps_rollup`` (Linux 4.14), else by
psutil.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory in bytes.

    Attributes
    ----------
    uss
        Pages mapped by this process alone.
    pss
        The same, and its share of every shared page.
    rss
        Every page that is mapped and present.
    """

    uss: int = 0
    pss: int = 0
    rss: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.uss + other.uss, self.pss + other.pss, self.rss + other.rss)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.uss - other.uss, self.pss - other.pss, self.rss - other.rss)

    def peak(self, other: Usage) -> Usage:
        """Return the larger of each figure."""
        return Usage(max(self.uss, other.uss), max(self.pss, other.pss), max(self.rss, other.rss))


def process_usage(pid: int | None = None, proc: Path = Path("/proc")) -> Usage:
    """Return what one process holds, this one by default.

    Raises
    ------
    psutil.NoSuchProcess, psutil.AccessDenied
        The process has ended, or belongs to another user.
    """
    pid = os.getpid() if pid is None else pid
    try:
        text = (proc / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return _from_psutil(pid)
    # The first line is the address range; the rest is "Name:   <n> kB".
    kib = {k: int(v.split()[0]) for k, _, v in (r.partition(":") for r in text.splitlines()[1:])}
    private = kib["Private_Clean"] + kib["Private_Dirty"] + kib.get("Private_Hugetlb", 0)
    return Usage(private * 1024, kib["Pss"] * 1024, kib["Rss"] * 1024)


def _from_psutil(pid: int) -> Usage:
    info = psutil.Process(pid).memory_full_info()
    uss = int(info.uss)
    return Usage(uss, int(getattr(info, "pss", uss)), int(info.rss))


def tree_usage(pid: int | None = None) -> dict[int, Usage]:
    """Return what a process and all its descendants hold, by pid; those that end are left out."""
    root = psutil.Process(pid)
    found = {}
    for process in [root, *root.children(recursive=True)]:
        try:
            found[process.pid] = process_usage(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError, KeyError):
            continue  # it ended between listing and reading: a zombie has an empty file
    return found


def total(usages: Mapping[int, Usage]) -> Usage:
    """Return the sum over processes; of the three figures only USS and PSS add up honestly."""
    return sum(usages.values(), Usage())


@dataclass
class MemorySampler:
    """Samples a process tree in a thread while a block runs.

    Parameters
    ----------
    pid
        Root of the tree, this process by default.
    interval
        Seconds between two samples. One costs a walk over the page tables, some 0.1 ms per GB.

    Attributes
    ----------
    samples
        Seconds since the start, and usage by pid.
    peak
        Largest sum over the tree, of each figure.
    peaks
        Largest usage of every process seen.
    """

    pid: int | None = None
    interval: float = 0.05
    samples: list[tuple[float, dict[int, Usage]]] = field(default_factory=list)
    peak: Usage = field(default_factory=Usage)
    peaks: dict[int, Usage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._start = time.perf_counter()
        self._thread: threading.Thread | None = None

    def sample(self) -> dict[int, Usage]:
        """Take one sample now."""
        now = tree_usage(self.pid)
        self.samples.append((time.perf_counter() - self._start, now))
        self.peak = self.peak.peak(total(now))
        for pid, usage in now.items():
            self.peaks[pid] = self.peaks.get(pid, Usage()).peak(usage)
        return now

    def _run(self) -> None:
        while not self._stop.wait(self.interval):
            try:
                self.sample()
            except psutil.NoSuchProcess:  # the tree's root has ended: nothing is left to see
                return

    def __enter__(self) -> Self:
        self.sample()
        self._thread = threading.Thread(target=self._run, name="loaders-memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(psutil.NoSuchProcess):
            self.sample()
