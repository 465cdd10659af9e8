"""A file system of its own that is small, or may not be written to; without one, no test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.faults import disks
from benchmarks.faults.disks import enlarge

__all__ = ["enlarge", "small_disk"]


@contextmanager
def small_disk(folder: Path, kib: int, *, read_only: bool = False) -> Iterator[Path]:
    """Mount a disk of some KiB at a new folder; the test is skipped where that is not allowed."""
    try:
        with disks.small_disk(folder, kib, read_only=read_only) as disk:
            yield disk
    except disks.NoDisk as error:
        pytest.skip(str(error))
