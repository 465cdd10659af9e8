"""Finds the scenes of a user's own files: any imagery, any labels."""

import glob
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NoReturn

from geoprep.errors import SourceError, UsageError
from geoprep.sources.archives import is_member, split_in_place
from geoprep.sources.band_files import BandFiles, bands_noted, scenes_of_bands
from geoprep.sources.label_matching import (
    IMAGE_SUFFIXES,
    LABEL_SUFFIXES,
    NamedImage,
    assigned,
    is_called_label,
)
from geoprep.sources.scene import MANIFEST, Scene, SourceScenes, natural_key, synthetic_notes
from geoprep.sources.stac_items import SWAPPED, is_items, read_items
from geoprep.storage.addresses import (
    image_in_file,
    is_file_name,
    is_remote,
    is_web,
    s3_address,
)
from geoprep.storage.places import list_remote
from geoprep.texts import counted

_ZARR = "zarr.json", ".zgroup", ".zarray"
"""Files of a folder of Zarr, of its versions 3 and 2."""
_WILD = re.compile(r"[*?\[]")


def images_and_labels(
    images: Sequence[str],
    labels: str | None = None,
    *,
    masks: bool = False,
    asset: str | None = None,
    label_name: str | None = None,
    leave_out: Callable[[str], bool] = lambda _: False,
    folders: bool = True,
) -> SourceScenes:
    """Match images and labels of a user's own files.

    ``images`` are files, folders and patterns of either (``scenes/*.tif``, ``**`` for any depth),
    also ``s3://``. A scene's id is the stem of its file, preceded by as many folder names as are
    needed to make it unique (``north_scene1``). ``labels`` is one existing file: labels of all
    scenes. A folder or a pattern: one file per scene, with the name of its image (see
    `label_matching`; ``label_name`` is a pattern such as ``mask_{name}``), or georeferenced rasters
    of other names that together are the label of all scenes. ``masks``: labels are rasters.

    Files of STAC items count as the images that ``asset`` of the items is, with the items' ids.
    Several assets, with commas between them, are the bands of one image, as are the files of
    ``*_{B02,B03}.jp2``. ``leave_out`` tells which
    files that a pattern or folder matches are no images. Without ``folders`` in ids, two images of
    one stem are refused: an id does not depend on the other images then.
    """
    bands = dict[str, BandFiles]()
    addresses = dict[str, None]()
    for pattern in images:
        of_bands = scenes_of_bands(pattern, lambda one: _matching(one, IMAGE_SUFFIXES))
        bands |= of_bands or {}
        found = _image_files(pattern) if of_bands is None else [*of_bands]
        addresses |= dict.fromkeys(
            address
            for address in found or _none_found(pattern, IMAGE_SUFFIXES, "images")
            if address == str(Path(pattern).absolute()) or not leave_out(address)
        )
    if vectors := [a for a in addresses if a.lower().endswith(LABEL_SUFFIXES) and not is_items(a)]:
        raise SourceError(f"`images`: {vectors[0]} is a vector file. {SWAPPED}")
    files = [] if labels is None else _label_files(labels, masks=masks)
    # Images and labels in one folder are distinguished by their names.
    twice = set(files) & set(addresses)
    called = {file for file in twice if is_called_label(file)}
    files = [file for file in files if file not in twice - called]
    listed = [address for address in addresses if is_items(address)]
    if asset and not listed:
        raise UsageError("asset", "applies to STAC items only: leave it out")
    items = read_items(listed, asset)
    plain = _identified(
        [address for address in addresses if address not in called and not is_items(address)],
        folders=folders,
    )
    listed_images = sorted([*plain, *items.images], key=lambda image: natural_key(image.id))
    if twins := {image.id for image in plain} & {item.id for item in items.images}:
        raise SourceError(f"`images`: {min(twins)} is an image and a STAC item. Leave one out")
    for image in listed_images:
        if not is_file_name(image.id):
            raise SourceError(f"{image.address}: its id {image.id!r} cannot name a file: change it")
    shared_label, owned, orphans, said = _labels_for(
        listed_images, labels, files, label_name, masks=masks
    )
    scenes = tuple(
        Scene(
            image.id,
            bands[image.address].address if image.address in bands else image.address,
            owned.get(image.id),
        )
        for image in listed_images
    )
    named = {image.id: bands[image.address].stated for image in plain if image.address in bands}
    said += bands_noted([image.address for image in plain if image.id not in named])
    origin = ", ".join(images)
    return SourceScenes(
        scenes,
        origin,
        orphan_labels=tuple(orphans),
        shared_label=shared_label,
        notes=(*synthetic_notes(scenes, origin), *items.notes, *said),
        datetimes=items.times,
        stated=items.stated | named,
    )


