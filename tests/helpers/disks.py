"""A file system of its own that is small; without one, no test."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_REMOUNT = 32  # MS_REMOUNT

_libc = ctypes.CDLL(None, use_errno=True)


def _mount(folder: Path, kib: int, flags: int = 0) -> None:
    if _libc.mount(b"tmpfs", bytes(folder), b"tmpfs", flags, f"size={kib}k".encode()) != 0:
        pytest.skip(f"no tmpfs can be mounted here ({os.strerror(ctypes.get_errno())})")


def enlarge(folder: Path, kib: int) -> None:
    """Enlarge a small file system to ``kib`` KiB."""
    _mount(folder, kib, _REMOUNT)


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Path]:
    """Mount a disk of some KiB at a new folder; the test is skipped where that is not allowed."""
    folder.mkdir()
    _mount(folder, kib)
    try:
        yield folder
    finally:
        _libc.umount2(bytes(folder), 2)  # MNT_DETACH
