"""One copy of arrays for all processes and ranks of a machine, in anonymous shared memory.

The memory is an anonymous file (``os.memfd_create``; an unlinked temporary file where that does
not exist). Its handle, (pid, fd, device, inode, bytes), is part of a pickle of a few hundred
bytes. Another process attaches by opening ``/proc/<pid>/fd/<fd>`` and checks the inode. This works
the same way under fork, spawn and forkserver and between processes that only exchanged the handle.
It takes no space in ``/dev/shm`` and is closed to other users. If all processes are killed, nothing
is left: the kernel frees the memory with its last mapping.

In a ``torchrun`` job one rank per machine loads; the others attach to its memory. Only a handle is
sent. Systems without ``/proc``, such as macOS, share the memory with forked children only: there
every rank loads a copy, and other processes cannot attach.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import tempfile
import weakref
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch.distributed as dist
from numpy.typing import DTypeLike, NDArray

from geoprep.errors import UsageError

Shared = TypeVar("Shared")

ALIGNMENT = mmap.PAGESIZE
"""Every array starts on its own page: pixels are then aligned for any vector load."""


_OPEN_FILES = Path("/proc/self/fd")


class MemoryHandle(NamedTuple):
    """Process and descriptor of shared memory, and what identifies it once opened."""

    pid: int
    fd: int
    device: int
    inode: int
    nbytes: int


ArrayLayout = dict[str, tuple[DTypeLike, tuple[int, ...]]]
"""Dtype and shape of arrays in shared memory, by name."""


def _anonymous_file(nbytes: int) -> int:
    """Return a descriptor of ``nbytes`` of memory without a name in any file system."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("loaders", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(prefix="loaders-") as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, nbytes)
    except OSError:
        os.close(fd)
        raise
    return fd


def _map(fd: int, nbytes: int, *, writable: bool) -> mmap.mmap:
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    if sys.version_info >= (3, 13):  # saves the second descriptor that mmap keeps otherwise
        return mmap.mmap(fd, nbytes, mmap.MAP_SHARED, prot, trackfd=False)
    return mmap.mmap(fd, nbytes, mmap.MAP_SHARED, prot)


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
        memory = _map(fd, os.fstat(fd).st_size, writable=writable)
        start = 0
        for name, (dtype, shape) in layout.items():
            self[name] = np.frombuffer(memory, dtype, prod(shape), start).reshape(shape)
            start += _pages(self[name].nbytes)

    @classmethod
    def create(cls, layout: ArrayLayout) -> SharedArrays:
        """Return new arrays of zeros, whose pages are allocated when they are first written."""
        sizes = (np.dtype(dtype).itemsize * prod(shape) for dtype, shape in layout.values())
        nbytes = max(ALIGNMENT, sum(map(_pages, sizes)))
        return cls(_anonymous_file(nbytes), layout, writable=True)

    @classmethod
    def attach(cls, handle: MemoryHandle, layout: ArrayLayout) -> SharedArrays:
        """Attach to the memory of another process, for reading.

        Raises
        ------
        UsageError
            The process has ended, runs in another container or as another user, or has closed
            this memory.
        """
        path = f"/proc/{handle.pid}/fd/{handle.fd}"
        if not _OPEN_FILES.exists():
            raise UsageError(
                "this system has no /proc, so a process cannot attach to the tiles of another: "
                "use threads (BatchLoader), start workers by fork, or load the tiles in each "
                "process with RamTiles.load"
            )
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
        return cls(fd, layout, writable=False)

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
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _machine() -> tuple[str, int, int]:
    """Return the boot id, PID namespace and user: equal for processes that can share memory."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    name = boot.read_text().strip() if boot.exists() else os.uname().nodename
    pids = Path("/proc/self/ns/pid")
    return name, pids.stat().st_ino if pids.exists() else 0, os.getuid()


def exchange(value: Any) -> list[Any]:  # noqa: ANN401 - torch sends any picklable object
    """Return the values of all ranks; a collective operation."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def load_once(load: Callable[[], Shared]) -> Shared:
    """Run ``load`` in one rank of every machine and return its result in all ranks.

    This is a collective operation: every rank must call it, and ``load`` must end within the
    timeout of the process group. The result must pickle as a handle to shared memory, as `RamTiles`
    do. Without torch.distributed it just runs ``load``.

    Parameters
    ----------
    load
        Called without arguments.

    Raises
    ------
    Exception
        The error of ``load`` in the rank that loaded; UsageError with its message in the ranks of
        that machine that waited.
    """
    if not is_distributed() or not _OPEN_FILES.exists():
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