def _image_files(pattern: str) -> list[str]:
    """Return the images that match a pattern, or where there are none the files of STAC items."""
    if is_web(pattern) and is_items(pattern):
        return [pattern]
    if not (matching := _matching(pattern, IMAGE_SUFFIXES)):
        _require_no_zarr(pattern)
        matching = _plain_json(pattern)
    return matching or _none_found(pattern, IMAGE_SUFFIXES, "images")


def _require_no_zarr(pattern: str) -> None:
    """Refuse folders of Zarr: GDAL and xarray disagree about which of their values are nodata."""
    for path in map(Path, glob.glob(str(Path(pattern).expanduser()))):  # noqa: PTH207  as below
        if any((path / name).is_file() for name in _ZARR):
            raise SourceError(
                f"{path} is a folder of Zarr, which is not read as an image: GDAL takes its fill "
                'value for nodata, xarray an attribute. Write a GeoTIFF of it: python -c "import '
                f"xarray, rioxarray; xarray.open_zarr('{path}', decode_coords='all')['VARIABLE']"
                ".rio.to_raster('image.tif')\""
            )


def _plain_json(pattern: str) -> list[str]:
    """Return the ``.json`` files that match: vectors or STAC items, where no other files do."""
    return [file for file in _matching(pattern, (".json",)) if Path(file).name != MANIFEST]


def _label_files(labels: str, *, masks: bool) -> list[str]:
    """Return the label files; rasters from a folder without vectors, or first if ``masks``."""
    if masks and (rasters := _matching(labels, IMAGE_SUFFIXES)):
        return rasters
    vectors = _matching(labels, LABEL_SUFFIXES) or _plain_json(labels)
    rasters = [] if vectors or is_remote(labels) else _matching(labels, IMAGE_SUFFIXES)
    if rasters and not any(is_called_label(file) for file in rasters):
        raise SourceError(
            f"`labels` {labels}: no vector files, but rasters such as {Path(rasters[0]).name}. If "
            "they are masks, give their meaning by `classes`, without options of vectors such as "
            "`class_field`, or of roads by `label_values` or `label_speeds`"
        )
    if not vectors and not rasters and (boxes := _matching(labels, (".xml", ".txt"))):
        raise SourceError(
            f"`labels` {labels}: {Path(boxes[0]).name} is of the format of Pascal VOC or YOLO, "
            "whose boxes are no outlines. Give masks, polygons, or COCO's with segmentation"
        )
    wanted = (*IMAGE_SUFFIXES, *LABEL_SUFFIXES) if masks else LABEL_SUFFIXES
    return vectors or rasters or _none_found(labels, wanted, "labels")


def _labels_for(
    images: Sequence[NamedImage],
    labels: str | None,
    files: Sequence[str],
    label_name: str | None,
    *,
    masks: bool,
) -> tuple[str | None, dict[str, str], list[str], list[str]]:
    """Return the road file of all scenes, the labels by scene id, others without one, and notes."""
    if labels is None:
        return None, {}, [], []
    if is_member(labels) or (not is_remote(labels) and _is_one(Path(labels).expanduser())):
        if masks or files[0].lower().endswith(IMAGE_SUFFIXES):
            return None, {image.id: files[0] for image in images}, [], []
        return files[0], {}, [], []
    owned, orphans, said = assigned(files, images, label_name)
    if owned:
        return None, owned, orphans, said
    first = f" ({PurePosixPath(files[0]).name}; an image: {images[0].id})" if files else ""
    raise SourceError(
        f"`labels` {labels}: none of its {counted(len(files), 'file')} has the name of a scene"
        f"{first}. Give them the names of the images, or a pattern such as `label_name` "
        "'mask_{name}'; give the path of one file for all scenes (of masks, rio merge --nodata "
        "VALUE FILES all.tif writes it), or a `city` for SpaceNet's names"
    )


def _none_found(pattern: str, suffixes: tuple[str, ...], option: str) -> NoReturn:
    """Raise SourceError for a pattern that matches no file."""
    if not is_remote(pattern) and Path(pattern).expanduser().is_dir():
        below = _matching(f"{glob.escape(pattern.rstrip('/'))}/*", suffixes)
        if below:
            raise SourceError(
                f"`{option}` {pattern}: no file in this folder, but {len(below):,} in folders "
                f"below it. Give the quoted pattern '{pattern.rstrip('/')}/*'"
            )
    raise SourceError(
        f"`{option}` {pattern}: matches no file (relative to {Path.cwd()}; files used from a "
        f"folder: {', '.join(suffixes)}). Check the path, and put patterns in quotes"
    )


