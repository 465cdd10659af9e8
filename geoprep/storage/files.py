"""Files written all at once or not at all, with one line for what a disk refuses."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from itertools import count
from pathlib import Path

from geoprep.errors import GeoprepError, OutputError, UsageError
from geoprep.storage.disk import flush

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG),
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOENT),
)
_numbers = count()
_NEARLY_FULL = 1 << 20
"""Free bytes below which a library that gives no reason has met a full disk."""


def local_path(path: str | Path) -> Path:
    """Return an absolute path on this machine.

    Raises
    ------
    UsageError
        It is an address: ``Path`` makes a folder called ``s3:`` of it.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        raise UsageError(
            f"{path}: what is written here is written to a folder of this machine: give one, and "
            "copy the result to where it is wanted (`aws s3 sync`)"
        )
    return Path(path).absolute()


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it becomes ``path`` when all went well.

    Nobody ever sees half a file under its final name, and a failure leaves what was there before.
    Any number of threads and processes may do this in one folder. What killed processes of this
    machine left in it is removed.

    Raises
    ------
    UsageError
        The folder does not exist, or may not be written to.
    OutputError
        The disk is full, or fails.
    """
    require_folder(path)
    name = f".{path.stem}.{_machine()}-{os.getpid()}-{next(_numbers)}.partial{path.suffix}"
    partial = path.with_name(name)
    with written(path):
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
    """Return eight hex digits for this machine: on a disk that several share, others write too."""
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


@lru_cache(maxsize=1024)
def _sweep(folder: Path) -> None:
    """Remove what writers that are no more left in a folder; once per process and folder."""
    left = re.compile(rf"\..*\.{_machine()}-(\d+)-\d+\.partial.*")
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - as text
            if (match := left.fullmatch(name)) and not _runs(int(match[1])):
                (folder / name).unlink()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def require_folder(path: Path) -> None:
    """Raise UsageError where the folder of a file to be written does not exist."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist: create it first")


def make_folder(folder: Path) -> Path:
    """Return a folder that exists from now on, with those above it; raises as :func:`replaced`."""
    with written(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn what a disk refuses into one line that names the file and the fix.

    Parameters
    ----------
    path
        What is being written inside.

    Raises
    ------
    UsageError
        It may not be written there.
    OutputError
        The disk is full, or fails.
    """
    try:
        yield
    except GeoprepError:
        raise
    except Exception as error:
        code = error.errno if isinstance(error, OSError) else None
        if code is not None and code in _REFUSED:
            raise UsageError(
                f"{path} cannot be written ({os.strerror(code)}): choose another place"
            ) from error
        if code in _FULL or (code is None and _is_full(path)):
            raise OutputError(
                f"{path} cannot be written: no space left on the disk. Free some, or choose "
                "another place, and run the same command again"
            ) from error
        if isinstance(error, OSError):
            raise OutputError(
                f"{path} cannot be written ({error}): check the disk, or choose another place"
            ) from error
        raise


def _is_full(path: Path) -> bool:
    """Return whether the disk of a path is full: GDAL says of it only that something failed."""
    folder = next(one for one in (path, *path.parents) if one.is_dir())
    return shutil.disk_usage(folder).free < _NEARLY_FULL
