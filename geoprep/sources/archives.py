"""Archives and single files on servers: downloaded once, read in place or unpacked once.

An archive is given by its path, or with a pattern of its members: ``a.zip!/train/*_sat.jpg``.
"""

from __future__ import annotations

import glob
import gzip
import json
import lzma
import math
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final

from geoprep.errors import OutputError, SourceError
from geoprep.sources.label_matching import IMAGE_SUFFIXES, LABEL_SUFFIXES
from geoprep.sources.local_copies import copy_path, download_copy
from geoprep.storage.addresses import is_remote, is_web, member_address
from geoprep.storage.failures import errors_named
from geoprep.storage.local_files import make_folder
from geoprep.storage.output_files import replaced
from geoprep.storage.versions import file_version

_TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz")
SUFFIXES: Final = (*_TAR_SUFFIXES, ".zip")
INSIDE: Final = "!/"
_IN_PLACE: Final = re.compile(r"/vsi(zip|tar|subfile)/\{(.*)\}/(.*)")

CHUNK: Final = 1 << 20
# A classic TIFF ends at 4 GiB; a PS-MS chip, the largest member of SpaceNet's, has 27 MB.
MAX_MEMBER: Final = 4 << 30

Report = Callable[[int, int], None]


def local_pattern(pattern: str, folder: Path, report: Report | None = None) -> tuple[str, str]:
    """Download or unpack what a pattern names, if it cannot be read in place.

    Files are downloaded from web servers, whose folders cannot be listed; from S3, archives and
    single road files are. Members of zip and tar archives are read in place. Archives are unpacked
    if they are compressed as a whole, if members consist of several files, such as a Shapefile or
    an image with a world file, or for one vector file of many scenes. Results of an earlier run
    are used again. Returns the pattern of local files, and a line that names the folder. An archive
    with one vector file and no images means that file.
    """
    place, _, inside = pattern.partition(INSIDE)
    shown = place.partition("?")[0] if is_web(place) else place
    packed = _is_packed(shown)
    note = ""
    if is_read_from_copy(pattern):
        target = download_copy(place, folder)
        note = f"{shown}: downloaded to {target}"
        place = str(target)
    if not packed or not Path(place).expanduser().is_file():
        return (place if note else pattern), note
    archive = Path(place).expanduser().absolute()
    whole, wanted, what = is_compressed(archive), lambda _: True, "all"
    if not whole:
        in_place = archive_in_place(f"{place}{INSIDE}{inside}", of_tar="subfile")
        one = is_member(in_place) and in_place.lower().endswith(LABEL_SUFFIXES)
        if not one and not _have_companions(_names(archive)):
            return in_place, note
        if one:
            wanted, what = (lambda name: not name.lower().endswith(IMAGE_SUFFIXES)), "vectors"
    # Beside the copy of a remote archive; of a local one, at a path made of its full path.
    beside = archive if note else copy_path(str(archive), folder)
    into = beside.with_name(f"{archive.name}.unpacked")
    files, _ = unpacked(archive, into, what, wanted, report)
    size = sum(path.stat().st_size for path in files) / 1e6
    more = f"{archive}: {len(files):,} files ({size:,.1f} MB) unpacked into {into}"
    there = _only_vectors([*map(str, files)]) if not inside else ""
    there = there or glob.escape(str(into.absolute())) + "/" + (inside or "**/*")
    return there, f"{note}; {more}" if note else more


def _only_vectors(files: list[str]) -> str:
    """Return the path of the only vector file of an archive without images, "" for others."""
    vectors = [path for path in _as_one(files) if path.lower().endswith(LABEL_SUFFIXES)]
    images = any(path.lower().endswith(IMAGE_SUFFIXES) for path in files)
    return vectors[0] if len(vectors) == 1 and not images else ""


def _is_packed(name: str) -> bool:
    """Return whether a name is that of an archive; GDAL reads ``.gdb.zip`` as it is."""
    return name.lower().endswith(SUFFIXES) and not name.lower().endswith(".gdb.zip")


def _as_one(names: list[str]) -> list[str]:
    """Return names with the files of each file geodatabase as one, its folder."""
    return list(dict.fromkeys(re.sub(r"(?i)(\.gdb)/[^/]*$", r"\1", name) for name in names))


