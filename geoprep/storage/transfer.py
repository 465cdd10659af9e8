"""Downloads of remote files to the disk: in ranges, resumed where they stopped, and checked."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal
from zlib import crc32

from geoprep.errors import SourceError
from geoprep.storage.clients import open_object
from geoprep.storage.local_files import flush, written
from geoprep.storage.objects import RemoteFile
from geoprep.storage.s3 import errors_named, is_web

if TYPE_CHECKING:
    from obstore import GetOptions

PIECE = 8 << 20
"""Bytes per request. Files of more than `_PARALLEL` pieces are read by as many requests at once."""
_PARALLEL = 4
ATTEMPTS = 6
"""Attempts per piece, beyond the retries of the client, and per file with a wrong checksum."""
BACKOFF = 0.5
"""Seconds before the second attempt; twice as many before each further one."""
_BLOCK = 1 << 20
_MIB = 1 << 20


def download(
    remote: RemoteFile, path: Path, report: Callable[[int], None] = lambda _: None
) -> Literal["kept", "downloaded"]:
    """Copy a remote file to the disk, unless the copy there is still current.

    A copy is current if its size and checksum are those of the remote file. Where the server gives
    no checksum, a hidden file beside the copy records its version. An interrupted download is
    resumed while the remote file is the same; a copy with a wrong checksum is discarded and
    downloaded again.

    Parameters
    ----------
    report
        Called with the number of bytes that arrived, negative for bytes that were discarded.

    Raises
    ------
    SourceError
        The server refuses, keeps failing, or sends other bytes than it announces.
    UsageError, OutputError
        As `geoprep.storage.replaced`.
    """
    if _is_current(remote, path):
        report(remote.size)
        return "kept"
    with written(path):
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
        f"{remote.address}: the checksum of the download differs from {remote.md5 or remote.etag} "
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
    if fits is None:
        with suppress(OSError):
            return _record(path).read_text() == remote.version
        return False
    return fits


def _lock(file: IO[bytes], part: Path) -> bool:
    """Wait until no other process writes a part; return whether it still has its name then."""
    with suppress(OSError):  # some network disks have no locks
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        return part.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def _fill(remote: RemoteFile, file: IO[bytes], report: Callable[[int], None]) -> None:
    """Append the missing bytes to a part, which always is a beginning of the file."""
    file.seek(0, os.SEEK_END)
    if file.tell() > remote.size:
        file.truncate(0)
    report(file.tell())
    # Some web servers have no ranges, so there a range is requested only to resume.
    whole = is_web(remote.address) and not file.tell()
    try:
        for data in _stream(remote) if whole else _pieces(remote, file.tell()):
            file.write(data)
            report(len(data))
    except _NoRangesError:
        report(-file.tell())
        file.truncate(0)
        for data in _stream(remote):
            file.write(data)
            report(len(data))


def _pieces(remote: RemoteFile, start: int) -> Iterator[bytes]:
    """Yield the rest of a file in order, with some requests in flight."""
    ranges = [(a, min(a + PIECE, remote.size)) for a in range(start, remote.size, PIECE)]
    if len(ranges) <= _PARALLEL:
        yield from (_piece(remote, one) for one in ranges)
        return
    coming: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(_PARALLEL) as pool:
        try:
            for one in ranges:
                coming.append(pool.submit(_piece, remote, one))
                if len(coming) > _PARALLEL:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()


class _NoRangesError(Exception):
    """A web server answers requests for a range with the whole file."""


def _piece(remote: RemoteFile, wanted: tuple[int, int]) -> bytes:
    """Return a range of a file, with retries."""
    import obstore
    from obstore.exceptions import NotSupportedError

    client, key = open_object(remote.address)
    options: GetOptions = {"range": wanted}
    if remote.etag and not remote.etag.startswith("W/"):  # weak ETags match no condition
        options["if_match"] = f'"{remote.etag}"'
    for attempt in range(ATTEMPTS):
        try:
            with errors_named(remote.address):
                data = bytes(obstore.get(client, key, options=options).bytes())
            if len(data) == wanted[1] - wanted[0]:
                return data
            error = SourceError(
                f"{remote.address}: {len(data)} of {wanted[1] - wanted[0]} bytes arrived"
            )
        except SourceError as raised:
            if is_web(remote.address) and isinstance(raised.__cause__, NotSupportedError):
                raise _NoRangesError from raised
            error = raised
            if _is_final(raised):
                break
        if attempt < ATTEMPTS - 1:
            time.sleep(BACKOFF * 2**attempt)
    raise error


def _stream(remote: RemoteFile) -> Iterator[bytes]:
    """Yield a whole file in one request."""
    import obstore

    client, key = open_object(remote.address)
    with errors_named(remote.address):
        for data in obstore.get(client, key).stream():
            yield bytes(data)


def _is_final(error: SourceError) -> bool:
    """Return whether another attempt would fail as well."""
    from obstore.exceptions import PreconditionError

    cause = error.__cause__
    text = str(error)
    return (
        isinstance(cause, FileNotFoundError | PermissionError | PreconditionError)
        or "no such object" in text
        or "access refused" in text
    )


def _checksum_fits(remote: RemoteFile, path: Path) -> bool | None:
    """Return whether a file has the size and checksum of a remote one; None: checksum unknown."""
    if path.stat().st_size != remote.size:
        return False
    if remote.md5 is not None:
        return _md5(path) == remote.md5
    if is_web(remote.address):
        return None
    if re.fullmatch(r"[0-9a-f]{32}", remote.etag):
        return _md5(path) == remote.etag
    if match := re.fullmatch(r"[0-9a-f]{32}-(\d+)", remote.etag):
        sizes = _part_sizes(remote.size, int(match[1]))
        if sizes:
            return any(_etag_of_parts(path, size) == remote.etag for size in sizes)
    return None  # another kind of ETag, such as that of an encrypted object


def _part_sizes(size: int, parts: int) -> list[int]:
    """Return the usual part sizes of uploads that cut a file into so many parts."""
    usual = [n * _MIB for n in (5, 8, 10, 15, 16, 20, 25, 32, 50, 64, 100, 128, 256, 512, 1024)]
    even = -(-size // (parts * _MIB)) * _MIB
    return [one for one in dict.fromkeys([*usual, even]) if -(-size // one) == parts]


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _etag_of_parts(path: Path, size: int) -> str:
    """Return S3's ETag of an upload in parts: the MD5 of the parts' MD5s, and their number."""
    digests = []
    with path.open("rb") as file:
        while block := file.read(min(size, _BLOCK)):
            part, left = hashlib.md5(block, usedforsecurity=False), size - len(block)
            while left and (block := file.read(min(left, _BLOCK))):
                part.update(block)
                left -= len(block)
            digests.append(part.digest())
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"
