"""A file system of its own that is small, or may not be written to."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_REMOUNT_READ_ONLY = 32 | 1  # MS_REMOUNT, MS_RDONLY


@contextmanager
def small_disk(folder: Path, kib: int, *, read_only: bool = False) -> Iterator[Path]:
    """Mount a disk of some KiB at a new folder; the test is skipped where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir()

    def mount(flags: int) -> None:
        size = f"size={kib}k".encode()
        if libc.mount(b"tmpfs", bytes(folder), b"tmpfs", flags, size) != 0:
            pytest.skip(f"no tmpfs can be mounted here ({os.strerror(ctypes.get_errno())})")

    mount(0)
    try:
        if read_only:
            mount(_REMOUNT_READ_ONLY)
        yield folder
    finally:
        libc.umount2(bytes(folder), 2)  # MNT_DETACH
