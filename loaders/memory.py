"""Memory: arrays that all processes of a machine share, and available bytes.

Shared memory is an anonymous file, which takes no space in ``/dev/shm`` and is freed with its last
mapping. A process attaches by opening ``/proc/<pid>/fd/<fd>`` of its handle and checks the inode.
"""

from __future__ import annotations

import mmap
import os
import pickle
import re
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import psutil
import torch
import torch.distributed as dist
from numpy.typing import DTypeLike, NDArray

from geoprep.cpus import control_groups
from geoprep.errors import UsageError

Shared = TypeVar("Shared")

ALIGNMENT = mmap.PAGESIZE
"""Every array starts on its own page: pixels are then aligned for any vector load."""


class MemoryHandle(NamedTuple):
    """Process and descriptor of shared memory, and its identity once opened."""

    pid: int
    fd: int
    device: int
    inode: int
    nbytes: int


ArrayLayout = dict[str, tuple[DTypeLike, tuple[int, ...]]]
"""Dtype and shape of arrays in shared memory, by name."""


def _anonymous_file(nbytes: int) -> int:
    """Return a descriptor of ``nbytes`` of memory without a name in any file system."""
    fd = os.memfd_create("loaders", os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    return fd


class SharedArrays(dict[str, NDArray[Any]]):
    """Named arrays in anonymous memory that other processes of the same user can attach to.

    The pickle is a handle. The descriptor is closed with this object; the memory is kept as long
    as any of its arrays exists, here or in another process. Processes that attach can only read.

    Parameters
    ----------
    fd
        Descriptor of the memory; this object closes it.
    layout
        The arrays in the memory, one after another.
    writable
        Whether this process may write to it.
    """

    def __init__(self, fd: int, layout: ArrayLayout, *, writable: bool) -> None:
        self._fd = fd
        self._layout = layout
        self._close = weakref.finalize(self, os.close, fd)
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        memory = mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, access)
        start = 0
        for name, (dtype, shape) in layout.items():
            self[name] = np.frombuffer(memory, dtype, prod(shape), start).reshape(shape)
            start += _pages(self[name].nbytes)

    @classmethod
    def create(cls, layout: ArrayLayout) -> Self:
        """Return new arrays of zeros, whose pages are allocated when they are first written."""
        sizes = (np.dtype(dtype).itemsize * prod(shape) for dtype, shape in layout.values())
        nbytes = max(ALIGNMENT, sum(map(_pages, sizes)))
        return cls(_anonymous_file(nbytes), layout, writable=True)

    @classmethod
    def attach(cls, handle: MemoryHandle, layout: ArrayLayout, *, writable: bool = False) -> Self:
        """Attach to the memory of another process, for reading unless ``writable``.

        Raises
        ------
        UsageError
            The process has ended, runs in another container or as another user, or has closed
            this memory.
        """
        path = f"/proc/{handle.pid}/fd/{handle.fd}"
        try:
            fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(
                f"cannot attach to the tiles of process {handle.pid} ({path}: {error.strerror}). "
                "It must still run, on this machine, as the same user and in the same container; "
                "otherwise load the tiles here with RamTiles.load"
            ) from error
        stat = os.fstat(fd)
        if (stat.st_dev, stat.st_ino, stat.st_size) != handle[2:]:
            os.close(fd)
            raise UsageError(
                f"{path} is other memory by now: process {handle.pid} has closed its tiles. "
                "Keep a reference to the RamTiles in the process that loaded them"
            )
        return cls(fd, layout, writable=writable)

    @property
    def handle(self) -> MemoryHandle:
        """The handle that other processes attach with, through this process."""
        # After a fork the child has the same descriptor under its own pid.
        stat = os.fstat(self._fd)
        return MemoryHandle(os.getpid(), self._fd, stat.st_dev, stat.st_ino, stat.st_size)

    def freeze(self) -> None:
        """Make the arrays read-only in this process too."""
        for array in self.values():
            array.flags.writeable = False

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedArrays.attach, (self.handle, self._layout)


def _pages(nbytes: int) -> int:
    """Return a number of bytes rounded up to whole pages."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def is_distributed() -> bool:
    """Return whether this process is one of several ranks of torch.distributed."""
    return this_rank()[1] > 1


def this_rank() -> tuple[int, int]:
    """Return rank and world size: (0, 1) if torch.distributed is not initialised."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _machine() -> tuple[str, int, int]:
    """Return the boot id, PID namespace and user: equal for processes that can share memory."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return boot, Path("/proc/self/ns/pid").stat().st_ino, os.getuid()


def exchange(value: Any) -> list[Any]:  # noqa: ANN401 - torch sends any picklable object
    """Return the values of all ranks; a collective operation."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def load_once(load: Callable[[], Shared]) -> Shared:
    """Run ``load`` in one rank of every machine and return its result in all ranks.

    A collective operation. The result must pickle as a handle to shared memory, as `RamTiles`
    do. The ranks that waited raise UsageError with the message of the rank that failed.
    """
    if not is_distributed():
        return load()
    machines = exchange(_machine())
    leader = machines.index(machines[dist.get_rank()])
    loaded: Shared | None = None
    failure: Exception | None = None
    if leader == dist.get_rank():
        try:
            loaded = load()
        except Exception as error:  # the others wait for a message, whatever went wrong
            failure = error
    # Pickled here, since a handle must be unpickled on its own machine only.
    sent, message = exchange((pickle.dumps(loaded), failure and str(failure)))[leader]
    if loaded is None and failure is None:
        try:
            if message is not None:
                text = f"rank {leader}, which loads for this machine, failed: {message}"
                raise UsageError(text)
            loaded = pickle.loads(sent)
        except (UsageError, OSError) as error:
            failure = error
    exchange(None)  # the memory must not be freed before all ranks have attached
    if loaded is None:
        raise failure or UsageError(f"rank {leader} loaded nothing")
    return loaded


@dataclass(frozen=True, slots=True)
class Available:
    """Available bytes, and the name of the limit."""

    nbytes: int
    limited_by: str


def _left_on(device: torch.device) -> int:
    """Return the bytes available on an accelerator."""
    module = torch.get_device_module(device)
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
    limits = [Available(int(psutil.virtual_memory().available), "the machine")]
    for folder, unified in control_groups("memory", root):
        with suppress(OSError, ValueError):  # no such group, or a limit of "max"
            left = _left(folder, _V2 if unified else _V1)
            limits.append(Available(left, f"the control group {folder}"))
    return min(limits, key=lambda limit: limit.nbytes)


def _left(folder: Path, files: _Files) -> int:
    """Return the bytes available in a group, including its reclaimable cache."""
    limit, used, cache = files
    left = int((folder / limit).read_text()) - int((folder / used).read_text())
    with suppress(OSError):
        rows = (folder / "memory.stat").read_text().splitlines()
        left += next((int(r.split()[1]) for r in rows if r.startswith(f"{cache} ")), 0)
    return max(0, left)


def memory_limit(limit: str | int | float) -> int:
    """Return a limit in bytes: of "4GiB", a number of bytes, or a share of the available memory.

    Ranks agree on the smallest share, which is a collective operation.
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
