"""A person's own archives, and files on a web server: brought to the disk once.

An archive is named as it is, or with a pattern of what in it is meant: ``a.zip!/train/*_sat.jpg``.
"""

from __future__ import annotations

import glob
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final

from geoprep.errors import SourceError
from geoprep.sources.download import download
from geoprep.sources.matching import LABEL_SUFFIXES
from geoprep.sources.tar import (
    MAX_MEMBER,
    MAX_MEMBERS,
    StrictInfo,
    damage_named,
    name_fault,
    plain_files,
)
from geoprep.sources.unpack import Extracted, once, write_member
from geoprep.storage import fetch_file, is_remote, is_web

SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".zip")
INSIDE: Final = "!/"
_ADVICE: Final = "Imagery needs no such member: make the archive again of plain files."

Report = Callable[[int, int], None]


def brought(pattern: str, into: Path, report: Report | None = None) -> tuple[str, str]:
    """Bring what a pattern names to the disk where it cannot be read where it lies.

    Archives are unpacked, wherever they are; of servers whose folders cannot be listed, files are
    downloaded, and of S3 archives and files of roads. What is there from an earlier run is used
    again.

    Parameters
    ----------
    pattern
        As a person gave it, with or without a pattern of members.
    into
        Folder to keep it in, made when needed.
    report
        Called with the bytes unpacked, and all bytes of the archive.

    Returns
    -------
    tuple of str
        The pattern to go on with, and a line that says what stays where; empty where nothing does.

    Raises
    ------
    SourceError
        It cannot be fetched; the archive is damaged, or has a member that leads out of its folder.
    """
    place, _, inside = pattern.partition(INSIDE)
    packed = place.lower().endswith(SUFFIXES)
    vectors = place.lower().endswith((*LABEL_SUFFIXES, ".json"))
    note = ""
    if is_web(place) or (
        is_remote(place) and (packed or (vectors and not set(place) & set("*?[")))
    ):
        into.mkdir(parents=True, exist_ok=True)
        target = into / PurePosixPath(place).name
        (fetch_file if is_web(place) else download)(place, target)
        note = f"{place}: downloaded to {target}: delete it when you need it no more"
        place = str(target)
    if not packed or not Path(place).expanduser().is_file():
        return (place if note else pattern), note
    archive = Path(place).expanduser().absolute()
    folder = into / f"{archive.name}.unpacked"
    done = once(archive, folder, "all", lambda: _unpacked(archive, folder, report))
    size = sum(done.files.values()) / 1e6
    more = f"{archive}: {len(done.files):,} files ({size:,.1f} MB) unpacked into {folder}"
    there = glob.escape(str(folder.absolute())) + "/" + (inside or "**/*")
    return there, f"{note}; {more}" if note else f"{more}: delete it when you need it no more"


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
            f"{archive}: damaged, or packed in a way that is not read here ({error}). Fetch it "
            "again, or unpack it yourself and give the folder."
        ) from error
    return done


_Member = tuple[str, int, int, IO[bytes] | None]
"""Name, bytes, bytes in the archive, and what reads them."""


def _of_tar(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive, "r:*", tarinfo=StrictInfo) as tar:
        for info in plain_files(tar, archive, _ADVICE):
            if fault := name_fault(info.name):
                raise _refused(archive, info.name, fault)
            yield info.name, info.size, info.size, tar.extractfile(info)


def _of_zip(archive: Path) -> Iterator[_Member]:
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
