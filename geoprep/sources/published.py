"""What of a city is to be downloaded from the public bucket: single files, or archives."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from geoprep.errors import OutputError, SourceError, UsageError
from geoprep.executors import Threads
from geoprep.sources.cities import BUCKET, City, FileRole, canonical_product, file_role
from geoprep.sources.scene import natural_key
from geoprep.storage import Remote, ask_remote, bring, list_remote, missing, written

CONNECTIONS = 8
_ARCHIVES_AT_A_TIME = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object, and the file that it becomes."""

    remote: Remote
    path: Path


@dataclass(frozen=True, slots=True)
class Downloaded:
    """How a download went: files fetched, files that were there, bytes of all of them."""

    fetched: int
    kept: int
    nbytes: int


def list_files(city: City, product: str, dest: Path, scenes: int | None = None) -> list[Wanted]:
    """Return the images of one product and the road labels of a city, as the bucket lists them.

    Parameters
    ----------
    dest
        Files go to ``dest/AOI_7_Moscow/PS-RGB/...``, where ``--source dest`` finds them.
    scenes
        Only so many, by number, labelled ones first; None: all.

    Raises
    ------
    SourceError
        The bucket cannot be listed, or has no such images.
    """
    folder = f"s3://{BUCKET}/{city.folder}"
    images: dict[int, tuple[FileRole, Remote]] = {}
    labels: dict[int, tuple[FileRole, Remote]] = {}
    wanted, others = canonical_product(product), set[str]()
    for remote in list_remote(folder):
        role = file_role(city, remote.address)
        if role is None:
            continue
        if role.kind == "image" and role.product != wanted:
            others.add(role.product)
            continue
        into = images if role.kind == "image" else labels
        before = into.get(role.number)
        if before is None or role.rank < before[0].rank:
            into[role.number] = role, remote
    if not images:
        there = f"it has {', '.join(sorted(others))}" if others else "it has none at all"
        raise SourceError(f"{folder}: no {wanted} images of {city.aoi}; {there}: see --product")
    numbers = sorted(images, key=lambda number: (number not in labels, number))[:scenes]
    chosen = [images[n][1] for n in numbers] + [labels[n][1] for n in numbers if n in labels]
    files = [Wanted(one, _place(city, folder, one, dest)) for one in chosen]
    return sorted(files, key=lambda one: natural_key(one.remote.address))


def _place(city: City, folder: str, remote: Remote, dest: Path) -> Path:
    inside = PurePosixPath(remote.address.removeprefix(folder))
    if ".." in inside.parts or inside.is_absolute():
        raise SourceError(f"{remote.address}: its name leaves the folder")
    return dest / city.aoi / inside


def list_archives(city: City, dest: Path) -> list[Wanted]:
    """Return the tarballs that hold the labelled scenes of a city, or what there is of it.

    Raises
    ------
    SourceError
        The bucket cannot be asked.
    """
    listed = [one for one in city.archives if not city.labelled or one.holds != "test"]
    mission = f"s3://{BUCKET}/spacenet/{city.mission}_roads/tarballs"
    return [Wanted(ask_remote(f"{mission}/{a.name}", a.md5), dest / a.name) for a in listed]


def bytes_to_download(files: Sequence[Wanted]) -> int:
    """Return the bytes that are not here yet, by the sizes of files alone."""
    return sum(missing(one.remote, one.path) for one in files)


def check_free_space(files: Sequence[Wanted], dest: Path) -> None:
    """Raise OutputError where a disk has less room than is still to come."""
    coming = bytes_to_download(files)
    place = next(one for one in (dest, *dest.parents) if one.is_dir())
    free = shutil.disk_usage(place).free
    if coming > free:
        raise OutputError(
            f"{dest}: {coming / 1e9:.1f} GB are to come, and {free / 1e9:.1f} GB are free: free "
            "some, choose another --dest, or fewer --scenes"
        )


def download_files(
    files: Sequence[Wanted], dest: Path, report: Callable[[int, int], None]
) -> Downloaded:
    """Bring objects to the disk, some at a time; what is there already is checked and kept.

    Parameters
    ----------
    report
        Called with the bytes that are there and the bytes of all.

    Raises
    ------
    SourceError
        Some could not be fetched; all others were, and the next call goes on with these.
    UsageError, OutputError
        They cannot be written, or do not fit.
    """
    if len({one.path for one in files}) != len(files):
        raise UsageError("two objects would become one file")
    with written(dest):
        dest.mkdir(parents=True, exist_ok=True)
    check_free_space(files, dest)
    total, done, lock = sum(one.remote.size for one in files), 0, threading.Lock()

    def count(nbytes: int) -> None:
        nonlocal done
        with lock:
            done += nbytes
            report(done, total)

    def one(wanted: Wanted) -> tuple[str, str]:
        try:
            return bring(wanted.remote, wanted.path, count), ""
        except SourceError as error:
            return "failed", str(error)

    large = any(one.remote.md5 for one in files)
    ends = list(Threads(_ARCHIVES_AT_A_TIME if large else CONNECTIONS).map_unordered(one, files))
    failed = sorted(why for how, why in ends if how == "failed")
    if failed:
        raise SourceError(
            f"{len(failed)} of {len(files)} files could not be fetched; the first: {failed[0]} "
            "What has come is kept: run the same command again to carry on"
        )
    kept = sum(how == "kept" for how, _ in ends)
    return Downloaded(len(files) - kept, kept, total)