def is_read_from_copy(pattern: str) -> bool:
    """Return whether a pattern is on a server and a build downloads all that it names."""
    place = pattern.partition(INSIDE)[0]
    name = place.lower()
    whole = name.endswith((*LABEL_SUFFIXES, ".json")) and not set(place) & set("*?[")
    return is_web(place) or (is_remote(place) and (name.endswith(SUFFIXES) or whole))


def archive_in_place(pattern: str, *, of_tar: str = "tar") -> str:
    """Return the same pattern for members that GDAL reads where they are; others unchanged.

    ``a.zip!/x/*.tif`` becomes ``/vsizip/{/data/a.zip}/x/*.tif``. ``of_tar`` is the name of GDAL's
    file system for a tar: ``subfile`` is faster, and does not find files beside a member.
    """
    place, _, inside = pattern.partition(INSIDE)
    archive = Path(place).expanduser().absolute()
    if is_remote(place) or not _is_packed(place) or not archive.is_file():
        return pattern
    only = _only_vectors(_names(archive)) if not inside else ""
    kind = "zip" if _is_zip(archive) else of_tar
    return f"/vsi{kind}/{{{archive}}}/{only or inside or '**/*'}"


def split_in_place(pattern: str) -> tuple[dict[str, str], str] | None:
    """Return addresses by name of all members, and pattern of names, of an `archive_in_place`."""
    match = _IN_PLACE.fullmatch(pattern)
    return match and (_addresses(match[1], Path(match[2]), file_version(match[2])), match[3])


def is_member(pattern: str) -> bool:
    """Return whether a pattern is that of one member, by `archive_in_place`."""
    members, inside = split_in_place(pattern) or ({}, "")
    return inside in members


def _is_zip(archive: Path) -> bool:
    return archive.suffix.lower() == ".zip"


def _names(archive: Path) -> list[str]:
    kind = "zip" if _is_zip(archive) else "tar"
    return [*_addresses(kind, archive, file_version(str(archive)))]


@lru_cache(maxsize=8)
def _addresses(kind: str, archive: Path, _version: str) -> dict[str, str]:
    """Return the addresses of an archive's files by name, without hidden ones."""
    with _damage_named(archive):
        if kind == "zip":
            with zipfile.ZipFile(archive) as packed:
                names = [info.filename for info in _plain_of_zip(packed, archive)]
        else:
            names = [*(at := index_tar(archive))]
    names = [name for name in names if not re.search(r"(^|/)\.", name)]
    if kind == "subfile":
        return {name: member_address(archive, name, *at[name]) for name in names}
    return {name: f"/vsi{kind}/{{{archive}}}/{name}" for name in _as_one(names)}


def _have_companions(names: Collection[str]) -> bool:
    """Return whether images or vector files consist of more files: Shapefiles, world files."""
    used = {name for name in names if name.lower().endswith((*IMAGE_SUFFIXES, *LABEL_SUFFIXES))}
    stems = {re.sub(r"\.[^/]*$", "", name) for name in used}
    return any(re.search(r"(?i)\.gdb(/|$)", name) for name in names) or any(
        re.sub(r"\.[^/]*$", "", name) in stems for name in names if name not in used
    )


def members_of(
    archive: Path,
    what: str,
    wanted: Callable[[str], bool],
    report: Report | None = None,
    *,
    in_place: bool = False,
) -> list[str]:
    """Return the addresses of a tar's members: read in place, or unpacked beside it if compressed.

    Members that are not wanted are not unpacked, but listed all the same. ``in_place``: those of a
    compressed tar are read in place too, which is slow.
    """
    with _damage_named(archive):
        kind = "tar" if is_compressed(archive) else "subfile"
    if in_place or kind == "subfile":
        return [*_addresses(kind, archive, file_version(str(archive))).values()]
    into = archive.with_name(f"{archive.name}.unpacked")
    files, others = unpacked(archive, into, what, wanted, report)
    return [*map(str, files), *(str(into / name) for name in others)]


def unpacked(
    archive: Path,
    into: Path,
    what: str,
    wanted: Callable[[str], bool],
    report: Report | None = None,
) -> tuple[list[Path], list[str]]:
    """Unpack the wanted members of an archive, unless an earlier call has and they are whole.

    Members have their final name only when they are complete, so that several processes may unpack
    one archive at the same time. A finished call leaves a mark, ``what``, which holds while the
    archive is the same (`file_version`). Returns the unpacked files in the archive's order, and
    the names of the other members.
    """
    identity = file_version(str(archive))
    mark = into / f".{archive.name}.{what}.json"
    with errors_named(into, OutputError):
        state = _read_mark(mark)
        if state.get("archive") != identity or not all(
            _is_whole(into / name, size) for name, size in state["files"].items()
        ):
            mark.unlink(missing_ok=True)
            make_folder(into)
            state = _unpack(archive, into, wanted, report) | {"archive": identity}
            with replaced(mark) as partial:
                partial.write_text(json.dumps(state))
    return [into.absolute() / name for name in state["files"]], state["others"]


