"""Locks that keep two processes from the same work; a lock ends with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO, TextIO


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
