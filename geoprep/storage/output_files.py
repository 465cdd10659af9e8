"""Files and folders that are written under a temporary name beside their own, then renamed."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from geoprep.errors import OutputError
from geoprep.outputs import beside, require_folder
from geoprep.storage.failures import errors_named
from geoprep.storage.local_files import flush_all

_ABANDONED_S: Final = 24 * 3600
"""Seconds without a write after which a temporary file counts as left by a killed process."""


def put(new: Path, path: Path) -> None:
    """Rename a finished file to its place, and remove what GDAL kept beside the previous one."""
    for old in beside(path):
        old.unlink(missing_ok=True)
    new.replace(path)


@contextmanager
def replaced(path: Path, *, copy: bool = False) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which is renamed to ``path`` on success.

    A file or a folder may be written there; a folder replaces nothing but an empty one.

    An incomplete file never has the final name, and a failure leaves the previous file untouched.
    Any number of threads and processes may write to one folder. Temporary files of killed processes
    are removed after a day. What GDAL keeps beside a ``copy`` is copied too, and stays.
    """
    require_folder(path)
    name = f".{path.stem}.{uuid.uuid4().hex[:16]}.partial{path.suffix}"
    partial = path.with_name(name)
    with errors_named(path, OutputError):
        try:
            _sweep(path.parent.absolute())
            partial.touch()  # refused at once, not after an hour of work
            partial.unlink()
            yield partial
            flush_all([*partial.rglob("*"), partial])
            if copy:
                partial.replace(path)
            else:
                put(partial, path)
        finally:
            _remove(partial)


@lru_cache(maxsize=1024)
def _sweep(folder: Path) -> None:
    """Remove temporary files of killed processes; once per process and folder."""
    for path in folder.glob(f".*.{'[0-9a-f]' * 16}.partial*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                _remove(path)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with its files, where that is possible."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
    for _ in range(10):
        if not os.path.isdir(path):  # noqa: PTH112 - raises no error
            return
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.02)  # after an error, zarr's other threads may write to a folder for a moment
