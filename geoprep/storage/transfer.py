"""Downloads of remote files to the disk: in ranges, resumed where they stopped, and checked."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Literal
from zlib import crc32

from geoprep.errors import OutputError, SourceError
from geoprep.storage.addresses import is_web
from geoprep.storage.failures import errors_named
from geoprep.storage.local_files import flush, is_at
from geoprep.storage.places import Files, RemoteFile, located

PIECE = 8 << 20
"""Bytes per request. Files of more than `_PARALLEL` pieces are read by as many requests at once."""
_PARALLEL = 4
ATTEMPTS = 6
"""Attempts per file with a wrong checksum."""


def download(
    remote: RemoteFile,
    path: Path,
    report: Callable[[int], None] = lambda _: None,
    *,
    replace: bool = True,
) -> Literal["kept", "downloaded"]:
    """Copy a remote file to the disk, unless the copy there is still current.

    A copy is current if its size and checksum are those of the remote file. Where the server gives
    no checksum, a hidden file beside the copy records its version. An interrupted download is
    resumed while the remote file is the same; a copy with a wrong checksum is discarded and
    downloaded again. ``report`` gets the bytes that arrived, negative if they were discarded.
    SourceError unless ``replace``: another file is there.
    """
    if _is_current(remote, path):
        report(remote.size)
        return "kept"
    if not replace and path.exists():
        raise SourceError(f"{path} differs from {remote.address}: move it, and run again.")
    with errors_named(path, OutputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _part(remote, path)
        for _ in range(ATTEMPTS):
            with part.open("ab") as file:
                if not _lock(file, part):  # another process has finished it meanwhile
                    if _is_current(remote, path):
                        return "kept"
                    continue
                _fill(remote, file, report)
                file.flush()
                fits = _checksum_fits(remote, part)
                if fits is not False:
                    flush(part)
                    part.replace(path)
                    if fits is None:
                        _record(path).write_text(remote.version)
                    return "downloaded"
                part.unlink()
            report(-remote.size)
    raise SourceError(
        f"{remote.address}: the checksum of the download differs from {remote.etag} "
        f"in {ATTEMPTS} attempts. Check the network and its proxies, then run the same command "
        "again"
    )


def bytes_missing(remote: RemoteFile, path: Path) -> int:
    """Return how many bytes are still to be downloaded, judged by the sizes of local files alone.

    A copy of another size counts as missing; it stays until the new one is complete.
    """
    if _size(path) == remote.size:
        return 0
    there = _size(_part(remote, path))
    return remote.size - (there if there <= remote.size else 0)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _part(remote: RemoteFile, path: Path) -> Path:
    """Return the path under which this version of a file is assembled."""
    version = re.sub(r"\W", "", remote.etag)[:16] or f"{crc32(remote.version.encode()):08x}"
    return path.with_name(f".{path.name}.{version}.part")


def _record(path: Path) -> Path:
    """Return the hidden file that records the version of a copy."""
    return path.with_name(f".{path.name}.version")


def _is_current(remote: RemoteFile, path: Path) -> bool:
    if not path.is_file() or path.stat().st_size != remote.size:
        return False
    fits = _checksum_fits(remote, path)
    if fits is None and _record(path).is_file():
        return _record(path).read_text() == remote.version
    return fits is not False


def _lock(file: IO[bytes], part: Path) -> bool:
    """Wait until no other process writes a part; return whether it still has its name then."""
    with suppress(OSError):  # some network disks have no locks
        fcntl.flock(file, fcntl.LOCK_EX)
    return is_at(file, part)


def _fill(remote: RemoteFile, file: IO[bytes], report: Callable[[int], None]) -> None:
    """Append the missing bytes to a part, which always is a beginning of the file."""
    from obstore.exceptions import NotSupportedError

    files, name = located(remote.address)
    file.seek(0, os.SEEK_END)
    if file.tell() > remote.size:
        file.truncate(0)
    report(file.tell())

    def append(pieces: Iterator[bytes]) -> None:
        for data in pieces:
            file.write(data)
            report(len(data))

    # Some web servers have no ranges, so there a range is requested only to resume.
    if is_web(remote.address) and not file.tell():
        append(files.stream(name))
        return
    try:
        append(_pieces(remote, files, name, file.tell()))
    except SourceError as error:
        if not isinstance(error.__cause__, NotSupportedError):
            raise
        report(-file.tell())
        file.truncate(0)
        append(files.stream(name))


def _pieces(remote: RemoteFile, files: Files, name: str, start: int) -> Iterator[bytes]:
    """Yield the rest of a file in order, with some requests in flight."""
    etag = "" if remote.etag.startswith("W/") else remote.etag  # weak ones match no condition

    def piece(at: int) -> bytes:
        return files.read_range(name, at, min(at + PIECE, remote.size), etag and f'"{etag}"')

    todo = range(start, remote.size, PIECE)
    coming: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(_PARALLEL) as pool:
        try:
            for at in todo:
                coming.append(pool.submit(piece, at))
                if len(coming) > _PARALLEL:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()


def _checksum_fits(remote: RemoteFile, path: Path) -> bool | None:
    """Return whether a file has the size and checksum of a remote one; None: checksum unknown."""
    if path.stat().st_size != remote.size:
        return False
    if is_web(remote.address) or not re.fullmatch(r"[0-9a-f]{32}", remote.etag):
        return None  # another kind of ETag, such as that of an upload in parts
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False))
    return digest.hexdigest() == remote.etag
