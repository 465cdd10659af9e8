"""How much memory is left, and what processes really hold of it.

What is left is the machine's, and that of every control group around this process. In a container
psutil sees the whole machine, while the kernel kills at the group's limit. File cache that the
kernel would give back counts as free, as it does in psutil's ``available``.

RSS counts a shared page once for every process that maps it, so eight workers over one copy of
10 GB seem to hold 80 GB. USS counts the pages that nobody else maps, what would come back if the
process ended; PSS gives every process its share of a shared page, so that the sum over processes
is what the machine has given out.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
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
        The same, and its share of every shared page; where the kernel does not tell, as uss.
    rss
        Every page that is mapped and present.
    """

    uss: int = 0
    pss: int = 0
    rss: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.uss + other.uss, self.pss + other.pss, self.rss + other.rss)

    def peak(self, other: Usage) -> Usage:
        """Return the larger of each figure."""
        return Usage(max(self.uss, other.uss), max(self.pss, other.pss), max(self.rss, other.rss))


def process_usage(pid: int | None = None) -> Usage:
    """Return what one process holds, this one by default.

    Raises
    ------
    psutil.NoSuchProcess, psutil.AccessDenied
        The process has ended, or belongs to another user.
    """
    info = psutil.Process(pid).memory_full_info()
    return Usage(info.uss, getattr(info, "pss", info.uss), info.rss)


def tree_usage(pid: int | None = None) -> dict[int, Usage]:
    """Return what a process and all its descendants hold, by pid; those that end are left out."""
    root = psutil.Process(pid)
    found = {}
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found[process.pid] = process_usage(process.pid)
    return found


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
    peak
        Largest sum over the tree, of each figure.
    peaks
        Largest usage of every process seen, by pid.
    """

    def __init__(self, pid: int | None = None, interval: float = 0.05) -> None:
        self.pid = pid
        self.interval = interval
        self.peak = Usage()
        self.peaks: dict[int, Usage] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loaders-memory", daemon=True)

    def sample(self) -> dict[int, Usage]:
        """Take one sample now."""
        now = tree_usage(self.pid)
        self.peak = self.peak.peak(sum(now.values(), Usage()))
        for pid, usage in now.items():
            self.peaks[pid] = self.peaks.get(pid, Usage()).peak(usage)
        return now

    def _run(self) -> None:
        with suppress(psutil.NoSuchProcess):  # the tree's root has ended: nothing is left to see
            while not self._over.wait(self.interval):
                self.sample()

    def __enter__(self) -> Self:
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        with suppress(psutil.NoSuchProcess):
            self.sample()


@dataclass(frozen=True, slots=True)
class Available:
    """Bytes that can still be used, and what limits them."""

    nbytes: int
    limited_by: str


_Files = tuple[str, str, str]
"""Of a control group: the file of its limit, that of its use, and the row of cache in its third."""

_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def available_memory(root: Path = Path("/")) -> Available:
    """Return the memory left to this process: the least of the machine and its control groups.

    Parameters
    ----------
    root
        Where ``proc`` and ``sys`` are found.
    """
    found = [Available(int(psutil.virtual_memory().available), "the machine")]
    for folder, files in _groups(root):
        with suppress(OSError, ValueError):  # no such group, or a limit of "max"
            found.append(Available(_left(folder, files), f"the control group {folder}"))
    return min(found, key=lambda a: a.nbytes)


def _groups(root: Path) -> Iterator[tuple[Path, _Files]]:
    """Yield the folder of this process's memory group and of every group around it."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mount, files = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            mount, files = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        # In a container the path may be the host's and not exist here; its end, the mount
        # itself, then is the container's own group.
        folder = mount / path.strip("/")
        yield from ((f, files) for f in (folder, *folder.parents) if f.is_relative_to(mount))


def _left(folder: Path, files: _Files) -> int:
    """Return the bytes left in a group, cache among them."""
    limit, used, cache = files
    left = int((folder / limit).read_text()) - int((folder / used).read_text())
    with suppress(OSError):
        rows = (folder / "memory.stat").read_text().splitlines()
        left += next((int(r.split()[1]) for r in rows if r.startswith(f"{cache} ")), 0)
    return max(0, left)


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
            power = "_kmgt".index(match[2] or "_")
            return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    raise UsageError(
        f"ram_limit={limit!r} is not an amount of memory: give '4GiB', '500MB', a number of "
        "bytes, or a share of what is available as a float such as 0.25"
    )


def amount(nbytes: int) -> str:
    """Return bytes as a person reads them."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"
