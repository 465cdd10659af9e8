"""Local files and folders: flushed to the disk, locked; with one-line errors."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TextIO

from geoprep.errors import OutputError, UsageError
from geoprep.storage.failures import errors_named

StrPath = str | os.PathLike[str]


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a folder's list of names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # shared folders cannot be flushed
            raise
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


def require_pyarrow() -> None:
    """Raise UsageError unless pyarrow is installed, without which there is no GeoParquet."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError("GeoParquet needs pyarrow: pip install 'geoprep[parquet]'") from error


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents where missing, and return it; or raise OutputError."""
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