def _unpack(
    archive: Path, into: Path, wanted: Callable[[str], bool], report: Report | None
) -> dict[str, Any]:
    total, files, others = archive.stat().st_size, dict[str, int](), dict[str, None]()
    with _damage_named(archive), TemporaryDirectory(prefix=".", dir=into) as part:
        for name, size, done, extract in _entries(archive):
            if not wanted(name):
                others[name] = None
                continue
            extract(part)
            make_folder((into / name).parent)
            Path(part, name).replace(into / name)
            files[name] = size
            if report is not None:
                report(min(done, total), total)
    return {"files": files, "others": [*others]}


def _entries(archive: Path) -> Iterator[tuple[str, int, int, Callable[[str], object]]]:
    """Yield name, size, bytes of the archive before its end, and extraction of all plain files.

    All of a tar is read in one pass, also what is not extracted.
    """
    if _is_zip(archive):
        with zipfile.ZipFile(archive) as packed:
            done = 0
            for info in _plain_of_zip(packed, archive):
                done += info.compress_size
                yield info.filename, info.file_size, done, partial(packed.extract, info)
        return
    with (
        archive.open("rb") as raw,
        gzip.open(raw) if is_compressed(archive) else nullcontext(raw) as stream,
    ):
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as tar:
            # Of Python 3.11.4; before it, only the members are checked.
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            for member in _plain(tar, archive):
                extract = partial(tar.extract, member, set_attrs=False)
                yield member.name, member.size, raw.tell(), extract
        while stream.read(CHUNK):  # to the end, where gzip has its checksum
            pass


def _plain_of_zip(packed: zipfile.ZipFile, archive: Path) -> list[zipfile.ZipInfo]:
    """Return the files of a zip, with slashes in their names: some programs write others."""
    infos = packed.infolist()
    for info in infos:
        kind = stat.S_IFMT(info.external_attr >> 16)
        odd = kind not in (0, stat.S_IFREG, stat.S_IFDIR) or bool(info.flag_bits & 1)
        info.filename = info.filename.replace("\\", "/")
        linked = kind == stat.S_IFLNK
        for name in (info.orig_filename.replace("\\", "/"), info.filename):
            check_member(archive, name, info.file_size, linked=linked, odd=odd)
    return [info for info in infos if not info.filename.endswith("/")]


def _is_whole(path: Path, size: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size


def _read_mark(mark: Path) -> dict[str, Any]:
    try:
        state = json.loads(mark.read_text())
        return state if state.keys() >= {"archive", "files", "others"} else {}
    except (OSError, ValueError, AttributeError):
        return {}


# Members, each checked before it is used


def is_archive(name: str) -> bool:
    """Return whether a path or address has the name of a tar archive."""
    return name.lower().endswith(_TAR_SUFFIXES)


def is_compressed(path: Path) -> bool:
    """Return whether a file starts like a gzip file, whatever its name."""
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def index_tar(archive: Path) -> dict[str, tuple[int, int]]:
    """Return offset and size of every plain file of a tar; their data is skipped."""
    length = math.inf if is_compressed(archive) else archive.stat().st_size
    members = {}
    with tarfile.open(archive) as tar:
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
        if not (info.isdir() and info.name == "."):  # as `tar -C FOLDER .` writes it
            check_member(archive, info.name, info.size, linked=linked, odd=odd)
        info.name = PurePosixPath(info.name).as_posix()
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


@contextmanager
def _damage_named(archive: Path) -> Iterator[None]:
    """Turn all errors of an archive that cannot be read into one that names it."""
    damage = (
        *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError),
        *(EOFError, UnicodeError, NotImplementedError, MemoryError),  # an absurd header
    )
    with errors_named(archive, SourceError):
        try:
            yield
        except damage as error:
            raise SourceError(
                f"{archive}: damaged or cut short, or of an unknown compression ({error}). "
                "Download it again; `curl -C -` continues a transfer that stopped."
            ) from error
