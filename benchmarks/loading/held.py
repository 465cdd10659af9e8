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
from dataclasses import dataclass
from pathlib import Path

import psutil

from loaders import process_usage

_SHARED = ("/dev/shm/", "/memfd:", "/dev/zero")
"""Where shared memory shows up among mappings and descriptors."""

_File = tuple[str, int]
"""Device, as /proc/<pid>/maps spells it, and inode."""

_NO_CHANGE = 1 << 20
"""Bytes."""
_STILL = 10
"""Looks in a row, a tenth of a second apart, that must find nothing growing."""


@dataclass(frozen=True, slots=True)
class Held:
    """Memory of a process tree at one moment, in bytes.

    Attributes
    ----------
    pss
        Of all its processes.
    kept
        Private memory of all of them and shared memory, without pages of files.
    """

    pss: int
    kept: int


def tree_held(pid: int | None = None) -> Held:
    """Return what a process and its descendants hold, this process by default."""
    root = psutil.Process(pid)
    pss = private = 0
    mapped: dict[_File, int] = {}
    opened: dict[_File, int] = {}
    for process in [root, *root.children(recursive=True)]:
        folder = Path("/proc", str(process.pid))
        with suppress(OSError, KeyError, psutil.Error):  # it ended meanwhile
            anonymous = _anonymous(folder)
            pss += process_usage(process.pid).pss
            private += anonymous
        mapped.update(_mapped(folder))
        opened.update(_opened(folder))
    shared = mapped | opened  # what a descriptor tells is exact
    return Held(pss, private + sum(shared.values()))


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


def settled(pid: int | None = None, within: float = 30.0) -> Held:
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
        still = 0 if abs(now.kept - before.kept) > _NO_CHANGE else still + 1
        before = now
    return before
