"""Matches label files to images by their names.

A label has the name of its image (``chip1.geojson``), or that name and a word for labels or one
that all labels end in (``chip1_roads.geojson``). If no image has such a name, words for the kind of
file are left out of both names (``12_sat.jpg`` and ``12_mask.png``, ``img_1`` and ``mask_1``), and
the words that all images or all labels end in (``a_S1Hand`` and ``a_LabelHand``); or area and
number of SpaceNet's names are compared (``AOI_2_Vegas_img99.geojson`` and
``SN3_roads_train_AOI_2_Vegas_PS-RGB_img99.tif``). Words for places, such as ``west``, are a part of
the name. A pattern such as ``mask_{name}`` replaces these rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

from geoprep.errors import SourceError

T = TypeVar("T")

# Files used from a folder, or from a pattern without a suffix of its own.
IMAGE_SUFFIXES = (".tif", ".tiff", ".vrt", ".jp2", ".img", ".png", ".jpg", ".jpeg")
LABEL_SUFFIXES = (
    *(".geojson", ".gpkg", ".shp", ".fgb", ".parquet", ".geoparquet", ".osm", ".pbf"),
    *(".gdb", ".gdb.zip"),
    *(".geojsonl", ".geojsons", ".kml", ".kmz", ".gml", ".tab", ".mif", ".sqlite"),
)
# `chip1_roads` belongs to scene `chip1`, but `chip1_2` is another scene's.
_SEPARATOR = r"[_\-. ]+"
_WORD_MORE = re.compile(rf"{_SEPARATOR}[^\W\d]")
_IMAGE_WORDS = r"(?:sat|satellite|images?|img|rgb|aerial|ortho|photo|tile|chip)"
_LABEL_WORDS = (
    r"(?:masks?|labels?|roads?|streets?|paths?|osm|map|gt|ground_?truth|truth|buildings?|classes|landcover"
    r"|annotations?|seg|segmentation|target)"
)
_LABEL_MORE = re.compile(rf"{_SEPARATOR}{_LABEL_WORDS}(?:{_SEPARATOR}|$)", re.I)
_COMMON_WORDS = re.compile(rf"(?:{_SEPARATOR}[^\W\d][^_\-. ]*)+$")
_OF_PLACE = re.compile(r"north|south|east|west|left|right|top|bottom|upper|lower|cent(er|re)", re.I)
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
    """Return whether the name of a file begins or ends with a word for labels, as ``a_mask``."""
    stem = PurePosixPath(address).stem
    return any(word.search(stem) for word in _outer_words(_LABEL_WORDS))


def assigned(
    files: Sequence[str], images: Sequence[NamedImage], pattern: str | None = None
) -> tuple[dict[str, str], list[str], list[str]]:
    """Return the labels by scene id, the labels without a scene, and notes.

    ``pattern`` is the name of labels without suffix: ``{name}`` is the image's name, or without
    the words that all images have, and ``*`` any text.
    """
    named = _carriers(images, lambda image: {image.id, image.stem})
    of_images, of_labels = (
        _common_words([PurePosixPath(address.removesuffix(".zip")).stem for address in addresses])
        for addresses in ([image.address for image in images], files)
    )
    alike = _carriers(
        images,
        lambda image: {image.stem, *_other_names(image.stem, _IMAGE_WORDS, of_images)},
    )
    known = all(
        not ending or re.fullmatch(_SEPARATOR + words, ending, re.I)
        for ending, words in ((of_images, _IMAGE_WORDS), (of_labels, _LABEL_WORDS))
    )
    if pattern is not None:
        written = re.escape(pattern).replace(r"\{name\}", "(.+)").replace(r"\*", ".*")
    owned: dict[str, tuple[int, str]] = {}
    orphans, notes = [], []
    for file in files:
        path = PurePosixPath(file.removesuffix(".zip"))  # a.gdb.zip
        if pattern is not None:
            match = re.fullmatch(written, path.stem) or re.fullmatch(written, path.name)
            closeness = 2
            names = [match[1]] if match else []
            scene = _likely_owner(path, names, named) or _likely_owner(path, names, alike)
        else:
            scene, closeness = _owner(path, named, of_labels)
            if scene is None:
                names = sorted(_other_names(path.stem, _LABEL_WORDS, of_labels))
                scene, closeness = _likely_owner(path, [path.stem, *names], alike), 0
                if scene is not None and not known:
                    notes = [
                        f"names of images end in {of_images or 'no word'}, of labels in "
                        f"{of_labels or 'no word'}: paired by the rest of the names"
                    ]
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
    return {scene: file for scene, (_, file) in owned.items()}, orphans, notes


def named_like(scenes: Mapping[str, T], others: Collection[str]) -> dict[str, T]:
    """Return scenes by the names that others have for them; as they are if they share a name.

    A label is that of an image by the rules of `assigned`.
    """
    if not scenes.keys().isdisjoint(others):
        return dict(scenes)
    files = {f"{name}.label": name for name in scenes}  # a suffix, as names may have a dot
    owned, _, _ = assigned([*files], [NamedImage(other, f"{other}.image") for other in others])
    names = {files[file]: other for other, file in owned.items()}
    return {names.get(name, name): scene for name, scene in scenes.items()}


def _carriers(images: Iterable[NamedImage], names: Callable[[NamedImage], set[str]]) -> Carriers:
    """Return the images by each of their names."""
    carriers: Carriers = {}
    for image in images:
        for name in names(image):
            carriers.setdefault(name, []).append(image)
    return carriers


def _owner(file: PurePosixPath, carriers: Carriers, words: str) -> tuple[str | None, int]:
    """Return the id of a label's scene, and 2 if the label has exactly its name, else 1.

    ``words`` are those that all labels end in.
    """
    stem = file.stem
    cuts = [
        i
        for i in range(len(stem), 0, -1)
        if stem[i:] in ("", words) or (_WORD_MORE.match(stem, i) and _LABEL_MORE.match(stem, i))
    ]
    for cut in cuts:  # the longest name first: `a_1_roads` belongs to `a_1`, not to `a`
        image = _only(file, carriers.get(stem[:cut], []))
        if image is not None:
            return image.id, 1 + (cut == len(stem))
    return None, 0


def _likely_owner(file: PurePosixPath, names: Iterable[str], carriers: Carriers) -> str | None:
    """Return the id of the only scene that has one of some names, or None."""
    for name in names:
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


def _common_words(stems: Sequence[str]) -> str:
    """Return the words that several names end in, with separators; none if they are of places."""
    first, *others = stems or [""]
    for match in _WORD_MORE.finditer(first) if others else ():  # the most words first
        words = first[match.start() :]
        if _COMMON_WORDS.fullmatch(words) and all(stem.endswith(words) for stem in others):
            return "" if _OF_PLACE.search(words) else words
    return ""


def _other_names(stem: str, words: str, common: str) -> set[str]:
    """Return other names: SpaceNet's area and number (``2/img99``), the name without words."""
    names = {stem.removesuffix(common)} if common else set()
    if match := _SPACENET.search(stem):
        area, kind, number = match.groups()
        names.add(f"{int(area)}/{kind.lower()}{int(number)}")
    for word in _outer_words(words):
        names |= {word.sub("", name) for name in {stem, *names}}
    return names - {stem}


def _outer_words(words: str) -> tuple[re.Pattern[str], ...]:
    """Return patterns of words at the end of a name, and at its beginning (also before digits)."""
    return (
        re.compile(rf"{_SEPARATOR}{words}$", re.I),
        re.compile(rf"^{words}(?:{_SEPARATOR}|(?=\d))", re.I),
    )
