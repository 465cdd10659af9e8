"""One product out of a compressed archive, in one pass.

The 35 GiB archive of Moscow holds four products, of which a build reads one; a stream cannot be
entered in the middle, so everything is read and only what is wanted is written.
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
    """What one pass over a compressed archive left in the cache folder.

    Attributes
    ----------
    files
        Size in bytes by path relative to the cache folder, in the archive's order.
    products
        Number of images in the archive by product, wanted or not.
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

    Members appear under their final name only when whole. A finished pass leaves a mark that makes
    the next call return at once, as long as the archive (its size and time stamp) and what came out
    of it are the same; an interrupted one begins again, since a stream has to be read from its
    start. Plain road labels are taken too, since SpaceNet 3 ships its speed labels in an archive of
    their own.

    Parameters
    ----------
    into
        Cache folder, created when absent; one process at a time.
    report
        Called for each member taken with the compressed bytes read and their total.

    Raises
    ------
    SourceError
        Damaged, truncated or hostile archive, or another extraction in progress.
    OutputError
        The disk is full.
    """
    work = _Pass(archive, city, product, into)
    return once(archive, into, product, lambda: work.run(report))


def once(archive: Path, into: Path, what: str, work: Callable[[], Extracted]) -> Extracted:
    """Carry out an extraction, or return what an earlier one left, if all of it is still there.

    Parameters
    ----------
    what
        Word that tells apart extractions of one archive.
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
    """Write a member under its final name, whole or not at all.

    Raises
    ------
    SourceError
        Something that is no plain file lies where it shall go.
    tarfile.ReadError
        It ends early.
    """
    if stream is None or target.is_symlink() or target.is_dir():
        raise SourceError(f"{target} is in the way of a member of {archive}: remove it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with replaced(target) as partial, partial.open("wb") as out:
        shutil.copyfileobj(stream, out, CHUNK)
        if out.tell() != size:
            raise tarfile.ReadError(f"{target.name!r} ends after {out.tell()} of {size} bytes")


@dataclass(frozen=True, slots=True)
class _Pass:
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
            while plain.read(CHUNK):  # to the end, where gzip keeps the checksum of what was read
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
    with (folder / ".lock").open("wb") as lock:  # the kernel lets go of it with the process
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SourceError(
                f"{folder}: another process is extracting into this folder: wait until it is done."
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
