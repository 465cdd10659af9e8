"""Downloads of a SpaceNet city from the public bucket: single files, or archives."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from geoprep.errors import OutputError, SourceError, UsageError
from geoprep.executors import Threads
from geoprep.sources.cities import BUCKET, City, FileRole, canonical_product, file_role
from geoprep.sources.local_copies import CONNECTIONS
from geoprep.sources.scene import natural_key
from geoprep.sources.synthetic import refuse_synthetic
from geoprep.storage import (
    RemoteFile,
    bytes_missing,
    download,
    errors_named,
    list_remote,
    remote_file,
)

_ARCHIVES_AT_A_TIME = 2


@dataclass(frozen=True, slots=True)
class PlannedDownload:
    """A file of the public bucket, and the path to which it is downloaded."""

    remote: RemoteFile
    path: Path


@dataclass(frozen=True, slots=True)
class Downloaded:
    """Result of a download.

    Attributes
    ----------
    downloaded, kept
        Number of files that were downloaded, and that were there already.
    nbytes
        Bytes of all of them.
    """

    downloaded: int
    kept: int
    nbytes: int


def list_files(
    city: City, product: str, folder: Path, scenes: int | None = None
) -> list[PlannedDownload]:
    """Return the images of one product and the road labels of a city, as the bucket lists them.

    Parameters
    ----------
    folder
        Files belong to ``folder/AOI_7_Moscow/PS-RGB/...``, where a build from ``folder`` finds
        them.
    scenes
        Number of scenes, by number, labelled ones first; None: all.

    Raises
    ------
    SourceError
        The bucket cannot be listed, or has no such images.
    UsageError
        The folder holds a synthetic city of the same name.
    """
    refuse_synthetic(folder, city)
    prefix = f"s3://{BUCKET}/{city.folder}"
    images: dict[int, tuple[FileRole, RemoteFile]] = {}
    labels: dict[int, tuple[FileRole, RemoteFile]] = {}
    wanted, others = canonical_product(product), set[str]()
    for remote in list_remote(prefix):
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
        raise SourceError(f"{prefix}: no {wanted} images of {city.aoi}; {there}: choose `product`")
    numbers = sorted(images, key=lambda number: (number not in labels, number))[:scenes]
    chosen = [images[n][1] for n in numbers] + [labels[n][1] for n in numbers if n in labels]
    files = [PlannedDownload(one, _target(city, prefix, one, folder)) for one in chosen]
    return sorted(files, key=lambda one: natural_key(one.remote.address))


def _target(city: City, prefix: str, remote: RemoteFile, folder: Path) -> Path:
    inside = PurePosixPath(remote.address.removeprefix(prefix))
    if ".." in inside.parts or inside.is_absolute():
        raise SourceError(f"{remote.address}: its name leads out of the folder")
    return folder / city.aoi / inside


def list_archives(city: City, folder: Path) -> list[PlannedDownload]:
    """Return the archives of a city's labelled scenes, or of its test scenes if none is labelled.

    Raises
    ------
    SourceError
        The bucket does not answer, or refuses.
    UsageError
        The folder holds a synthetic city of the same name.
    """
    refuse_synthetic(folder, city)
    listed = [one for one in city.archives if not city.labelled or one.holds != "test"]
    mission = f"s3://{BUCKET}/spacenet/{city.mission}_roads/tarballs"
    return [
        PlannedDownload(remote_file(f"{mission}/{a.name}", a.md5), folder / a.name) for a in listed
    ]


def bytes_to_download(files: Sequence[PlannedDownload]) -> int:
    """Return the bytes that are not on the disk yet, judged by the sizes of local files alone."""
    return sum(bytes_missing(one.remote, one.path) for one in files)


def check_free_space(files: Sequence[PlannedDownload], folder: Path) -> None:
    """Raise OutputError if the disk has less free space than the download needs."""
    needed = bytes_to_download(files)
    place = next(one for one in (folder, *folder.parents) if one.is_dir())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise OutputError(
            f"{folder}: {needed / 1e9:.1f} GB are to be downloaded, and {free / 1e9:.1f} GB are "
            "free. Free some space, choose another folder with `out`, or fewer `scenes`"
        )


def download_files(
    files: Sequence[PlannedDownload], folder: Path, report: Callable[[int, int], None]
) -> Downloaded:
    """Download files of a city, some at a time; those on the disk are checked and kept.

    Parameters
    ----------
    report
        Called with the bytes that are on the disk and the bytes of all files.

    Raises
    ------
    SourceError
        Some could not be downloaded; the others were, and the next call resumes.
    UsageError, OutputError
        They cannot be written, or do not fit.
    """
    if len({one.path for one in files}) != len(files):
        raise UsageError("two objects would have the same local file")
    with errors_named(folder, OutputError):
        folder.mkdir(parents=True, exist_ok=True)
    check_free_space(files, folder)
    total, done, lock = sum(one.remote.size for one in files), 0, threading.Lock()

    def count(nbytes: int) -> None:
        nonlocal done
        with lock:
            done += nbytes
            report(done, total)

    def one(file: PlannedDownload) -> tuple[str, str]:
        try:
            return download(file.remote, file.path, count), ""
        except SourceError as error:
            return "failed", str(error)

    large = any(one.remote.md5 for one in files)
    ends = list(Threads(_ARCHIVES_AT_A_TIME if large else CONNECTIONS).map_unordered(one, files))
    failed = sorted(reason for end, reason in ends if end == "failed")
    if failed:
        raise SourceError(
            f"{len(failed)} of {len(files)} files could not be downloaded; the first: {failed[0]} "
            "The others are kept: run the same command again to resume"
        )
    kept = sum(end == "kept" for end, _ in ends)
    return Downloaded(len(files) - kept, kept, total)
