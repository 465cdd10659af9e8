"""What processes hold of the machine's memory, down to batches that are between two of them.

USS and PSS are `loaders.memory`'s. They say what processes have touched, which is not all here. A
batch that a worker of torch's DataLoader has sent is in shared memory that its receiver has only
descriptors of, or has mapped and not looked at. And pages of ordinary files are counted in PSS,
though the kernel can drop them at any moment. So *kept* is told apart: private memory of all
processes, and shared memory once and in full, whoever has looked at it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from loaders import Usage, process_usage

_SHARED = ("/dev/shm/", "/memfd:", "/dev/zero")
"""Where shared memory shows up among mappings and descriptors."""

_File = tuple[str, int]
"""Device, as /proc/<pid>/maps spells it, and inode."""

_STILL = 6
"""Looks in a row, a tenth of a second apart, that must find nobody at work."""


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of a process tree at one moment, in bytes.

    Attributes
    ----------
    processes
        Pid to USS, PSS and RSS; the root of the tree first.
    kept
        Private memory of all of them and shared memory, without pages of files.
    """

    processes: dict[int, Usage] = field(default_factory=dict)
    kept: int = 0

    @property
    def root(self) -> Usage:
        """Usage of the root process."""
        return next(iter(self.processes.values()))

    @property
    def children(self) -> list[Usage]:
        """Usage of all others."""
        return list(self.processes.values())[1:]


def tree_held(pid: int | None = None, proc: Path = Path("/proc")) -> Held:
    """Return what a process and its descendants hold, this process by default."""
    root = psutil.Process(pid)
    processes: dict[int, Usage] = {}
    private = 0
    mapped: dict[_File, int] = {}
    opened: dict[_File, int] = {}
    for process in [root, *root.children(recursive=True)]:
        folder = proc / str(process.pid)
        with suppress(OSError, KeyError, psutil.Error):  # it ended meanwhile
            anonymous = _anonymous(folder)
            processes[process.pid] = process_usage(process.pid)
            private += anonymous
        mapped.update(_mapped(folder))
        opened.update(_opened(folder))
    shared = mapped | opened  # what a descriptor tells is exact
    return Held(processes, private + sum(shared.values()))


def _anonymous(folder: Path) -> int:
    """Return the proportional bytes of a process that belong to no file: pages after a fork."""
    rows = (folder / "smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, _, rest in (row.partition(":") for row in rows)}
    return kib["Pss_Anon"] * 1024


def _mapped(folder: Path) -> Iterator[tuple[_File, int]]:
    """Yield file and length of the shared memory that a process maps."""
    with suppress(OSError):
        for row in (folder / "maps").read_text().splitlines():
            columns = row.split(maxsplit=5)
            if len(columns) == 6 and columns[5].startswith(_SHARED):
                first, last = (int(end, 16) for end in columns[0].split("-"))
                yield (columns[3], int(columns[4])), last - first


def _opened(folder: Path) -> Iterator[tuple[_File, int]]:
    """Yield file and allocated bytes of the shared memory that a process has open."""
    with suppress(OSError):
        for link in (folder / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(link).startswith(_SHARED):  # noqa: PTH115 - the text, no path
                    stat = link.stat()
                    device = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}"
                    yield (device, stat.st_ino), stat.st_blocks * 512


def settled(pid: int | None = None, *, within: float = 30.0, tolerance: int = 1 << 20) -> Held:
    """Return what is held once nobody works and nothing grows: all wait for a batch to be taken.

    Parameters
    ----------
    pid
        Root of the tree, this process by default.
    within
        Seconds to wait at most; what is held then is returned as it is.
    tolerance
        Bytes that count as no change.
    """
    end = time.monotonic() + within
    before = tree_held(pid)
    still = 0
    while still < _STILL and time.monotonic() < end:
        time.sleep(0.1)
        now = tree_held(pid)
        grew = abs(now.kept - before.kept) > tolerance
        still = 0 if grew or _busy(now) else still + 1
        before = now
    return before


def _busy(held: Held, proc: Path = Path("/proc")) -> bool:
    """Return whether any thread but this process's own is running, or would if it were let.

    A thread that waits its turn on a crowded machine is not idle, whatever time it has used.
    """
    for pid in held.processes:
        if pid == os.getpid():
            continue
        for stat in (proc / str(pid) / "task").glob("*/stat"):
            with suppress(OSError):  # a thread that has ended is not busy
                # "1234 (name) R ...", where the name may hold spaces and parentheses.
                if stat.read_text().rpartition(")")[2].split()[0] in ("R", "D"):
                    return True
    return False
