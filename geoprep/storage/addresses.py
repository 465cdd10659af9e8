"""Reads images and labels by their address.

An address is a plain string, so that scenes can be sent to other processes:

- a path;
- ``tar://OFFSET+SIZE/path/of.tar!/member``: a member of an uncompressed tar, read in place;
- ``s3://bucket/key``, or the address of a file on a web server.

All of them end in the file's own name, so ``PurePath(address).stem`` is the stem of that name.
"""

import errno
import os
import re
import stat
import uuid
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import xxhash

from geoprep.errors import ImageError, SourceError
from geoprep.storage.objects import RangeReader, read_object
from geoprep.storage.s3 import is_remote
from geoprep.storage.worker_copies import worker_copy

if TYPE_CHECKING:
    from rasterio.io import DatasetReader

_BLOCK = 1 << 20
_MEMBER = re.compile(r"tar://(\d+)\+(\d+)(/[^!]*)!/(.*)", re.DOTALL)


class _TarMember(NamedTuple):
    offset: int
    size: int
    archive: str
    name: str


def member_address(archive: Path, name: str, offset: int, size: int) -> str:
    """Return the address of a member of an uncompressed tar."""
    path = str(archive.absolute()).replace("%", "%25").replace("!", "%21")
    return f"tar://{offset}+{size}{path}!/{name}"


def _member(address: str) -> _TarMember | None:
    match = _MEMBER.fullmatch(address)
    if match is None:
        return None
    return _TarMember(int(match[1]), int(match[2]), unquote(match[3]), match[4])


def joined(addresses: Iterable[str]) -> str:
    """Return several addresses as one text: the label of a scene may be several rasters."""
    return "\0".join(addresses)


def split_address(text: str) -> list[str]:
    """Return the addresses of a text from `joined`, or of a single address."""
    return text.split("\0")


def is_local(address: str) -> bool:
    """Return whether an address is a path, neither in an archive nor on a server."""
    return not is_remote(address) and _member(address) is None


def _require_end(path: str) -> None:
    """Raise OSError for a pipe or a device, which may never end or never even open."""
    mode = os.stat(path).st_mode  # noqa: PTH116 - of a name that may be anything
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "a pipe or a device, not a file", path)


def content_digest(address: str) -> str:
    """Return the XXH3-128 digest of a file, as hexadecimal digits.

    The same bytes have the same digest in a folder, in an archive and in a bucket.

    Raises
    ------
    SourceError
        The file does not exist or cannot be read.
    """
    digest = xxhash.xxh3_128()
    if is_remote(address):
        copy = worker_copy(address)
        if copy is not None:
            return content_digest(str(copy))
        digest.update(read_object(address))
        return digest.hexdigest()
    member = _member(address)
    try:
        _require_end(member.archive if member else address)
        with Path(member.archive if member else address).open("rb", buffering=0) as stream:
            stream.seek(member.offset if member else 0)
            left = member.size if member else os.fstat(stream.fileno()).st_size
            while left > 0 and (block := stream.read(min(left, _BLOCK))):
                digest.update(block)
                left -= len(block)
    except OSError as error:
        raise SourceError(f"{_shown(address)}: cannot be read ({error}).") from error
    return digest.hexdigest()


def read_bytes(address: str) -> bytes:
    """Return all bytes of a file.

    Raises
    ------
    SourceError
        The file does not exist or cannot be read.
    """
    if is_remote(address):
        return read_object(address)
    member = _member(address)
    try:
        if member is None:
            _require_end(address)
            return Path(address).read_bytes()
        with Path(member.archive).open("rb") as stream:
            data = os.pread(stream.fileno(), member.size, member.offset)
    except OSError as error:
        raise SourceError(f"{_shown(address)}: cannot be read ({error}).") from error
    if len(data) != member.size:
        raise SourceError(f"{_shown(address)}: the archive has changed since it was listed.")
    return data


