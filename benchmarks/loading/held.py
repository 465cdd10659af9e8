"""What processes hold of the machine's memory, down to batches that are between two of them.

PSS says what processes have touched, which is not all here: a batch that a worker of torch's
DataLoader has sent is in shared memory that its receiver has only descriptors of. And pages of
ordinary files are counted in PSS, though the kernel can drop them at any moment. So held is the
private part of PSS of all processes, and shared memory that any has open, once and in full.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

_SHARED = ("/dev/shm/", "/memfd:", "/dev/zero")
"""Where shared memory shows up among descriptors."""

_NO_CHANGE = 1 << 20
"""Bytes."""
_STILL = 10
"""Looks in a row, a tenth of a second apart, that must find nothing growing."""


def tree_held(pid: int | None = None) -> int:
    """Return the bytes that a process and its descendants hold, this process by default."""
    root = psutil.Process(pid)
    private = 0
    shared: dict[tuple[int, int], int] = {}
    for process in [root, *root.children(recursive=True)]:
        folder = Path("/proc", str(process.pid))
        with suppress(OSError):  # it ended meanwhile
            private += _anonymous(folder)
            shared.update(_opened(folder))
    return private + sum(shared.values())


def _anonymous(folder: Path) -> int:
    """Return the proportional bytes of a process that belong to no file: pages after a fork."""
    rows = (folder / "smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, _, rest in (row.partition(":") for row in rows)}
    return kib["Pss_Anon"] * 1024


def _opened(folder: Path) -> dict[tuple[int, int], int]:
    """Return device and inode to allocated bytes of the shared memory that a process has open."""
    found = {}
    for link in (folder / "fd").iterdir():
        with suppress(OSError):
            if os.readlink(link).startswith(_SHARED):  # noqa: PTH115 - the text, no path
                stat = link.stat()
                found[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
    return found


def settled(pid: int | None = None, within: float = 30.0) -> int:
    """Return what is held once nothing grows: all wait for a batch to be taken.

    Parameters
    ----------
    pid
        Root of the tree, this process by default.
    within
        Seconds to wait at most; what is held then is returned as it is.
    """
    end = time.monotonic() + within
    before = tree_held(pid)
    still = 0
    while still < _STILL and time.monotonic() < end:
        time.sleep(0.1)
        now = tree_held(pid)
        still = 0 if abs(now - before) > _NO_CHANGE else still + 1
        before = now
    return before
