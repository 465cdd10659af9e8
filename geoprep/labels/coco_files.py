"""Instance annotations in the format of COCO: outlines and run-length masks, drawn as rasters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from geoprep.errors import LabelError, UsageError
from geoprep.labels.classes import classes_text, parse_classes
from geoprep.storage.local_files import make_folder
from geoprep.store.classes import BACKGROUND_NAME

AUTO: Final = "auto"
_START: Final = 4096
_KEYS: Final = frozenset(("images", "annotations", "categories"))
_NOTES: Final = "notes.json"


@dataclass(frozen=True, slots=True)
class Coco:
    """A file of annotations; the value of a category in rasters is its place from 1."""

    path: Path
    categories: tuple[str, ...]
    document: Mapping[str, Any]

    @classmethod
    def open(cls, labels: str | None) -> Coco | None:
        """Return a local file in the format of COCO; None for other labels."""
        path = Path(labels or "").expanduser()
        if path.suffix.lower() != ".json" or not path.is_file():
            return None
        with path.open("rb") as file:
            if b"FeatureCollection" in file.read(_START):
                return None
        try:
            document = json.loads(path.read_bytes())
        except ValueError:  # the reader of vectors says so
            return None
        if not isinstance(document, dict) or not document.keys() >= _KEYS:
            return None
        with _fields_named(path):
            names = tuple(str(category["name"]) for category in document["categories"])
        return cls(path, names, document)

    def classes(self, text: str | None) -> str:
        """Return classes with the values of their categories, from ``auto`` or names."""
        given = [{"name": name} for name in self.categories] if text == AUTO else text
        if given is None:
            raise UsageError(
                f"{self.path} has instances of {', '.join(self.categories)[:200]}: give `classes` "
                "auto, or some of these names"
            )
        classes = parse_classes(given)
        if classes[0]["name"] != BACKGROUND_NAME:
            classes = parse_classes([{"name": BACKGROUND_NAME}, *classes])
        known = {name: [str(value)] for value, name in enumerate(self.categories, 1)}
        known[BACKGROUND_NAME] = ["0"]
        for one in classes:
            one["values"] = known.get(one["name"], [])
            if not one["values"]:
                raise UsageError(
                    "classes",
                    f": {self.path} has no category {one['name']}; it has "
                    f"{', '.join(self.categories)[:200]}",
                )
        return classes_text(classes)

    def rasters(self, folder: Path) -> list[str]:
        """Draw the annotations of every image in a folder, unless it is there; return notes."""
        if not (folder / _NOTES).is_file():
            make_folder(folder.parent)
            temporary = TemporaryDirectory(prefix=".", dir=folder.parent)
            with temporary as part, _fields_named(self.path):
                notes = self._draw(Path(part, "new"))
                Path(part, "new", _NOTES).write_text(json.dumps(notes))
                Path(part, "new").replace(folder)
        said: list[str] = json.loads((folder / _NOTES).read_text())
        return said

    def _draw(self, folder: Path) -> list[str]:
        import rasterio

        from geoprep.quiet import no_georeference_warning

        of_image: dict[Any, list[Mapping[str, Any]]] = {}
        for annotation in self.document["annotations"]:
            of_image.setdefault(annotation["image_id"], []).append(annotation)
        numbers = {one["id"]: i for i, one in enumerate(self.document["categories"], 1)}
        dtype = np.uint8 if len(numbers) < 256 else np.uint16
        counts = Counter[str]()
        for image in self.document["images"]:
            values = np.zeros((image["height"], image["width"]), dtype)
            _draw_instances(values, of_image.get(image["id"], []), numbers, counts, self.path)
            name = PurePosixPath(image["file_name"])
            parts = [part for part in name.parts if part not in ("/", "..")]
            file = folder.joinpath(*parts).with_suffix(".png")
            make_folder(file.parent)
            shape = {"height": values.shape[0], "width": values.shape[1]}
            with (
                no_georeference_warning(),
                rasterio.open(file, "w", "PNG", count=1, dtype=dtype, **shape) as out,
            ):
                out.write(values, 1)
        if counts["boxes"] and counts["boxes"] == sum(map(len, of_image.values())):
            raise LabelError(
                f"{self.path}: its annotations are boxes, which are no outlines: give one with "
                "polygons or masks (segmentation)"
            )
        texts = {
            "boxes": "{} instances without an outline are left out",
            "crowd": "{} instances are crowds (iscrowd), drawn as their class",
            "overlap": "{} pixels have instances of several classes; smaller instances count",
        }
        return [
            f"{self.path}: {text.format(f'{counts[key]:,}')}"
            for key, text in texts.items()
            if counts[key]
        ]


@contextmanager
def _fields_named(path: Path) -> Iterator[None]:
    """Turn the lack of a field, or a number of no image or category, into LabelError."""
    try:
        yield
    except (KeyError, TypeError) as error:
        raise LabelError(
            f"{path}: has fields that the format of COCO does not ({error!r}), or lacks some. Each "
            "image needs id, file_name, width and height; each annotation image_id and category_id "
            "of the file; each category id and name"
        ) from error


def _draw_instances(
    values: NDArray[Any],
    instances: list[Mapping[str, Any]],
    numbers: Mapping[Any, int],
    counts: Counter[str],
    path: Path,
) -> None:
    """Draw instances into the values of an image, smaller ones over larger ones, and count."""
    masks = []
    for one in instances:
        mask = _mask(one, values.shape, path)
        counts["boxes"] += mask is None
        counts["crowd"] += bool(one.get("iscrowd"))
        if mask is not None:
            masks.append((int(mask.sum()), numbers[one["category_id"]], mask))
    for _, number, mask in sorted(masks, key=lambda one: -one[0]):
        counts["overlap"] += int(((values[mask] != 0) & (values[mask] != number)).sum())
        values[mask] = number


def _mask(one: Mapping[str, Any], shape: tuple[int, ...], path: Path) -> NDArray[np.bool_] | None:
    """Return the pixels of an instance, bool (y, x); None without an outline."""
    try:
        from pycocotools import mask as coco_mask
    except ImportError as error:
        raise UsageError(
            "instances in the format of COCO need pycocotools: pip install 'geoprep[coco]'"
        ) from error
    segmentation = one.get("segmentation")
    if not segmentation:
        return None
    try:
        packed = segmentation
        if isinstance(segmentation, list) or isinstance(segmentation["counts"], list):
            packed = coco_mask.frPyObjects(segmentation, *shape)
        if isinstance(packed, list):
            packed = coco_mask.merge(packed)
        mask: NDArray[np.bool_] = coco_mask.decode(packed).astype(bool)
        if mask.shape != shape:
            raise ValueError(
                f"{mask.shape[1]} x {mask.shape[0]} pixels, of {shape[1]} x {shape[0]}"
            )
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise LabelError(
            f"{path}: the segmentation of instance {one.get('id')} is not readable ({error}). "
            "Correct it, or leave the instance out"
        ) from error
    return mask
