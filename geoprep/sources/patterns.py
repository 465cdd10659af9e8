"""Scenes from a person's own files: any imagery, any road files."""

import glob
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from geoprep.errors import SourceError
from geoprep.sources.matching import (
    IMAGE_SUFFIXES,
    LABEL_SUFFIXES,
    Image,
    assigned,
    is_called_label,
)
from geoprep.sources.scene import Found, Scene, natural_key
from geoprep.storage import is_remote, match_objects, s3_address

_WILD = re.compile(r"[*?\[]")


def images_and_labels(
    images: Sequence[str], labels: str | None = None, *, masks: bool = False
) -> Found:
    """Make scenes of a person's own files.

    Parameters
    ----------
    images
        Files, folders and patterns (``scenes/*.tif``, ``**`` for any depth), also ``s3://``. A
        scene's id is the stem of its file, with as many of the folders before it as tell it from
        the others (``north_scene1``, ``south_scene1``).
    labels
        One existing file: roads for all scenes. A folder or a pattern: one file for each scene,
        called like it (:mod:`geoprep.sources.matching`).
    masks
        Labels are rasters: those of a folder are taken, and not what else lies there.

    Raises
    ------
    SourceError
        A pattern matches nothing, no label belongs to any scene, or two belong to one.
    """
    addresses = dict.fromkeys(
        address
        for pattern in images
        for address in _expand(pattern, IMAGE_SUFFIXES, "--images")
    )  # fmt: skip
    files = [] if labels is None else _label_files(labels, masks=masks)
    twice = set(files) & set(addresses)  # in one folder, by their names
    called = {file for file in twice if is_called_label(file)}
    files = [file for file in files if file not in twice - called]
    found = sorted(
        _identified([address for address in addresses if address not in called]),
        key=lambda image: natural_key(image.id),
    )
    road_file, owned, orphans = _labels_for(found, labels, files, masks=masks)
    return Found(
        tuple(Scene(image.id, image.address, owned.get(image.id)) for image in found),
        origin=", ".join(images),
        orphan_labels=tuple(orphans),
        road_file=road_file,
    )


def _label_files(labels: str, *, masks: bool) -> list[str]:
    """Return the files that labels mean; from a folder without vectors, rasters."""
    if masks:
        return _expand(labels, IMAGE_SUFFIXES, "--labels")
    try:
        return _expand(labels, LABEL_SUFFIXES, "--labels")
    except SourceError:
        if is_remote(labels):
            raise
        rasters = _files(Path(labels).expanduser(), IMAGE_SUFFIXES)
        if not any(is_called_label(file) for file in rasters):
            raise
        return sorted(rasters, key=natural_key)


def _labels_for(
    images: Sequence[Image], labels: str | None, files: Sequence[str], *, masks: bool
) -> tuple[str | None, dict[str, str], list[str]]:
    """Return the one road file, the labels by scene id, and the labels that belong to none."""
    if labels is None:
        return None, {}, []
    if not is_remote(labels) and Path(labels).expanduser().is_file():
        if masks or files[0].lower().endswith(IMAGE_SUFFIXES):
            return None, {image.id: files[0] for image in images}, []
        return files[0], {}, []
    owned, orphans = assigned(files, images)
    if not owned:
        first = f" ({PurePosixPath(files[0]).name} against {images[0].stem})" if files else ""
        raise SourceError(
            f"--labels {labels}: none of its {len(files)} files is called like a scene{first}. "
            "Call them like the images, give one file of roads for all, or use --city for "
            "SpaceNet's names."
        )
    return None, owned, orphans


def _expand(pattern: str, suffixes: tuple[str, ...], option: str) -> list[str]:
    """Return the files that a pattern means, as absolute paths or object addresses."""
    if is_remote(pattern):
        found = _objects(s3_address(pattern), suffixes)
    else:
        found = _files(Path(pattern).expanduser(), suffixes)
    if not found:
        raise SourceError(
            f"{option} {pattern}: matches no file (looked from {Path.cwd()}; from a folder "
            f"{', '.join(suffixes)} are taken). Check the path, and put patterns in quotes."
        )
    return sorted(found, key=natural_key)


def _objects(address: str, suffixes: tuple[str, ...]) -> list[str]:
    if not _WILD.search(address):
        if PurePosixPath(address).suffix:
            return [address]
        address = address.rstrip("/") + "/*"
    return [found for found in match_objects(address) if _taken(found, address, suffixes)]


def _files(path: Path, suffixes: tuple[str, ...]) -> list[str]:
    if path.is_file():  # named outright, whatever it is called
        return [str(path.absolute())]
    pattern = glob.escape(str(path)) + "/*" if path.is_dir() else str(path)
    hits = glob.glob(pattern, recursive=True)  # noqa: PTH207  Path.glob takes no absolute pattern
    return [
        str(Path(hit).absolute())
        for hit in hits
        if _taken(hit, pattern, suffixes) and _is_file_or_broken_link(Path(hit))
    ]


def _is_file_or_broken_link(path: Path) -> bool:
    """Return whether a match is a file, or was meant to be: its scene then says what is wrong."""
    return path.is_file() or (path.is_symlink() and not path.exists())


def _taken(found: str, pattern: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether a match is meant: sidecars are not, unless the pattern spells their suffix."""
    spelt = PurePosixPath(pattern).suffix
    return bool(spelt and not _WILD.search(spelt)) or found.lower().endswith(suffixes)


def _identified(addresses: Sequence[str]) -> list[Image]:
    """Give each image an id: its stem, and the folders before it where stems are equal."""
    stems: dict[str, list[str]] = {}
    for address in addresses:
        stems.setdefault(PurePosixPath(address).stem, []).append(address)
    result: dict[str, Image] = {}
    for stem, same in stems.items():
        for depth in range(len(PurePosixPath(same[0]).parts)):
            images = [_named(address, depth) for address in same]
            ids = {image.id for image in images}
            if len(ids) == len(same) and not ids & result.keys():
                break
        else:
            raise SourceError(
                f"--images: {' and '.join(same[:2])} would both be scene {stem}: rename one."
            )
        result.update({image.id: image for image in images})
    return list(result.values())


def _named(address: str, depth: int) -> Image:
    # An id is stored and printed: bytes of a name that are no UTF-8 are spelt out.
    path = PurePosixPath(address.encode("utf-8", "backslashreplace").decode())
    folders = path.parent.parts[-depth:] if depth else ()
    return Image("_".join([*folders, path.stem]), address, folders)
