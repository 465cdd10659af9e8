"""Waiting until what was written is on the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a folder's list of names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_all(paths: Iterable[Path]) -> None:
    """Wait for many files and folders at once: the disk takes them together."""
    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(flush, paths):
            pass


def flush_shards(paths: Iterable[Path]) -> None:
    """Wait until shards are on the disk, and every folder between them and their array."""
    found = set()
    for path in paths:
        found.add(path)
        for folder in path.parents:
            found.add(folder)
            if folder.name == "c":
                break
    flush_all(found)
