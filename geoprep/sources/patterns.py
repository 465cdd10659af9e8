"""Scenes from a person's own files: any imagery, any road files."""

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from geoprep.errors import SourceError
from geoprep.sources.scene import Found, Scene, natural_key
from geoprep.storage.objects import is_remote, match_objects, s3_address

# What is taken from a folder, or by a pattern that does not spell its own suffix.
IMAGE_SUFFIXES = (".tif", ".tiff", ".vrt", ".jp2", ".img", ".png", ".jpg", ".jpeg")
LABEL_SUFFIXES = (".geojson", ".gpkg", ".shp", ".fgb")
_WILD = re.compile(r"[*?\[]")
# `chip1_roads` belongs to scene `chip1`, but `chip1_2` is another scene's.
_WORD_MORE = re.compile(r"[_\-. ]+[^\W\d]")


@dataclass(frozen=True, slots=True)
class _Image:
    """An image, its scene's id, and the folders that the id names to tell it from others."""

    id: str
    address: str
    folders: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """Name of the file without its suffix, as in the file system."""
        return PurePosixPath(self.address).stem


def images_and_labels(images: Sequence[str], labels: str | None = None) -> Found:
    """Make scenes of a person's own files.

    Parameters
    ----------
    images
        Files, folders and patterns (``scenes/*.tif``, ``**`` for any depth), also ``s3://``. A
        scene's id is the stem of its file, with as many of the folders before it as tell it from
        the others (``north_scene1``, ``south_scene1``).
    labels
        One existing file: roads for all scenes. A folder or a pattern: one file for each scene,
        called like it, or like it and a word more (``scene1_roads.geojson``).

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
    found = sorted(_identified(list(addresses)), key=lambda image: natural_key(image.id))
    road_file, owned, orphans = _labels_for(found, labels)
    return Found(
        tuple(Scene(image.id, image.address, owned.get(image.id)) for image in found),
        origin=", ".join(images),
        orphan_labels=tuple(orphans),
        road_file=road_file,
    )


def _labels_for(
    images: Sequence[_Image], labels: str | None
) -> tuple[str | None, dict[str, str], list[str]]:
    """Return the one road file, the labels by scene id, and the labels that belong to none."""
    if labels is None:
        return None, {}, []
    if not is_remote(labels) and Path(labels).expanduser().is_file():
        return str(Path(labels).expanduser().absolute()), {}, []
    files = _expand(labels, LABEL_SUFFIXES, "--labels")
    owned, orphans = _assigned(files, images)
    if not owned:
        raise SourceError(
            f"--labels {labels}: none of its {len(files)} files is called like a scene "
            f"({PurePosixPath(files[0]).name} against {images[0].stem}). Call them like the "
            "images, give one file of roads for all, or use --city for SpaceNet's names."
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


def _identified(addresses: Sequence[str]) -> list[_Image]:
    """Give each image an id: its stem, and the folders before it where stems are equal."""
    stems: dict[str, list[str]] = {}
    for address in addresses:
        stems.setdefault(PurePosixPath(address).stem, []).append(address)
    result: dict[str, _Image] = {}
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


def _named(address: str, depth: int) -> _Image:
    # An id is stored and printed: bytes of a name that are no UTF-8 are spelt out.
    path = PurePosixPath(address.encode("utf-8", "backslashreplace").decode())
    folders = path.parent.parts[-depth:] if depth else ()
    return _Image("_".join([*folders, path.stem]), address, folders)


def _assigned(
    files: Sequence[str], images: Sequence[_Image]
) -> tuple[dict[str, str], list[str]]:  # fmt: skip
    """Give each label file to the scene whose name it carries; return the rest apart."""
    carriers: dict[str, list[_Image]] = {}
    for image in images:
        for key in {image.id, image.stem}:
            carriers.setdefault(key, []).append(image)
    owned: dict[str, tuple[bool, str]] = {}
    orphans = []
    for file in files:
        scene, exact = _owner(PurePosixPath(file), carriers)
        if scene is None:
            orphans.append(file)
            continue
        before = owned.get(scene)
        if before is not None and before[0] == exact:
            raise SourceError(
                f"two label files for scene {scene}: {before[1]} and {file}. Narrow --labels, for "
                "example to '*_roads.geojson'."
            )
        if before is None or exact:
            owned[scene] = (exact, file)
    return {scene: file for scene, (_, file) in owned.items()}, orphans


def _owner(
    file: PurePosixPath, carriers: dict[str, list[_Image]]
) -> tuple[str | None, bool]:  # fmt: skip
    """Return the id of a label's scene, and whether the label is called exactly like it."""
    stem = file.stem
    cuts = [i for i in range(len(stem), 0, -1) if i == len(stem) or _WORD_MORE.match(stem, i)]
    for cut in cuts:  # the longest name first: `a_1_roads` is of `a_1`, not of `a`
        images = carriers.get(stem[:cut], [])
        if len(images) > 1:  # of one stem: the folders that tell the images apart tell the labels
            common = set.intersection(*(set(image.folders) for image in images))
            folders = common.union(file.parent.parts)
            images = [image for image in images if folders.issuperset(image.folders)]
        if len(images) == 1:
            return images[0].id, cut == len(stem)
    return None, False