@contextmanager
def open_image(address: str) -> Iterator["DatasetReader"]:
    """Open an image for reading; rasterio's errors until it is closed name the file.

    A remote image is downloaded into memory, or to the disk of a Dask worker. Sidecar files
    (``.msk``, ``.aux.xml``, world files) count for images on a disk, where they are looked up by
    name: GDAL's default, to list the folder at every open, costs 0.3 ms among 1400 chips. Sidecars
    in archives and buckets are ignored. Safe in threads: each call opens a data set of its own, and
    GDAL starts no threads.

    Raises
    ------
    ImageError
        Missing, damaged, or not an image.
    SourceError
        The bucket that holds it cannot be read.
    """
    with _opened(address, ranges=False) as dataset:
        yield dataset


@contextmanager
def open_header(address: str) -> Iterator["DatasetReader"]:
    """Open an image for its header alone; of a remote image only some ranges are downloaded.

    Raises
    ------
    ImageError, SourceError
        As `open_image`.
    """
    with _opened(address, ranges=True) as dataset:
        yield dataset


@contextmanager
def _opened(address: str, *, ranges: bool) -> Iterator["DatasetReader"]:
    import rasterio
    from rasterio.errors import CRSError, NotGeoreferencedWarning, RasterioError

    # Where georeference is needed, its absence is an error. Not by `catch_warnings`, which would
    # reset filters that other threads rely on.
    warnings.filterwarnings("ignore", category=NotGeoreferencedWarning)
    errors: list[SourceError] = []
    try:
        with ExitStack() as stack:
            alone = address.startswith("tar://") or is_remote(address)
            stack.enter_context(
                rasterio.Env(
                    GDAL_DISABLE_READDIR_ON_OPEN="EMPTY_DIR" if alone else "TRUE",
                    GDAL_NUM_THREADS="1",
                )
            )
            if is_remote(address) and ranges:
                reader = RangeReader(address)
                errors = reader.errors
                # GDAL also looks for sidecars, which do not count.
                name = f"{uuid.uuid4().hex}/image{PurePosixPath(address).suffix}"

                def opener(path: str, mode: str = "r", **_: object) -> RangeReader:
                    if path != name or mode not in ("r", "rb"):
                        raise FileNotFoundError(path)
                    return reader.reopened()

                yield stack.enter_context(rasterio.open(name, opener=opener))
                if errors:
                    raise errors[0]
            elif is_remote(address) and (copy := worker_copy(address)) is not None:
                yield stack.enter_context(rasterio.open(copy))
            elif is_remote(address):
                memory = stack.enter_context(rasterio.MemoryFile(read_object(address)))
                yield stack.enter_context(memory.open())
            else:
                _require_image(address)
                yield stack.enter_context(rasterio.open(_gdal_path(address)))
    except (RasterioError, CRSError, UnicodeError) as error:  # the last: a name that is no UTF-8
        if errors:
            raise errors[0] from error
        raise ImageError(_complaint(address, error)) from error


def _require_image(address: str) -> None:
    """Raise ImageError for files that GDAL would never finish opening; missing ones it reports."""
    try:
        if is_local(address) and os.path.lexists(address):
            _require_end(address)
    except OSError as error:
        raise ImageError(_complaint(address, error)) from error


def _gdal_path(address: str) -> str:
    member = _member(address)
    if member is None:
        return address
    return f"/vsisubfile/{member.offset}_{member.size},{member.archive}"


def _shown(address: str) -> str:
    member = _member(address)
    return address if member is None else f"{member.name} in {member.archive}"


def _complaint(address: str, error: Exception) -> str:
    member = _member(address)
    path = Path(member.archive if member else address)
    if not is_remote(address) and not path.exists():
        return f"{_shown(address)}: no such file; check the path."
    return (
        f"{_shown(address)}: cannot be read as an image ({_reason(error)}). Download it "
        "again, or remove it from the folder."
    )


def _reason(error: BaseException) -> str:
    """Return GDAL's own message, which rasterio wraps in several exceptions."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split()) or type(error).__name__
