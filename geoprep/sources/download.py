"""Bring scenes from S3 to the local disk, once: a build reads every image more than one time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from geoprep.errors import SourceError
from geoprep.executors import Threads
from geoprep.sources.scene import Found, Scene
from geoprep.storage import fetch_object, is_remote

CONNECTIONS = 8
"""Downloads at a time: enough to hide the wait for a server, few enough to be polite."""


def remote_scenes(found: Found) -> int:
    """Return how many scenes have their image or label on a server."""
    return sum(_is_remote(scene) for scene in found.scenes)


def fetch(found: Found, into: Path, report: Callable[[int, int], None]) -> Found:
    """Download what lies on a server; return the same scenes with local addresses.

    Files that are there already are kept where the object is still the one they were made of, so
    that an interrupted download goes on where it was. A scene that cannot be fetched keeps its
    address: the build then says why it failed.

    Parameters
    ----------
    into
        Made when absent; may hold files of an earlier download.
    report
        Called with how many scenes are done and how many there are.
    """
    todo = [(i, scene) for i, scene in enumerate(found.scenes) if _is_remote(scene)]
    if not todo:
        return found
    into.mkdir(parents=True, exist_ok=True)
    scenes = list(found.scenes)

    def one(item: tuple[int, Scene]) -> tuple[int, Scene]:
        index, scene = item
        try:
            image = _download(scene.image, into, scene.id)
            label = scene.label and _download(scene.label, into, scene.id)
        except SourceError:
            return index, scene
        return index, replace(scene, image=image, label=label)

    for done, (index, scene) in enumerate(Threads(CONNECTIONS).map_unordered(one, todo), start=1):
        scenes[index] = scene
        report(done, len(todo))
    return replace(found, scenes=tuple(scenes))


def _is_remote(scene: Scene) -> bool:
    return any(is_remote(address) for address in (scene.image, scene.label) if address)


def _download(address: str, into: Path, name: str) -> str:
    """Write an object to a file named after its scene."""
    if not is_remote(address):
        return address
    target = into / (name + PurePosixPath(address).suffix)
    download(address, target)
    return str(target)


def download(address: str, target: Path) -> None:
    """Copy an object, unless the copy that is there is of its version: a hidden file says which."""
    mark = target.with_name(f".{target.name}.etag")
    known = mark.read_text() if mark.is_file() and target.is_file() else None
    version = fetch_object(address, target, known)
    if version is not None:
        mark.write_text(version)
