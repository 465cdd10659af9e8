"""Available memory, and memory used by processes.

Available memory is that of the machine and of every control group of this process. In a container
psutil sees the whole machine, while the kernel kills at the group's limit. File cache that the
kernel can reclaim counts as free, as it does in psutil's ``available``.

RSS counts a shared page once for every process that maps it, so eight workers over one copy of
10 GB seem to use 80 GB. USS counts the pages that no other process maps: what would be freed if the
process ended. PSS divides every shared page among the processes that map it, so that the sum over
processes is what they use together.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
import torch

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
        The same, and its share of every shared page; as uss on systems without this figure.
    rss
        All pages that are mapped and present.
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
    """Return the memory of one process; None for this one.

    Raises
    ------
    psutil.NoSuchProcess, psutil.AccessDenied
        The process has ended, or belongs to another user.
    """
    info = psutil.Process(pid).memory_full_info()
    return Usage(info.uss, getattr(info, "pss", info.uss), info.rss)


def tree_usage(pid: int | None = None) -> dict[int, Usage]:
    """Return the memory of a process and all its descendants by pid, without those that end."""
    root = psutil.Process(pid)
    found = {}
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found[process.pid] = process_usage(process.pid)
    return found


class MemorySampler:
    """Samples the memory of a process tree in a thread while a ``with`` block runs.

    Parameters
    ----------
    pid
        Root of the tree; None for this process.
    interval
        Seconds between two samples. A sample walks over the page tables, about 0.1 ms per GB.

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
        """Take one sample now, and return it by pid."""
        now = tree_usage(self.pid)
        self.peak = self.peak.peak(sum(now.values(), Usage()))
        for pid, usage in now.items():
            self.peaks[pid] = self.peaks.get(pid, Usage()).peak(usage)
        return now

    def _run(self) -> None:
        with suppress(psutil.NoSuchProcess):  # the root of the tree has ended
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
    """Available bytes, and the name of what limits them."""

    nbytes: int
    limited_by: str


def _left_on(device: torch.device) -> int:
    """Return the bytes available on an accelerator."""
    module = torch.get_device_module(device)
    if device.type == "mps":
        return int(module.recommended_max_memory()) - int(module.current_allocated_memory())
    cached = module.memory_reserved(device) - module.memory_allocated(device)
    return int(module.mem_get_info(device)[0] + cached)


_Files = tuple[str, str, str]
"""Names in a control group: file of its limit, file of its use, row of its reclaimable cache."""

_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def available_memory(root: Path = Path("/"), *, device: torch.device | None = None) -> Available:
    """Return the memory available to this process: the minimum of machine and control groups.

    Parameters
    ----------
    root
        Folder that contains ``proc`` and ``sys``.
    device
        An accelerator, for the memory of the device; what torch's cache holds unused counts as
        available.
    """
    if device is not None and device.type != "cpu":
        return Available(_left_on(device), f"device {device}")
    found = [Available(int(psutil.virtual_memory().available), "the machine")]
    for folder, files in _groups(root):
        with suppress(OSError, ValueError):  # no such group, or a limit of "max"
            found.append(Available(_left(folder, files), f"the control group {folder}"))
    return min(found, key=lambda a: a.nbytes)


def _groups(root: Path) -> Iterator[tuple[Path, _Files]]:
    """Yield the folders of the memory group of this process and of every group that contains it."""
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
        # In a container the path may be the host's and not exist here; the mount itself is then
        # the container's own group.
        folder = mount / path.strip("/")
        yield from ((f, files) for f in (folder, *folder.parents) if f.is_relative_to(mount))


def _left(folder: Path, files: _Files) -> int:
    """Return the bytes available in a group, including its reclaimable cache."""
    limit, used, cache = files
    left = int((folder / limit).read_text()) - int((folder / used).read_text())
    with suppress(OSError):
        rows = (folder / "memory.stat").read_text().splitlines()
        left += next((int(r.split()[1]) for r in rows if r.startswith(f"{cache} ")), 0)
    return max(0, left)


def touched_nodes(root: Path = Path("/")) -> int:
    """Return the number of memory nodes (NUMA) of which the first write chooses one for a page.

    It is 1 on machines with one node, on other systems than Linux, and if pages are interleaved
    over all nodes already, as under ``numactl --interleave=all``.

    Parameters
    ----------
    root
        Folder that contains ``proc`` and ``sys``.
    """
    nodes: set[int] = set()
    with suppress(OSError, ValueError):
        nodes = _numbers((root / "sys/devices/system/node/has_memory").read_text())
        status = (root / "proc/self/status").read_text()
        if allowed := re.search(r"^Mems_allowed_list:(.*)$", status, re.MULTILINE):
            nodes &= _numbers(allowed[1])
        with (root / "proc/self/numa_maps").open() as maps:  # its first line is read alone: fast
            if maps.readline().split()[1].startswith(("interleave", "weighted interleave")):
                return 1
    return max(1, len(nodes))


def _numbers(text: str) -> set[int]:
    """Return the numbers of a list of the kernel, such as ``0-3,8``."""
    pairs = (part.partition("-") for part in text.strip().split(",") if part)
    return {n for low, _, high in pairs for n in range(int(low), int(high or low) + 1)}


def memory_limit(limit: str | int | float) -> int:
    """Return a memory limit in bytes.

    Parameters
    ----------
    limit
        ``"4GiB"``, ``"500MB"``, a number of bytes, or a share of the available memory as a float
        up to 1.0. Ranks agree on the smallest share, which is a collective operation.

    Raises
    ------
    UsageError
        The limit is none of these.
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
        "bytes, or a share of the available memory as a float such as 0.25"
    )


def format_bytes(nbytes: int) -> str:
    """Return a number of bytes as text, in MB or GB."""
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"
