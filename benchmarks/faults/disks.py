"""Mount a small or read-only file system."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_REMOUNT = 32  # MS_REMOUNT
_REMOUNT_READ_ONLY = _REMOUNT | 1  # MS_RDONLY

_libc = ctypes.CDLL(None, use_errno=True)


class NoDisk(Exception):  # noqa: N818 - describes the machine, not a bug
    """No file system can be mounted: this needs root and permission of the kernel."""


def _mount(folder: Path, kib: int, flags: int = 0) -> None:
    if _libc.mount(b"tmpfs", bytes(folder), b"tmpfs", flags, f"size={kib}k".encode()) != 0:
        raise NoDisk(f"no tmpfs can be mounted here ({os.strerror(ctypes.get_errno())})")


def enlarge(folder: Path, kib: int) -> None:
    """Enlarge a small file system to ``kib`` KiB."""
    _mount(folder, kib, _REMOUNT)


@contextmanager
def small_disk(folder: Path, kib: int, *, read_only: bool = False) -> Iterator[Path]:
    """Mount a file system of ``kib`` KiB at a new folder.

    Raises
    ------
    NoDisk
        Mounting is not allowed.
    """
    folder.mkdir()
    _mount(folder, kib)
    try:
        if read_only:
            _mount(folder, kib, _REMOUNT_READ_ONLY)
        yield folder
    finally:
        _libc.umount2(bytes(folder), 2)  # MNT_DETACH
