"""How much memory is left, and what processes really hold of it.

What is left is the machine's, and that of every control group around this process. In a container
psutil sees the whole machine, while the kernel kills at the group's limit. File cache that the
kernel would give back counts as free, as it does in psutil's ``available``.

RSS counts a shared page once for every process that maps it, so eight workers over one copy of
10 GB seem to hold 80 GB. USS counts the pages that nobody else maps, what would come back if the
process ended; PSS gives every process its share of a shared page, so that the sum over processes
is what the machine has given out. Read from ``/proc/<pid>/smaps_rollup`` (Linux 4.14), else by
psutil.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from geoprep.errors import UsageError
from loaders.shared import exchange, is_distributed


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

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(psutil.NoSuchProcess):
            self.sample()


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True, slots=True)
class Available:
    """Bytes that can still be used, and what limits them."""

    nbytes: int
    limited_by: str


@dataclass(frozen=True, slots=True)
class _Layout:
    """Names of the files of one control group version."""

    limit: str
    used: str
    cache: str


_V1 = _Layout("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Layout("memory.max", "memory.current", "inactive_file")


def available_memory(root: Path = Path("/")) -> Available:
    """Return the memory left to this process: the least of the machine and its control groups.

    Parameters
    ----------
    root
        Where ``proc`` and ``sys`` are found.
    """
    machine = Available(int(psutil.virtual_memory().available), "the machine")
    return min([machine, *_groups(root)], key=lambda a: a.nbytes)


def _groups(root: Path) -> Iterator[Available]:
    for folder, layout in _folders(root):
        left = _left(folder, layout)
        if left is not None:
            yield Available(left, f"the control group {folder}")


def _folders(root: Path) -> Iterator[tuple[Path, _Layout]]:
    """Yield the folder of this process's memory group and of every group around it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mount, layout = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            mount, layout = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        # In a container the path may be the host's and not exist here; its end, the mount
        # itself, then is the container's own group.
        folder = mount / path.strip("/")
        yield from ((f, layout) for f in (folder, *folder.parents) if f.is_relative_to(mount))


def _left(folder: Path, layout: _Layout) -> int | None:
    """Return the bytes left in a group, or None where it has no limit or does not exist."""
    try:
        limit = int((folder / layout.limit).read_text())
        used = int((folder / layout.used).read_text())
    except (OSError, ValueError):  # no such group, or "max"
        return None
    return max(0, limit - used + _cache(folder, layout))


def _cache(folder: Path, layout: _Layout) -> int:
    try:
        rows = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(r.split()[1]) for r in rows if r.startswith(f"{layout.cache} ")), 0)


def usable_cpus() -> int:
    """Return how many processors this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def memory_limit(limit: str | int | float) -> int:
    """Return a limit of memory in bytes.

    Parameters
    ----------
    limit
        ``"4GiB"``, ``"500MB"``, a number of bytes, or a share of the memory that is available
        now, as a float up to 1.0. Ranks agree on the least share: then a collective.

    Raises
    ------
    UsageError
        It is none of these.
    """
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        return limit
    if isinstance(limit, float) and 0 < limit <= 1:
        share = int(limit * available_memory().nbytes)
        return min(exchange(share)) if is_distributed() else share
    if isinstance(limit, str):
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(i?))?b", limit.strip().lower())
        if match and float(match[1]) > 0:
            return int(float(match[1]) * (_BINARY if match[3] else _UNITS)[match[2] or ""])
    raise UsageError(
        f"ram_limit={limit!r} is not an amount of memory: give '4GiB', '500MB', a number of "
        "bytes, or a share of what is available as a float such as 0.25"
    )


def amount(nbytes: int) -> str:
    """Return bytes as a person reads them."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"
