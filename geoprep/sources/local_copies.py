"""Local copies of remote scenes, files and archives, in one folder per build.

A copy lies at a path made of its full address, so that files of equal names never meet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from geoprep.errors import SourceError
from geoprep.executors.threads import Threads
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.storage.addresses import is_remote, is_web, joined
from geoprep.storage.places import remote_file
from geoprep.storage.transfer import download

CONNECTIONS = 8
"""Concurrent downloads: enough to hide a server's latency, few enough to be polite."""
_LONGEST_NAME = 200


def copies_folder(out: str | Path) -> Path:
    """Return the folder for local copies of a build: beside the store, or here for a bucket."""
    place = out if isinstance(out, Path) else Path(out.rstrip("/")).name
    return Path(f"{place}.source")


def copy_path(address: str, folder: Path) -> Path:
    """Return the path of the local copy of a file on a server, or of an absolute local path."""
    address, _, query = address.partition("?") if is_web(address) else (address, "", "")
    scheme, _, rest = address.rpartition("://")
    parts = (rest if scheme else address.lstrip("/")).split("/")
    signed = [hashlib.sha256(query.encode()).hexdigest()[:16]] if query else []
    return folder.joinpath(scheme or "files", *map(_safe, [*parts[:-1], *signed, parts[-1]]))


def _safe(part: str) -> str:
    """Return a part of an address as a file name; one that cannot be a file name is hashed."""
    if part in ("", ".", "..") or "\0" in part or len(part.encode()) > _LONGEST_NAME:
        suffix = PurePosixPath(part).suffix if len(part) > 2 else ""
        return hashlib.sha256(part.encode()).hexdigest()[:16] + suffix[:20]
    return part


def has_remote(sources: SourceScenes) -> bool:
    """Return whether a scene has its image or label on a server."""
    return any(map(_is_remote, sources.scenes))


def download_scenes(
    found: SourceScenes, folder: Path, report: Callable[[int, int], None]
) -> SourceScenes:
    """Download remote images and labels; return the same scenes with local addresses.

    A scene that cannot be downloaded keeps its remote address, and the build reports why it fails.
    """
    todo = [(i, scene) for i, scene in enumerate(found.scenes) if _is_remote(scene)]
    scenes = list(found.scenes)

    def one(item: tuple[int, Scene]) -> tuple[int, Scene]:
        index, scene = item
        try:
            image = joined(_local(image_file, folder) for image_file in scene.images)
            label = scene.label and _local(scene.label, folder)
        except SourceError:
            return index, scene
        return index, replace(scene, image=image, label=label)

    for done, (index, scene) in enumerate(Threads(CONNECTIONS).map_unordered(one, todo), start=1):
        scenes[index] = scene
        report(done, len(todo))
    return replace(found, scenes=tuple(scenes))


def _is_remote(scene: Scene) -> bool:
    return any(is_remote(address) for address in (*scene.images, scene.label) if address)


def _local(address: str, folder: Path) -> str:
    return str(download_copy(address, folder)) if is_remote(address) else address


def download_copy(address: str, folder: Path) -> Path:
    """Download a file to its path among the local copies, unless it is there; return the path."""
    path = copy_path(address, folder)
    download(remote_file(address), path)
    return path
