"""Members of tar archives, each checked before it is used; ``TarFile.extract*`` is never called."""

import gzip
import tarfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from geoprep.errors import SourceError

SUFFIXES = (".tar", ".tar.gz", ".tgz")
CHUNK = 1 << 20
# A classic TIFF ends at 4 GiB; a PS-MS chip, the largest member of SpaceNet's, has 27 MB.
MAX_MEMBER = 4 << 30


class Member(NamedTuple):
    """A plain file of an archive.

    ``done`` is the number of bytes of the archive that have been read, ``stream`` its own bytes.
    """

    name: str
    size: int
    done: int
    stream: IO[bytes] | None


def is_archive(name: str) -> bool:
    """Return whether a path or address has the name of a tar archive."""
    return name.lower().endswith(SUFFIXES)


def is_compressed(path: Path) -> bool:
    """Return whether a file starts like a gzip file, whatever its name."""
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def tar_members(archive: Path) -> Iterator[Member]:
    """Yield the plain files of a tar or gzipped tar in one pass, which reads all of it."""
    with (
        archive.open("rb") as raw,
        gzip.open(raw) if is_compressed(archive) else nullcontext(raw) as stream,
    ):
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as tar:
            for info in _plain(tar, archive):
                yield Member(info.name, info.size, raw.tell(), tar.extractfile(info))
        while stream.read(CHUNK):  # to the end, where gzip has its checksum
            pass


def index_tar(archive: Path) -> dict[str, tuple[int, int]]:
    """Return offset and size of every plain file of an uncompressed tar; their data is skipped."""
    length = archive.stat().st_size
    members = {}
    with tarfile.open(archive, "r:") as tar:
        for info in _plain(tar, archive):
            if info.offset_data + info.size > length:
                raise tarfile.ReadError(f"{info.name!r} ends after the end of the file")
            # Of two members with one name the later one counts, as for tar itself.
            members[info.name] = info.offset_data, info.size
    return members


def _plain(tar: tarfile.TarFile, archive: Path) -> Iterator[tarfile.TarInfo]:
    for info in tar:
        linked = info.issym() or info.islnk()
        odd = info.issparse() or not (info.isreg() or info.isdir())
        check_member(archive, info.name, info.size, linked=linked, odd=odd)
        if info.isreg():
            yield info
    # `tarfile` takes a damaged or missing header for the end, whose mark are two blocks of zeros.
    rest = tar.fileobj.read(CHUNK) if tar.fileobj else b""
    if not rest or any(rest):
        raise tarfile.ReadError("no end-of-archive mark")


def check_member(
    archive: Path, name: str, size: int, *, linked: bool = False, odd: bool = False
) -> None:
    """Raise SourceError for a member that may not be written below a folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or set(name) & {*"\0\\:"}:
        fault = "its path leaves the folder"
    elif linked:
        fault = "it is a link"
    elif odd:
        fault = "it is encrypted, or neither a plain file nor a folder"
    elif not 0 <= size <= MAX_MEMBER:
        fault = f"it claims {size:,} bytes"
    else:
        return
    raise SourceError(
        f"{archive}: member {name!r} is refused ({fault}). Download the archive again, or pack it "
        "from plain files only"
    )
