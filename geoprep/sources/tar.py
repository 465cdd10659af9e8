"""Tar archives: checks of their members, and an index of an uncompressed one.

Every member is checked before it is used. The whole archive is refused if one member would leave
its folder, is a link or a device, or claims an absurd size: SpaceNet's own archives hold plain
files and folders only. ``TarFile.extract*`` is never called.
"""

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from geoprep.errors import SourceError

SUFFIXES = (".tar", ".tar.gz", ".tgz")
CHUNK = 1 << 20
# A classic TIFF ends at 4 GiB; a PS-MS chip, the largest real member, has 27 MB.
MAX_MEMBER = 4 << 30
# The largest real archive has some 8,000.
MAX_MEMBERS = 200_000
# Extended headers (long names, pax records) are kilobytes; tarfile reads them into memory whole.
MAX_HEADER = 1 << 20
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


@dataclass(frozen=True, slots=True)
class TarEntry:
    """A regular file in an uncompressed tar: its name, and the offset and number of its bytes."""

    name: str
    offset: int
    size: int


class StrictInfo(tarfile.TarInfo):
    """Headers that raise an error if damaged or missing, where `tarfile` ends without one."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse one header block; only a block of zeros ends an archive."""
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise
            raise tarfile.ReadError(f"{error} before the end-of-archive mark") from error
        if info.size < 0 or (info.type in _EXTENDED and info.size > MAX_HEADER):
            raise tarfile.ReadError(f"header of {info.name!r} claims {info.size} bytes")
        return info

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        """Return the next member; a pax record may give its size."""
        info = super().fromtarfile(tar)
        if info.size < 0:
            raise tarfile.ReadError(f"{info.name!r} claims {info.size} bytes")
        return info


def is_archive(path: Path) -> bool:
    """Return whether a file has the name of an archive: .tar, .tar.gz or .tgz."""
    return path.name.lower().endswith(SUFFIXES)


def is_compressed(path: Path) -> bool:
    """Return whether a file starts like a gzip file, whatever its name.

    Raises
    ------
    SourceError
        The file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return stream.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}).") from error


def index_tar(archive: Path) -> list[TarEntry]:
    """Return every regular file of an uncompressed tar; headers are read, data is skipped.

    Raises
    ------
    SourceError
        Damaged, truncated or hostile; the message names the archive and the member.
    """
    length = archive.stat().st_size
    members = {}
    with (
        damage_named(archive),
        archive.open("rb") as stream,
        tarfile.open(fileobj=stream, mode="r:", tarinfo=StrictInfo) as tar,
    ):
        for info in plain_files(tar, archive):
            if info.offset_data + info.size > length:
                raise tarfile.ReadError(f"{info.name!r} ends after the end of the file")
            # Of two members with one name the later one counts, as for tar itself.
            members[info.name] = TarEntry(info.name, info.offset_data, info.size)
    return list(members.values())


SPACENETS_OWN = "SpaceNet's own archives have no such member: download the archive again."
"""Advice for a refused member of an archive of SpaceNet."""


def plain_files(
    tar: tarfile.TarFile, archive: Path, advice: str = SPACENETS_OWN
) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of an archive; raise SourceError at a member that is not allowed."""
    for count, info in enumerate(tar):
        fault = _fault(info) or ("one member too many" if count >= MAX_MEMBERS else None)
        if fault:
            raise SourceError(f"{archive}: member {info.name!r} is refused ({fault}). {advice}")
        if info.isreg():
            yield info


def name_fault(name: str) -> str | None:
    """Return why a member of this name may not be written below a folder, or None."""
    path = PurePosixPath(name)
    outside = path.is_absolute() or ".." in path.parts or not path.parts
    return "its path leaves the folder" if outside or set(name) & {"\0", "\\", ":"} else None


def _fault(info: tarfile.TarInfo) -> str | None:
    """Return why a member is not allowed, or None."""
    path = PurePosixPath(info.name)
    if path.is_absolute() or ".." in path.parts or "\0" in info.name:
        return "its path leaves the folder"
    if info.issym() or info.islnk():
        return "it is a link"
    if info.issparse() or not (info.isreg() or info.isdir()):
        return "it is neither a plain file nor a folder"
    if info.size > MAX_MEMBER:
        return f"it claims {info.size / 2**30:.1f} GiB"
    return None


@contextmanager
def damage_named(archive: Path) -> Iterator[None]:
    """Turn all errors of a damaged archive into one that names it."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError) as error:
        raise SourceError(
            f"{archive}: damaged or cut short ({error}). Download it again; `curl -C -` continues "
            "a transfer that stopped."
        ) from error
