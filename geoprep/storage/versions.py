"""Bytes of files, and the properties that identify a version of a file."""

import errno
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from xml.etree.ElementTree import ParseError, canonicalize, fromstring, tostring
from zipfile import BadZipFile, ZipFile, ZipInfo

import xxhash

from geoprep.errors import SourceError
from geoprep.storage.addresses import archive_member, is_remote, shown_address, split_address
from geoprep.storage.places import read_object

BLOCK = 256 << 10
"""Bytes that are read at once, of a file on the disk or of a header on a server."""
_SAMPLE, _SAMPLES = 64 << 10, 128
"""Bytes of a sample of a file, and their number: all of it up to 8 MiB."""
_SMALL_SAMPLE, _LEAST_STEP, _WHOLE = 4 << 10, 256 << 10, 1 << 20
"""Bytes of a sample of an image, between two of them, and of an image that is read whole."""
SIDECAR = ".aux.xml"
"""End of the name of the file where GDAL keeps what an image's own format cannot state."""


def require_end(path: str) -> None:
    """Raise OSError for a pipe or a device, which may never end or never even open."""
    mode = os.stat(path).st_mode  # noqa: PTH116 - of a name that may be anything
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "a pipe or a device, not a file", path)


def _blocks(address: str) -> Iterator[bytes]:
    """Yield the bytes of a local file or a member of an archive, or raise SourceError."""
    with open_file(address) as (read, size, _):
        start = 0
        while start < size and (block := read(start, BLOCK)):
            yield block
            start += len(block)
    if start < size and archive_member(address):
        raise SourceError(f"{shown_address(address)}: the archive has changed since it was listed.")


def content_digest(address: str) -> str:
    """Return the XXH3-128 digest of a file as hexadecimal digits, or raise SourceError.

    The same bytes have the same digest in a folder, in an archive and in a bucket. That of several
    `joined` files covers the content of all.
    """
    if len(addresses := split_address(address)) > 1:
        return xxhash.xxh3_128_hexdigest(" ".join(map(content_digest, addresses)).encode())
    if is_remote(address):
        return xxhash.xxh3_128_hexdigest(read_object(address))
    if address.endswith(SIDECAR):
        return xxhash.xxh3_128_hexdigest(stated_beside(address))
    digest = xxhash.xxh3_128()
    for block in _blocks(address):
        digest.update(block)
    return digest.hexdigest()


def sample_digest(address: str) -> str:
    """Return a digest as `content_digest` does, of the size and 128 samples of a larger file.

    It costs 3 % of reading 10 MB. Its first and last 64 KiB are among them, where formats keep the
    lengths of their compressed blocks; so all but an edit in place of a few raw pixels is seen.
    """
    if len(addresses := split_address(address)) > 1:
        return xxhash.xxh3_128_hexdigest(" ".join(map(sample_digest, addresses)).encode())
    if is_remote(address):
        data = read_object(address)
        if len(data) <= _WHOLE:
            return xxhash.xxh3_128_hexdigest(data)
        return _sampled(lambda first, count: data[first : first + count], len(data))
    if address.endswith(SIDECAR):
        return content_digest(address)
    with open_file(address) as (read, size, _):
        if size > _WHOLE:
            return _sampled(read, size)
    return content_digest(address)


def _sampled(read: Callable[[int, int], bytes], size: int) -> str:
    digest = xxhash.xxh3_128(str(size).encode())
    for first in (0, size - _SAMPLE):
        digest.update(read(first, _SAMPLE))
    step = max(_LEAST_STEP, -(-size // _SAMPLES))
    for first in range(0, size, step):
        digest.update(read(first, _SMALL_SAMPLE))
    return digest.hexdigest()


@contextmanager
def open_file(address: str) -> Iterator[tuple[Callable[[int, int], bytes], int, int]]:
    """Yield a function that reads bytes of a local file or a member, its size and its time."""
    member = archive_member(address)
    path, start = (member.archive, member.offset) if member else (address, 0)
    try:
        require_end(path)
        with Path(path).open("rb", buffering=0) as stream:
            status, number = os.fstat(stream.fileno()), stream.fileno()
            if member and start is None:
                archive, names = _zip(path, status.st_mtime_ns)
                info = names[member.name]
                with archive.open(info) as packed:

                    def read(at: int, count: int) -> bytes:
                        packed.seek(at)
                        return packed.read(count)

                    yield read, info.file_size, status.st_mtime_ns
                return
            first, size = start or 0, member.size if member else status.st_size
            yield (
                (lambda at, count: os.pread(number, max(0, min(count, size - at)), first + at)),
                size,
                status.st_mtime_ns,
            )
    except (OSError, zlib.error, BadZipFile, EOFError, KeyError, NotImplementedError) as error:
        raise SourceError(f"{shown_address(address)}: cannot be read ({error}).") from error


@lru_cache(maxsize=8)
def _zip(path: str, _time: int) -> tuple[ZipFile, dict[str, ZipInfo]]:
    """Return an open zip, which threads may read at the same time, and its members by name."""
    archive = ZipFile(path)
    return archive, {info.filename.replace("\\", "/"): info for info in archive.infolist()}


def file_version(address: str) -> str:
    """Return a text that changes with a local file or member of a tar, or raise SourceError.

    It is made of the size, the time of a file and, since copies keep their times, a digest of
    samples with the first and the last bytes: all bytes up to 8 MiB.
    """
    if address.endswith(SIDECAR):
        return content_digest(address)
    digest = xxhash.xxh3_128()
    with open_file(address) as (read, size, written):
        step = max(_SAMPLE, -(-size // _SAMPLES))
        for first in (*range(0, size, step), max(0, size - _SAMPLE)):
            digest.update(read(first, _SAMPLE))
    time = "" if archive_member(address) else f"{written} ns, "
    return f"{size} bytes, {time}{digest.hexdigest()}"


def file_states(addresses: Sequence[str]) -> int:
    """Return a number that changes when local files or archives are written, from their status."""
    states = []
    for part in (part for address in addresses for part in split_address(address)):
        member = archive_member(part)
        with suppress(OSError):  # such as a file on a server
            status = os.stat(member.archive if member else part)  # noqa: PTH116 - of any name
            states.append((status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return xxhash.xxh3_64_intdigest(repr(states).encode())


def stated_beside(path: str) -> bytes:
    """Return what an ``.aux.xml`` file states, as XML without the statistics that viewers write."""
    data = read_bytes(path)
    try:
        root = fromstring(data)
    except ParseError:  # GDAL ignores it
        return data
    for parent in reversed([*root.iter()]):  # inner ones first
        for child in [*parent]:
            is_empty = child.tag in ("Metadata", "PAMRasterBand") and not len(child)
            is_statistic = child.get("key", "").startswith("STATISTICS_")
            if is_empty or is_statistic or child.tag == "Histograms":
                parent.remove(child)
    return canonicalize(tostring(root), strip_text=True).encode() if len(root) else b""


def read_bytes(address: str) -> bytes:
    """Return all bytes of a file, or raise SourceError."""
    return read_object(address) if is_remote(address) else b"".join(_blocks(address))
