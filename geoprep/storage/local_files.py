"""Local files: written whole or not at all, flushed to the disk, with one-line errors."""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from itertools import count
from pathlib import Path

from geoprep.errors import OutputError, UsageError
from geoprep.storage.failures import errors_named

StrPath = str | os.PathLike[str]

_numbers = count()
_ABANDONED_S = 7 * 24 * 3600
"""Age in seconds at which a temporary file of another machine or container is removed."""


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

    An incomplete file never has the final name, and a failure leaves the previous file untouched.
    Any number of threads and processes may write to one folder. Temporary files of killed processes
    are removed: those of this machine at once, those of other machines and containers after a week.
    """
    require_folder(path)
    name = f".{path.stem}.{_machine()}-{os.getpid()}-{next(_numbers)}.partial{path.suffix}"
    partial = path.with_name(name)
    with errors_named(path, OutputError):
        try:
            _sweep(path.parent.absolute())
            partial.touch()  # refused at once, not after an hour of work
            partial.unlink()
            yield partial
            flush(partial)
            partial.replace(path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


@cache
def _machine() -> str:
    """Return eight hex digits that processes share which see each other's process numbers.

    They name this start of the machine and the PID namespace: containers with one host name may
    share a disk, but the process numbers of one mean nothing in the other.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        name = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        name = f"{socket.gethostname()} {uuid.getnode()}"
    return f"{zlib.crc32(name.encode()):08x}"


@lru_cache(maxsize=1024)
def _sweep(folder: Path) -> None:
    """Remove temporary files of writers that no longer run; once per process and folder."""
    pattern = re.compile(r"\..*\.([0-9a-f]{8})-(\d+)-\d+\.partial.*")
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - as text
            if (match := pattern.fullmatch(name)) and _is_abandoned(folder / name, match):
                (folder / name).unlink()


def _is_abandoned(path: Path, name: re.Match[str]) -> bool:
    if name[1] == _machine():
        return not _runs(int(name[2]))
    return time.time() - path.stat().st_mtime > _ABANDONED_S


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def require_folder(path: Path) -> None:
    """Raise UsageError if the folder of a file to be written does not exist."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist: create it first")


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents where missing, and return it; raises as `replaced`."""
    with errors_named(folder, OutputError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder
