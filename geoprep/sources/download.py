"""Bring scenes from S3 to the local disk, once: a build reads every image more than one time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from geoprep.errors import SourceError
from geoprep.executors.threads import Threads
from geoprep.sources.scene import Found, Scene
from geoprep.storage.addresses import read_bytes
from geoprep.storage.objects import is_remote

CONNECTIONS = 8
"""Downloads at a time: enough to hide the wait for a server, few enough to be polite."""


def remote_scenes(found: Found) -> int:
    """Return how many scenes have their image on a server."""
    return sum(is_remote(scene.image) for scene in found.scenes)


def fetch(found: Found, into: Path, report: Callable[[int, int], None]) -> Found:
    """Download what lies on a server; return the same scenes with local addresses.

    Files that are there already are kept, so that an interrupted download goes on where it was. A
    scene that cannot be fetched keeps its address: the build then says why it failed.

    Parameters
    ----------
    found
        Scenes, some or all of them on a server.
    into
        Folder for the files; made when absent.
    report
        Called with how many scenes are done and how many there are.
    """
    todo = [(i, scene) for i, scene in enumerate(found.scenes) if is_remote(scene.image)]
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


def _download(address: str, into: Path, name: str) -> str:
    if not is_remote(address):
        return address
    target = into / (name + PurePosixPath(address).suffix)
    if not target.is_file():
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            partial.write_bytes(read_bytes(address))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return str(target)
