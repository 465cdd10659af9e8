"""The files of a store as bytes, in a folder or on an object store; files written all at once."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from geoprep.errors import GeoprepError, OutputError, SourceError, StoreError, UsageError
from geoprep.storage.disk import flush
from geoprep.storage.objects import explain, open_bucket, s3_address

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG),
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOENT),
)
_NEARLY_FULL = 1 << 20
"""Free bytes below which a library that gives no reason has met a full disk."""


class StoreFiles:
    """Reads a store's files without knowing Zarr; one client for all threads.

    Parameters
    ----------
    location
        A local folder, or any address that :meth:`geoprep.store.Store.open` takes.
    """

    def __init__(self, location: str | Path) -> None:
        self.location = str(location).rstrip("/")
        self._client = open_files(str(location))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file, by path relative to the store, sorted by path.

        Raises
        ------
        StoreError
            The folder or bucket cannot be listed.
        """
        import obstore

        with self._errors_named(self.location):
            found = {m["path"]: m["size"] for batch in obstore.list(self._client) for m in batch}
        return dict(sorted(found.items()))

    def read(self, name: str) -> bytes:
        """Return the bytes of one file.

        Raises
        ------
        StoreError
            It is missing or cannot be read.
        """
        import obstore

        with self._errors_named(f"{self.location}/{name}"):
            return obstore.get(self._client, name).bytes().to_bytes()

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return some bytes of one file; fewer where it ends before; raises as :meth:`read`."""
        import obstore

        with self._errors_named(f"{self.location}/{name}"):
            return obstore.get_range(self._client, name, start=start, end=stop).to_bytes()

    def read_end(self, name: str, nbytes: int) -> bytes:
        """Return the last bytes of one file; raises as :meth:`read`."""
        import obstore

        with self._errors_named(f"{self.location}/{name}"):
            size = int(obstore.head(self._client, name)["size"])
        return self.read_range(name, max(0, size - nbytes), size) if size else b""

    def bytes_under(self, folder: str) -> int:
        """Return the bytes of all files in a folder of the store."""
        return sum(size for name, size in self.sizes.items() if name.startswith(f"{folder}/"))

    @contextmanager
    def _errors_named(self, what: str) -> Iterator[None]:
        try:
            with store_errors(what):
                yield
        except FileNotFoundError as error:
            raise StoreError(f"{what} is missing") from error


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turn what a disk or an object store refuses into a StoreError, but for what is not there.

    Parameters
    ----------
    what
        Path or address of the file that is being read inside.

    Raises
    ------
    StoreError
        One line that names the file; on S3 also what to do about it.
    FileNotFoundError
        As it was.
    """
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, exceptions.BaseError) as error:
        if what.startswith("s3://"):
            raise StoreError(f"{what}: {explain(error)}") from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreError(
            f"{what} cannot be read ({reason}): check the path or the address"
        ) from error


def open_files(location: str) -> ObjectStore:
    """Return obstore's view of a folder or of an address.

    On S3 the client, its endpoint and its credentials are those of
    :mod:`geoprep.storage.objects`.

    Raises
    ------
    StoreError
        There is no such folder, or the address names no bucket.
    """
    from obstore.store import HTTPStore, LocalStore, from_url

    with suppress(SourceError):
        location = s3_address(location) if location.startswith("http") else location
    if location.startswith("s3://"):
        try:
            return open_bucket(location)
        except SourceError as error:
            raise StoreError(str(error)) from error
    if location.startswith("http://"):
        return HTTPStore.from_url(location, client_options={"allow_http": True})
    if "://" in location:
        return from_url(location)
    folder = Path(location)
    if not folder.is_dir():
        raise StoreError(f"{location}: no such store")
    return LocalStore(folder.absolute())


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
    Any number of threads and processes may do this in one folder.

    Raises
    ------
    UsageError
        The folder does not exist, or may not be written to.
    OutputError
        The disk is full, or fails.
    """
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist: create it first")
    name = f".{path.stem}.{os.getpid()}.{threading.get_ident()}.partial{path.suffix}"
    partial = path.with_name(name)
    with written(path):
        try:
            partial.touch()  # refused at once, not after an hour of work
            partial.unlink()
            yield partial
            flush(partial)
            partial.replace(path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


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
