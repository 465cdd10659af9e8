"""Memory of processes: at its peak, and held by workers and between them.

PSS counts only pages that processes have touched. A batch that a worker of torch's DataLoader has
sent lies in shared memory of which the receiver has only a descriptor, and PSS also counts pages of
ordinary files, which the kernel can drop. Held memory is therefore the anonymous part of PSS of all
processes, plus the shared memory that any of them has open, counted once and in full.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

_SHARED = ("/dev/shm/", "/memfd:", "/dev/zero")
"""Targets of descriptors of shared memory in /proc."""

_NO_CHANGE = 1 << 20
"""Largest change in bytes that counts as none."""
_STILL = 10
"""Consecutive measurements, 0.1 s apart, without change."""


def resident() -> int:
    """Return the peak memory of this process in bytes, as the kernel counts it.

    ``ru_maxrss`` is not used: it starts at the size of the parent process.
    """
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


class MemorySampler:
    """Samples the memory of a process and its descendants while a ``with`` block runs.

    Parameters
    ----------
    pid
        Root of the process tree.
    interval
        Seconds between two samples. A sample walks over the page tables, about 0.1 ms per GB.

    Attributes
    ----------
    peak
        Largest sum of PSS over the tree in bytes: each page is shared out among the processes that
        map it.
    """

    def __init__(self, pid: int, interval: float = 0.05) -> None:
        self.pid, self.interval, self.peak = pid, interval, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with suppress(psutil.NoSuchProcess):  # the root of the tree has ended
            while not self._over.is_set():
                total = 0
                for process in _tree(self.pid):
                    with suppress(psutil.Error):
                        total += process.memory_full_info().pss
                self.peak = max(self.peak, total)
                self._over.wait(self.interval)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _tree(pid: int | None) -> Iterator[psutil.Process]:
    """Yield a process (None: this one) and its descendants."""
    root = psutil.Process(pid)
    yield from (root, *root.children(recursive=True))


def tree_memory(pid: int | None = None) -> int:
    """Return the bytes held by a process (default: this one) and its descendants."""
    private = 0
    shared: dict[tuple[int, int], int] = {}
    for process in _tree(pid):
        folder = Path("/proc", str(process.pid))
        with suppress(OSError):  # the process has ended
            private += _anonymous(folder)
            shared.update(_opened(folder))
    return private + sum(shared.values())


def _anonymous(folder: Path) -> int:
    """Return the anonymous part of PSS of a process in bytes."""
    rows = (folder / "smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, _, rest in (row.partition(":") for row in rows)}
    return kib["Pss_Anon"] * 1024


def _opened(folder: Path) -> dict[tuple[int, int], int]:
    """Return (device, inode) to allocated bytes of the shared memory a process has open."""
    sizes = {}
    for link in (folder / "fd").iterdir():
        with suppress(OSError):
            if os.readlink(link).startswith(_SHARED):  # noqa: PTH115 - compared as text
                stat = link.stat()
                sizes[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
    return sizes


def settled_memory(pid: int | None = None, within: float = 30.0) -> int:
    """Return the held bytes once they no longer change.

    Parameters
    ----------
    pid
        Root of the process tree; None for this process.
    within
        Longest time to wait in seconds.
    """
    end = time.monotonic() + within
    before = tree_memory(pid)
    still = 0
    while still < _STILL and time.monotonic() < end:
        time.sleep(0.1)
        now = tree_memory(pid)
        still = 0 if abs(now - before) > _NO_CHANGE else still + 1
        before = now
    return before
