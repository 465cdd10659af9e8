"""Archives of a user's own, and single files on servers: unpacked and downloaded once.

An archive is given by its path, or with a pattern of its members: ``a.zip!/train/*_sat.jpg``.
"""

from __future__ import annotations

import glob
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from geoprep.errors import SourceError
from geoprep.sources.extraction import Extracted, once, write_member
from geoprep.sources.label_matching import IMAGE_SUFFIXES, LABEL_SUFFIXES
from geoprep.sources.local_copies import copy_path, download_copy, prepare_copies
from geoprep.sources.tar import (
    MAX_MEMBER,
    MAX_MEMBERS,
    StrictInfo,
    damage_named,
    name_fault,
    plain_files,
)
from geoprep.storage import is_remote, is_web

SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".zip")
INSIDE: Final = "!/"
_ADVICE: Final = "Imagery needs no such member: pack the archive again, from plain files only."

Report = Callable[[int, int], None]


def local_pattern(pattern: str, folder: Path, report: Report | None = None) -> tuple[str, str]:
    """Unpack or download what a pattern names, if it cannot be read in place.

    Archives are unpacked. Files are downloaded from web servers, whose folders cannot be listed;
    from S3, archives and single road files are. Results of an earlier run are used again.

    Parameters
    ----------
    pattern
        Path, address or pattern, with or without a pattern of archive members.
    folder
        Folder for the local copies, created when needed (`geoprep.sources.copies_folder`).
    report
        Called with the bytes unpacked, and all bytes of the archive.

    Returns
    -------
    tuple of str
        The pattern of local files, and a line that says what was stored where; "" for nothing. An
        archive with one vector file and no images means that file.

    Raises
    ------
    SourceError
        The download fails; the archive is damaged, or has a member outside its folder.
    """
    place, _, inside = pattern.partition(INSIDE)
    packed = place.lower().endswith(SUFFIXES)
    vectors = place.lower().endswith((*LABEL_SUFFIXES, ".json"))
    note = ""
    if is_web(place) or (
        is_remote(place) and (packed or (vectors and not set(place) & set("*?[")))
    ):
        prepare_copies(folder)
        target = download_copy(place, folder)
        note = f"{place}: downloaded to {target}"
        place = str(target)
    if not packed or not Path(place).expanduser().is_file():
        return (place if note else pattern), note
    archive = Path(place).expanduser().absolute()
    # Beside the copy of a remote archive; of a local one, at a path made of its full path.
    beside = archive if note else copy_path(str(archive), folder)
    unpacked = beside.with_name(f"{archive.name}.unpacked")
    prepare_copies(folder)
    done = once(archive, unpacked, "all", lambda: _unpacked(archive, unpacked, report))
    size = sum(done.files.values()) / 1e6
    more = f"{archive}: {len(done.files):,} files ({size:,.1f} MB) unpacked into {unpacked}"
    there = _only_vectors(done, unpacked) if not inside else ""
    there = there or glob.escape(str(unpacked.absolute())) + "/" + (inside or "**/*")
    return there, f"{note}; {more}" if note else more


def _only_vectors(done: Extracted, unpacked: Path) -> str:
    """Return the path of the only vector file of an archive without images, "" for others."""
    vectors = [name for name in done.files if name.lower().endswith(LABEL_SUFFIXES)]
    images = any(name.lower().endswith(IMAGE_SUFFIXES) for name in done.files)
    return str(unpacked.absolute() / vectors[0]) if len(vectors) == 1 and not images else ""


def _unpacked(archive: Path, into: Path, report: Report | None) -> Extracted:
    done, total, read = Extracted(), archive.stat().st_size, 0
    try:
        with damage_named(archive):
            members = _of_zip if archive.name.lower().endswith(".zip") else _of_tar
            for name, size, packed, stream in members(archive):
                write_member(stream, into / name, size, archive)
                done.files[name] = size
                read += packed
                if report is not None:
                    report(min(read, total), total)
    except (zipfile.BadZipFile, lzma.LZMAError, zlib.error, NotImplementedError) as error:
        raise SourceError(
            f"{archive}: damaged, or of an unknown compression ({error}). Download it again, or "
            "unpack it yourself and give the folder."
        ) from error
    return done


_ArchiveMember = tuple[str, int, int, IO[bytes] | None]
"""Name, size in bytes, compressed size in bytes, and the stream of its bytes."""


def _of_tar(archive: Path) -> Iterator[_ArchiveMember]:
    with tarfile.open(archive, "r:*", tarinfo=StrictInfo) as tar:
        for info in plain_files(tar, archive, _ADVICE):
            if fault := name_fault(info.name):
                raise _refused(archive, info.name, fault)
            yield info.name, info.size, info.size, tar.extractfile(info)


def _of_zip(archive: Path) -> Iterator[_ArchiveMember]:
    with zipfile.ZipFile(archive) as packed:
        infos = packed.infolist()
        for number, info in enumerate(infos):
            fault = _zip_fault(info) or ("one member too many" if number >= MAX_MEMBERS else None)
            if fault:
                raise _refused(archive, info.filename, fault)
        for info in infos:
            if not info.is_dir():
                with packed.open(info) as stream:
                    yield info.filename, info.file_size, info.compress_size, stream


def _zip_fault(info: zipfile.ZipInfo) -> str | None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "it is a link" if kind == stat.S_IFLNK else "it is neither a plain file nor a folder"
    if info.flag_bits & 1:
        return "it is encrypted"
    if info.file_size > MAX_MEMBER:
        return f"it claims {info.file_size / 2**30:.1f} GiB"
    return name_fault(info.orig_filename) or name_fault(info.filename)


def _refused(archive: Path, member: str, fault: str) -> SourceError:
    return SourceError(f"{archive}: member {member!r} is refused ({fault}). {_ADVICE}")
