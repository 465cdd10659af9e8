"""Extraction of one product from a compressed archive, in one pass.

The 35 GiB archive of Moscow holds four products, of which a build reads one. A compressed stream
can only be read from its start, so all of it is read and only the files needed are written.
"""

import fcntl
import gzip
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from geoprep.errors import SourceError
from geoprep.sources.cities import City, FileRole, file_role
from geoprep.sources.tar import CHUNK, StrictInfo, damage_named, plain_files
from geoprep.storage import replaced


@dataclass(frozen=True, slots=True)
class Extracted:
    """Result of an extraction: the files in the cache folder.

    Attributes
    ----------
    files
        Size in bytes by path relative to the cache folder, in the archive's order.
    products
        Number of images in the archive by product, extracted or not.
    """

    files: dict[str, int] = field(default_factory=dict)
    products: dict[str, int] = field(default_factory=dict)


def extract(
    archive: Path,
    city: City,
    product: str,
    into: Path,
    report: Callable[[int, int], None] | None = None,
) -> Extracted:
    """Extract one product's images and the road labels of a city from a gzipped tar.

    Members have their final name only when they are complete. A finished extraction leaves a mark:
    the next call returns at once while the archive (its size and time stamp) and the extracted
    files are unchanged. An interrupted one starts again. Plain road labels are extracted too, since
    SpaceNet 3 has its speed labels in an archive of their own.

    Parameters
    ----------
    into
        Cache folder, created where missing; one process at a time.
    report
        Called after each extracted member with the compressed bytes read and their total.

    Raises
    ------
    SourceError
        Damaged, truncated or hostile archive, or another extraction in progress.
    OutputError
        The disk is full.
    """
    work = _Extraction(archive, city, product, into)
    return once(archive, into, product, lambda: work.run(report))


def once(archive: Path, into: Path, what: str, work: Callable[[], Extracted]) -> Extracted:
    """Carry out an extraction, or return the result of an earlier one if its files still exist.

    Parameters
    ----------
    what
        Name of this extraction, which differs from others of the same archive.
    """
    stat = archive.stat()
    identity = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    mark = into / f".{archive.name}.{what}.json"
    with _disk_errors_named(archive, into), _only_one(into):
        state = _read_mark(mark)
        if state.get("archive") == identity:
            done = Extracted(state["files"], state["products"])
            if all(_whole(into / name, size) for name, size in done.files.items()):
                return done
        mark.unlink(missing_ok=True)
        done = work()
        with replaced(mark) as partial:
            partial.write_text(json.dumps({"archive": identity, **asdict(done)}))
        return done


def write_member(stream: IO[bytes] | None, target: Path, size: int, archive: Path) -> None:
    """Write a member under its final name, completely or not at all.

    Raises
    ------
    SourceError
        A folder or link has the name of the member.
    tarfile.ReadError
        The member ends early.
    """
    if stream is None or target.is_symlink() or target.is_dir():
        raise SourceError(
            f"{target} has the name of a member of {archive}, and is not a plain file: remove it."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with replaced(target) as partial, partial.open("wb") as out:
        shutil.copyfileobj(stream, out, CHUNK)
        if out.tell() != size:
            raise tarfile.ReadError(f"{target.name!r} ends after {out.tell()} of {size} bytes")


@dataclass(frozen=True, slots=True)
class _Extraction:
    archive: Path
    city: City
    product: str
    into: Path

    def run(self, report: Callable[[int, int], None] | None) -> Extracted:
        result = Extracted()
        total = self.archive.stat().st_size
        with (
            damage_named(self.archive),
            self.archive.open("rb") as raw,
            gzip.open(raw) as plain,
            tarfile.open(fileobj=plain, mode="r|", tarinfo=StrictInfo, bufsize=CHUNK) as tar,
        ):
            for info in plain_files(tar, self.archive):
                role = file_role(self.city, info.name)
                if role is not None and self._wanted(role, result):
                    target = self.into / info.name
                    write_member(tar.extractfile(info), target, info.size, self.archive)
                    result.files[info.name] = info.size
                    if report is not None:
                        report(raw.tell(), total)
            while plain.read(CHUNK):  # to the end, where gzip has its checksum
                pass
        return result

    def _wanted(self, role: FileRole, result: Extracted) -> bool:
        if role.kind == "label":
            return True
        result.products[role.product] = result.products.get(role.product, 0) + 1
        return role.product == self.product


def _whole(path: Path, size: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == size


def _read_mark(mark: Path) -> dict[str, Any]:
    try:
        state = json.loads(mark.read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("wb") as lock:  # released by the kernel when the process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SourceError(
                f"{folder}: another process is extracting into it: wait until it has finished."
            ) from error
        yield


@contextmanager
def _disk_errors_named(archive: Path, into: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"cannot extract {archive} into {into} ({error}): check both, or extract elsewhere."
        ) from error
