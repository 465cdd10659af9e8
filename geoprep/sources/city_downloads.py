"""Downloads of the images and labels of a SpaceNet city from the public bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from geoprep.errors import OutputError, SourceError
from geoprep.executors.threads import Threads
from geoprep.sources.cities import BUCKET, City, canonical_product
from geoprep.sources.city_scenes import images_and_roads
from geoprep.sources.local_copies import CONNECTIONS
from geoprep.sources.scene import natural_key, refuse_synthetic
from geoprep.storage.failures import free_bytes
from geoprep.storage.local_files import make_folder
from geoprep.storage.places import RemoteFile, list_remote
from geoprep.storage.transfer import bytes_missing, download

Planned = dict[Path, RemoteFile]
"""Files of the public bucket, by the paths to which they are downloaded."""


def list_files(city: City, product: str, folder: Path, scenes: int | None = None) -> Planned:
    """Return the images of one product and the road labels of a city, as the bucket lists them.

    They belong to ``folder/AOI_7_Moscow/PS-RGB/...``, where a build from ``folder`` finds them.
    ``scenes`` is a number of scenes, labelled ones first; None: all. Raises SourceError if the
    bucket cannot be listed or has no such images, UsageError if the folder holds a synthetic city.
    """
    refuse_synthetic(folder, city)
    prefix = f"s3://{BUCKET}/{city.folder}"
    listed = {file.address: file for file in list_remote(prefix)}
    images, labels = images_and_roads(city, listed, canonical_product(product), prefix)
    numbers = sorted(images, key=lambda number: (number not in labels, number))[:scenes]
    chosen = [images[n] for n in numbers] + [labels[n] for n in numbers if n in labels]
    return {
        folder / city.aoi / file.removeprefix(prefix): listed[file]
        for file in sorted(chosen, key=natural_key)
    }


def bytes_to_download(files: Planned) -> int:
    """Return the bytes that are not on the disk yet, judged by the sizes of local files alone."""
    return sum(bytes_missing(remote, path) for path, remote in files.items())


def check_free_space(files: Planned, folder: Path) -> None:
    """Raise OutputError if the disk has less free space than the download needs."""
    needed = bytes_to_download(files)
    free = free_bytes(folder)
    if needed > free:
        raise OutputError(
            f"{folder}: {needed / 1e9:.1f} GB are to be downloaded, and {free / 1e9:.1f} GB are "
            "free. Free some space, choose another folder with `out`, or fewer `scenes`"
        )


def download_files(files: Planned, folder: Path, report: Callable[[int, int], None]) -> int:
    """Download files of a city, some at a time; return how many were there already.

    ``report`` is called with the bytes that are on the disk and the bytes of all files. Raises
    SourceError if some could not be downloaded; the others were, and the next call resumes.
    """
    make_folder(folder)
    check_free_space(files, folder)
    total, done, lock = sum(remote.size for remote in files.values()), 0, threading.Lock()

    def count(nbytes: int) -> None:
        nonlocal done
        with lock:
            done += nbytes
            report(done, total)

    def one(path: Path) -> tuple[str, str]:
        try:
            return download(files[path], path, count, replace=False), ""
        except SourceError as error:
            return "failed", str(error)

    ends = list(Threads(CONNECTIONS).map_unordered(one, files))
    failed = sorted(reason for end, reason in ends if end == "failed")
    if failed:
        raise SourceError(
            f"{len(failed)} of {len(files)} files could not be downloaded; the first: {failed[0]} "
            "The others are kept: run the same command again to resume"
        )
    return sum(end == "kept" for end, _ in ends)
