"""How much memory is left: the machine's, and that of every control group around this process.

In a container psutil sees the whole machine, while the kernel kills at the group's limit. File
cache that the kernel would give back counts as free, as it does in psutil's ``available``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from geoprep.errors import UsageError
from loaders.ranks import exchange, is_distributed

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
