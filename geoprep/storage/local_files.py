"""Local files: written whole or not at all, flushed to the disk, locked; with one-line errors."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TextIO

from geoprep.errors import OutputError, UsageError
from geoprep.storage.failures import errors_named

StrPath = str | os.PathLike[str]

_ABANDONED_S = 24 * 3600
"""Seconds after the last write at which a temporary file counts as one of a killed process."""


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a folder's list of names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_all(paths: Iterable[Path]) -> None:
    """Flush many files and folders at the same time, which is faster than one by one."""
    with ThreadPoolExecutor(16) as pool:
        for _ in pool.map(flush, paths):
            pass


def local_path(path: str | Path) -> Path:
    """Return an absolute local path; raise UsageError for an address such as ``s3://bucket``."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        raise UsageError(
            f"{path}: this result can only be written to a local folder. Give one, and copy the "
            "result afterwards (`aws s3 sync`)"
        )
    return Path(path).absolute()


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which is renamed to ``path`` on success.

    A file or a folder may be written there; a folder replaces nothing but an empty one.

    An incomplete file never has the final name, and a failure leaves the previous file untouched.
    Any number of threads and processes may write to one folder. Temporary files of killed processes
    are removed after a day.
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
            partial.replace(path)
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


def require_suffix(path: Path, *suffixes: str) -> None:
    """Raise UsageError if the name of a file has none of some suffixes, in any case."""
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{path}: use a name that ends in {', '.join(suffixes)}")


def require_folder(path: Path) -> None:
    """Raise UsageError if the folder of a file to be written does not exist."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist: create it first")


def require_pyarrow() -> None:
    """Raise UsageError unless pyarrow is installed, without which there is no GeoParquet."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError("GeoParquet needs pyarrow: pip install 'geoprep[parquet]'") from error


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents where missing, and return it; raises as `replaced`."""
    with errors_named(folder, OutputError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file, one a line, without a line that a crash cut short."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield entry


# Locks, which end with the process that holds them


class LockHeldError(Exception):
    """Another process holds a lock; the text names the process."""


def hold_lock(path: Path) -> TextIO:
    """Return the file of a lock, made with its folder: held, and names this process, until closed.

    On file systems without locks it holds nothing. LockHeldError: another process holds it.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # the process that held it has removed the folder
            file = path.open("a+", encoding="utf-8")
            if not _lock(file):
                with file:
                    file.seek(0)
                    raise LockHeldError(file.read().strip() or "another process")
            if is_at(file, path):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}")
                file.flush()
                return file
            file.close()


def is_at(file: IO[str] | IO[bytes], path: Path) -> bool:
    """Return whether an open file is the one at a path, and not one that was removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock(file: IO[str]) -> bool:
    """Lock a file; return whether no other process holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # others say that the file system has no locks
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
