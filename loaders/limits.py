"""How much memory is left: the machine's, and that of every control group around this process.

In a container psutil sees the whole machine, while the kernel kills at the group's limit. File
cache that the kernel would give back counts as free, as it does in psutil's ``available``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


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