def _matching(pattern: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files that match a pattern, as absolute paths or addresses in natural order.

    A folder, or a pattern of folders, means the files in them.
    """
    if is_remote(pattern):
        hits, pattern = _objects, s3_address(pattern).rstrip("/")
        if not _WILD.search(pattern):
            if PurePosixPath(pattern).suffix:
                return [pattern]
            pattern += "/*"
    else:
        path = Path(pattern).expanduser()
        if split_in_place(pattern):
            hits = _members
        elif _is_one(path):  # named without a pattern, whatever its suffix
            return [str(path.absolute())]
        elif inside := image_in_file(pattern):
            before, file, _ = inside
            rest = pattern.removeprefix(before)
            return [before + rest.replace(file, str(Path(file).absolute()), 1)]
        else:
            hits, pattern = _local_files, glob.escape(str(path)) if path.is_dir() else str(path)
    for glob_pattern in (pattern, f"{pattern}/*"):
        if taken := [hit for hit in hits(glob_pattern) if _taken(hit, glob_pattern, suffixes)]:
            return sorted(taken, key=natural_key)
    return []


def _local_files(pattern: str) -> list[str]:
    """Return matching files, and broken links, which fail their scenes with a reason."""
    hits = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207  Path.glob takes no absolute pattern
    return [
        str(hit.absolute())
        for hit in hits
        if _is_one(hit) or (hit.is_symlink() and not hit.exists())
    ]


def _is_one(path: Path) -> bool:
    """Return whether a path is a file, or a folder that is read as one: a file geodatabase."""
    return path.is_file() or (path.suffix.lower() == ".gdb" and path.is_dir())


def _taken(address: str, pattern: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether a match has the right suffix; any suffix that the pattern spells is right."""
    spelt = PurePosixPath(pattern).suffix
    return bool(spelt and not _WILD.search(spelt)) or address.lower().endswith(suffixes)


def _identified(addresses: Sequence[str], *, folders: bool) -> list[NamedImage]:
    """Give each image a unique id: its stem, preceded by folder names where stems are equal."""
    stems: dict[str, list[str]] = {}
    for address in addresses:
        stems.setdefault(_path(address).stem, []).append(address)
    result: dict[str, NamedImage] = {}
    for stem, same in stems.items():
        if len(same) > 1 and not folders:
            raise SourceError(
                f"`images`: {' and '.join(same[:2])} would both be {stem}.tif. Predict the images "
                "of each folder into an `out` of their own, or rename one"
            )
        for depth in range(len(_path(same[0]).parts)):
            images = [_named(address, depth) for address in same]
            ids = {image.id for image in images}
            if len(ids) == len(same) and not ids & result.keys():
                break
        else:
            raise SourceError(
                f"`images`: {' and '.join(same[:2])} would both be scene {stem}: rename one."
            )
        result.update({image.id: image for image in images})
    return list(result.values())


def _named(address: str, depth: int) -> NamedImage:
    # Ids are stored and printed: bytes of a name that are not UTF-8 are escaped.
    path = _path(address.encode("utf-8", "backslashreplace").decode())
    folders = path.parent.parts[-depth:] if depth else ()
    return NamedImage("_".join([*folders, path.stem]), address, folders)


def _path(address: str) -> PurePosixPath:
    """Return the path that names a scene: of one image of a file with the name of this image."""
    if not (inside := image_in_file(address)):
        return PurePosixPath(address)
    _, file, name = inside
    path = PurePosixPath(file)
    return path.with_name(f"{path.stem}_{name.replace('/', '_')}{path.suffix}")


def _objects(pattern: str) -> list[str]:
    """Return the objects that match a pattern, or have its name; ``*`` stays within a folder."""
    folder = _WILD.split(pattern, maxsplit=1)[0].rpartition("/")[0]
    return _fitting([file.address for file in list_remote(folder)], pattern)


def _members(pattern: str) -> list[str]:
    """Return the members of an archive that match a pattern by `archive_in_place`."""
    members, inside = split_in_place(pattern) or ({}, "")
    return [members[name] for name in _fitting([*members], inside)]


def _fitting(names: Sequence[str], pattern: str) -> list[str]:
    """Return the name that is the pattern, or those that match it."""
    if pattern in names:
        return [pattern]
    return [name for name in names if _fits(name.split("/"), pattern.split("/"))]


def _fits(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a pattern; ``**`` is any number of them."""
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_fits(parts[i:], wanted[1:]) for i in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and _fits(parts[1:], wanted[1:])
