"""Objects brought to files: by pieces, carried on where they stopped, and checked before use."""

from __future__ import annotations

import hashlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from geoprep.errors import SourceError
from geoprep.storage.disk import flush
from geoprep.storage.files import written
from geoprep.storage.objects import list_metadata, open_object, read_metadata
from geoprep.storage.s3 import errors_named

if TYPE_CHECKING:
    from obstore import GetOptions

PIECE = 8 << 20
"""Bytes per request; of what is larger than a few of them, four are asked for at a time."""
_AHEAD = 4
ATTEMPTS = 6
"""Times that a piece is asked for, beside the retries of the client, and a whole file fetched."""
BACKOFF = 0.5
"""Seconds before the second attempt; twice as many before each further one."""
_BLOCK = 1 << 20
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Remote:
    """An object as a server lists it; ``md5`` is what its publisher says of it, or None."""

    address: str
    size: int
    etag: str
    md5: str | None = None


def list_remote(folder: str) -> list[Remote]:
    """Return every object under a folder, sorted by key; raises SourceError."""
    return [Remote(a, size, etag.strip('"')) for a, size, etag in list_metadata(folder)]


def ask_remote(address: str, md5: str | None = None) -> Remote:
    """Return what a server says of one object; raises SourceError."""
    size, etag = read_metadata(address)
    return Remote(address, size, etag.strip('"'), md5)


def bring(
    remote: Remote, path: Path, report: Callable[[int], None] = lambda _: None
) -> Literal["kept", "fetched"]:
    """Make a file of an object, unless it is there already.

    What an interrupted call left is carried on with, as long as the object is the same. A file
    whose checksum is wrong is discarded and fetched again.

    Parameters
    ----------
    report
        Called with the bytes that have come, and with less than 0 for those discarded.

    Raises
    ------
    SourceError
        The server refuses, keeps failing, or sends other bytes than it says.
    UsageError, OutputError
        As `geoprep.storage.files.replaced`.
    """
    if path.is_file() and path.stat().st_size == remote.size and _is_it(remote, path):
        report(remote.size)
        return "kept"
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _part(remote, path)
        for _ in range(ATTEMPTS):
            _fill(remote, part, report)
            if _is_it(remote, part):
                flush(part)
                part.replace(path)
                return "fetched"
            part.unlink()
            report(-remote.size)
    raise SourceError(
        f"{remote.address}: what arrives has another checksum than {remote.md5 or remote.etag}, "
        f"{ATTEMPTS} times. Check the network and its proxies, then run the same command again"
    )


def missing(remote: Remote, path: Path) -> int:
    """Return how many bytes of an object are still to come, by the sizes of what is here alone.

    A file of another size is fetched again whole, and is there until the new one is.
    """
    if _size(path) == remote.size:
        return 0
    there = _size(_part(remote, path))
    return remote.size - (there if there <= remote.size else 0)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _part(remote: Remote, path: Path) -> Path:
    """Return where this version of an object is put together."""
    version = re.sub(r"\W", "", remote.etag)[:16]
    return path.with_name(f".{path.name}.{version}.part")


def _fill(remote: Remote, part: Path, report: Callable[[int], None]) -> None:
    """Append to a part what it lacks; it always is a beginning of the object."""
    with part.open("ab") as file:
        if file.tell() > remote.size:
            file.truncate(0)
        report(file.tell())
        for data in _pieces(remote, file.tell()):
            file.write(data)
            report(len(data))


def _pieces(remote: Remote, start: int) -> Iterator[bytes]:
    """Yield the rest of an object in order, some requests ahead."""
    ranges = [(a, min(a + PIECE, remote.size)) for a in range(start, remote.size, PIECE)]
    if len(ranges) <= _AHEAD:
        yield from (_piece(remote, one) for one in ranges)
        return
    coming: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(_AHEAD) as pool:
        try:
            for one in ranges:
                coming.append(pool.submit(_piece, remote, one))
                if len(coming) > _AHEAD:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()


def _piece(remote: Remote, wanted: tuple[int, int]) -> bytes:
    """Return some bytes of an object, however often the server stumbles."""
    import obstore

    store, key = open_object(remote.address)
    options: GetOptions = {"range": wanted, "if_match": f'"{remote.etag}"'}
    for attempt in range(ATTEMPTS):
        try:
            with errors_named(remote.address):
                data = bytes(obstore.get(store, key, options=options).bytes())
            if len(data) == wanted[1] - wanted[0]:
                return data
            reason = f"{remote.address}: {len(data)} bytes came of {wanted[1] - wanted[0]}"
            error = SourceError(reason)
        except SourceError as raised:
            error = raised
            if _final(raised):
                break
        if attempt < ATTEMPTS - 1:
            time.sleep(BACKOFF * 2**attempt)
    raise error


def _final(error: SourceError) -> bool:
    """Return whether asking again is of no use."""
    text = str(error)
    return "no such object" in text or "access refused" in text or "412" in text


def _is_it(remote: Remote, path: Path) -> bool:
    """Return whether a file is the object, by its size and the best checksum there is."""
    if path.stat().st_size != remote.size:
        return False
    if remote.md5 is not None:
        return _md5(path) == remote.md5
    if re.fullmatch(r"[0-9a-f]{32}", remote.etag):
        return _md5(path) == remote.etag
    if match := re.fullmatch(r"[0-9a-f]{32}-(\d+)", remote.etag):
        sizes = _part_sizes(remote.size, int(match[1]))
        return not sizes or any(_etag_of_parts(path, size) == remote.etag for size in sizes)
    return True  # an ETag of a kind of its own, as those of encrypted objects are


def _part_sizes(size: int, parts: int) -> list[int]:
    """Return the part sizes, of those that tools upload with, that cut a file into so many."""
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
