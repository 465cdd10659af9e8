"""Matches label files to images by their names.

A label has the name of its image (``chip1.geojson``), or that name and another word
(``chip1_roads.geojson``). If no image has such a name, words for the kind of file are left out of
both names (``12_sat.jpg`` and ``12_mask.png``), or area and number of SpaceNet's names are compared
(``AOI_2_Vegas_img99.geojson`` and ``SN3_roads_train_AOI_2_Vegas_PS-RGB_img99.tif``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from geoprep.errors import SourceError

# Files used from a folder, or from a pattern without a suffix of its own.
IMAGE_SUFFIXES = (".tif", ".tiff", ".vrt", ".jp2", ".img", ".png", ".jpg", ".jpeg")
LABEL_SUFFIXES = (".geojson", ".gpkg", ".shp", ".fgb", ".parquet", ".geoparquet", ".osm", ".pbf")
# `chip1_roads` belongs to scene `chip1`, but `chip1_2` is another scene's.
_WORD_MORE = re.compile(r"[_\-. ]+[^\W\d]")
_IMAGE_WORD = re.compile(r"[_\-. ]+(sat|satellite|image|img|rgb|aerial|ortho|photo)$", re.I)
_LABEL_WORD = re.compile(r"[_\-. ]+(masks?|labels?|roads?|map|gt|groundtruth|ground_truth)$", re.I)
_SPACENET = re.compile(r"AOI_(\d+)_.*?(img|chip)(\d+)(?!\d)", re.I)


@dataclass(frozen=True, slots=True)
class NamedImage:
    """An image, the id of its scene, and the folders that are part of the id."""

    id: str
    address: str
    folders: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """Name of the file without its suffix, as in the file system."""
        return PurePosixPath(self.address).stem


Carriers = dict[str, list[NamedImage]]


def is_called_label(address: str) -> bool:
    """Return whether the name of a file ends in a word for labels, such as ``_mask``."""
    return _LABEL_WORD.search(PurePosixPath(address).stem) is not None


def assigned(
    files: Sequence[str], images: Sequence[NamedImage]
) -> tuple[dict[str, str], list[str]]:  # fmt: skip
    """Return the label file of each scene by scene id, and the label files without a scene."""
    named = _carriers(images, lambda image: {image.id, image.stem})
    alike = _carriers(images, lambda image: _other_names(image.stem, _IMAGE_WORD))
    owned: dict[str, tuple[int, str]] = {}
    orphans = []
    for file in files:
        scene, closeness = _owner(PurePosixPath(file), named)
        if scene is None:
            scene, closeness = _likely_owner(PurePosixPath(file), alike), 0
        if scene is None:
            orphans.append(file)
            continue
        before = owned.get(scene)
        if before is not None and before[0] == closeness:
            raise SourceError(
                f"two label files for scene {scene}: {before[1]} and {file}. Give `labels` as a "
                "pattern that matches one of them, such as '*_roads.geojson'."
            )
        if before is None or closeness > before[0]:
            owned[scene] = (closeness, file)
    return {scene: file for scene, (_, file) in owned.items()}, orphans


def _carriers(images: Iterable[NamedImage], names: Callable[[NamedImage], set[str]]) -> Carriers:
    """Return the images by each of their names."""
    carriers: Carriers = {}
    for image in images:
        for name in names(image):
            carriers.setdefault(name, []).append(image)
    return carriers


def _owner(file: PurePosixPath, carriers: Carriers) -> tuple[str | None, int]:
    """Return the id of a label's scene, and 2 if the label has exactly its name, else 1."""
    stem = file.stem
    cuts = [i for i in range(len(stem), 0, -1) if i == len(stem) or _WORD_MORE.match(stem, i)]
    for cut in cuts:  # the longest name first: `a_1_roads` belongs to `a_1`, not to `a`
        image = _only(file, carriers.get(stem[:cut], []))
        if image is not None:
            return image.id, 1 + (cut == len(stem))
    return None, 0


def _likely_owner(file: PurePosixPath, carriers: Carriers) -> str | None:
    """Return the id of the only scene whose name is similar, or None."""
    for name in sorted(_other_names(file.stem, _LABEL_WORD)):
        image = _only(file, carriers.get(name, []))
        if image is not None:
            return image.id
    return None


def _only(file: PurePosixPath, images: Sequence[NamedImage]) -> NamedImage | None:
    """Return the only image, or the only one whose folders include the label's; else None."""
    if len(images) > 1:
        common = set.intersection(*(set(image.folders) for image in images))
        folders = common.union(file.parent.parts)
        images = [image for image in images if folders.issuperset(image.folders)]
    return images[0] if len(images) == 1 else None


def _other_names(stem: str, word: re.Pattern[str]) -> set[str]:
    """Return other names: SpaceNet's area and number (``2/img99``), the name without a word."""
    names = set()
    if match := _SPACENET.search(stem):
        area, kind, number = match.groups()
        names.add(f"{int(area)}/{kind.lower()}{int(number)}")
    if match := word.search(stem):
        names.add(stem[: match.start()])
    return names
