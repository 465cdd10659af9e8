"""Finds the scenes of a SpaceNet city in a folder, an archive or a bucket.

Every source is a list of addresses; images and labels belong together by their numbers.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from geoprep.errors import SourceError, UsageError
from geoprep.sources.archives import is_archive, members_of
from geoprep.sources.cities import (
    PLAIN_LABELS,
    PRODUCTS,
    SPEED_LABELS,
    City,
    canonical_product,
    city_file,
    directions,
)
from geoprep.sources.local_copies import download_copy
from geoprep.sources.scene import MANIFEST, Scene, SourceScenes, synthetic_notes
from geoprep.storage.addresses import is_remote, s3_address
from geoprep.storage.places import list_remote

SOURCE_VARIABLE = "GEOPREP_DATA"
MAX_FOLDERS = 5_000
_SKIPPED = re.compile(r"\..*|.*\.zarr(\..*)?|.*\.unpacked|__pycache__|node_modules|site-packages")
Report = Callable[[int, int], None]


class TooManyFoldersError(SourceError):
    """A folder tree is too large to be searched."""


def find_scenes(
    city: City,
    source: str | Path | None = None,
    product: str = "PS-RGB",
    *,
    copies: Path | None = Path("spacenet.source"),
    report: Report | None = None,
) -> SourceScenes:
    """Find a city's images of one product, and the road label of each; or raise SourceError.

    ``source`` is a folder (the city's own or one above it), a tar archive, plain or gzipped, or an
    S3 prefix. None: the first of ``$GEOPREP_DATA``, ``./data`` and ``.`` that has files of the
    city. ``copies`` is the folder for the copy of an archive that is on a server; None: nothing is
    downloaded or unpacked. ``report`` is called with the bytes read of a compressed archive, and
    all its bytes.
    """
    product = canonical_product(product)
    looked = []
    usual = [*filter(None, [os.environ.get(SOURCE_VARIABLE)]), "data", "."]
    for address in [str(source)] if source is not None else usual:
        try:
            files, origin, notes = _files(city, address, product, copies, report)
        except TooManyFoldersError as error:
            if source is not None:
                raise
            files, origin, notes = [], str(error), []
        if files:
            return _scenes(city, files, product, origin, notes)
        looked.append("; ".join([origin, *notes]))
    places = "\n".join(f"  {line}" for line in looked)
    raise SourceError(
        f"no SpaceNet files of {city.place.replace('_', ' ')} ({city.aoi}) found. Looked in:\n"
        f"{places}\n{directions(city)}"
    )


def _scenes(
    city: City, files: Sequence[str], product: str, origin: str, notes: list[str]
) -> SourceScenes:
    images, labels = images_and_roads(city, files, product, origin)
    scenes = [
        Scene(city.scene_id(number), image, labels.get(number))
        for number, image in sorted(images.items())
    ]
    orphans = tuple(labels[number] for number in sorted(labels) if number not in images)
    notes = [*notes, *synthetic_notes(scenes, origin)]
    return SourceScenes(tuple(scenes), origin, product, orphans, notes=tuple(notes))


def images_and_roads(
    city: City, files: Iterable[str], product: str, origin: str
) -> tuple[dict[int, str], dict[int, str]]:
    """Return the images of a product and the road labels by number, with speeds where there are.

    Raises SourceError if there is no such image, or two files for one number.
    """
    of_content: dict[str, dict[int, list[str]]] = {}
    for address in dict.fromkeys(files):
        if role := city_file(city, address):
            of_content.setdefault(role[0], {}).setdefault(role[1], []).append(address)
    labels = of_content.pop(PLAIN_LABELS, {}) | of_content.pop(SPEED_LABELS, {})
    if product not in of_content:
        counts = {name: len(numbers) for name, numbers in of_content.items()}
        raise SourceError(_no_product(city, counts, len(labels), product, origin))
    return _single(city, of_content[product], "image"), _single(city, labels, "label")


def _single(city: City, of_number: dict[int, list[str]], kind: str) -> dict[int, str]:
    for number, same in of_number.items():
        if len(same) > 1:
            raise SourceError(
                f"there are two files for the {kind} of {city.scene_id(number)}: {same[0]} and "
                f"{same[1]}. Give the folder that holds the right one as `source`, or remove the "
                "other."
            )
    return {number: file for number, (file,) in of_number.items()}


def _no_product(city: City, there: dict[str, int], labels: int, product: str, origin: str) -> str:
    if not there:
        return f"{origin} has {labels} road labels of {city.aoi} but no images.\n{directions(city)}"
    listed = ", ".join(f"{name} ({count})" for name, count in sorted(there.items()))
    # Bands 5, 3, 2 of the multispectral product are red, green and blue (WorldView-3).
    other = "PS-MS with `bands` 5,3,2" if "PS-MS" in there else min(there)
    return (
        f"{origin} has no {product} images of {city.aoi}. It has images of {listed}: choose one of "
        f"them as `product`, such as {other}."
    )


def _files(
    city: City, place: str, product: str, copies: Path | None, report: Report | None
) -> tuple[list[str], str, list[str]]:
    """Return the addresses of a city's files in a place, the place, and notes for the user."""

    def members(archive: Path) -> list[str]:
        def is_needed(name: str) -> bool:
            role = city_file(city, name)
            return role is not None and role[0] in (product, PLAIN_LABELS, SPEED_LABELS)

        return members_of(archive, product, is_needed, report, in_place=copies is None)

    if is_remote(place):
        address = s3_address(place)
        if is_archive(address):
            if copies is None:
                return [], f"{address} (an archive on a server)", []
            return _of(city, members(download_copy(address, copies))), address, []
        return _of(city, (file.address for file in list_remote(address))), address, []
    path = Path(place).expanduser().absolute()
    if not path.exists():
        return [], f"{path} (does not exist)", []
    if not path.is_dir():
        if not is_archive(path.name):
            raise SourceError(
                f"{path}: not a folder and not a .tar or .tar.gz archive. Give the folder that "
                f"holds {city.aoi}, or use `images` for other imagery."
            )
        return _of(city, members(path)), str(path), []
    if canonical_product(path.name) in PRODUCTS:  # the labels are in a folder beside this one
        path = path.parent
    notes: list[str] = []
    below = [*files_below(path, notes)]
    files = _of(city, below)
    kinds = {role[0] for file in files if (role := city_file(city, file))}
    unpacked = bool(kinds - {PLAIN_LABELS, SPEED_LABELS})
    for archive in (Path(file) for file in below if _is_archive_of(file, city)):
        # SpaceNet 3 has its speed labels in a separate archive, needed for unpacked images too.
        if not unpacked or (SPEED_LABELS in archive.name and SPEED_LABELS not in kinds):
            files += _of(city, members(archive))
        else:
            notes.append(f"not read, since there are extracted files: {archive}")
    return files, str(path), notes


def _of(city: City, addresses: Iterable[str]) -> list[str]:
    return [address for address in addresses if city_file(city, address)]


def _is_archive_of(path: str, city: City) -> bool:
    name = path.rpartition("/")[2]
    named = re.match(r"(?:(SN\d+)_)?.*?AOI_(\d+)_", name, re.IGNORECASE)
    return (
        is_archive(name)
        and named is not None
        and int(named[2]) == city.aoi_id
        and (named[1] or city.mission).upper() == city.mission
    )


def refuse_real(folder: Path, city: City) -> None:
    """Raise UsageError if a folder for a synthetic city holds other files of the same city."""
    own = folder / city.aoi
    drawn = (own / MANIFEST).is_file()
    with suppress(TooManyFoldersError):
        for path in files_below(folder, []):
            if drawn and Path(path).is_relative_to(own):
                continue
            if city_file(city, path) or _is_archive_of(path, city):
                raise UsageError(
                    f"{folder} holds files of {city.aoi} that are not synthetic ({path}): choose "
                    "another folder with `out`"
                )


def files_below(root: Path, notes: list[str]) -> Iterator[str]:
    """Yield all files in a folder and those below it, but for hidden ones and stores."""
    seen: set[str] = set()

    def note(error: OSError) -> None:
        notes.append(f"not searched: {error.filename} ({error.strerror})")

    for folder, below, names in os.walk(root, onerror=note, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link to a folder above
            below.clear()
            continue
        seen.add(real)
        if len(seen) > MAX_FOLDERS:
            raise TooManyFoldersError(
                f"{root}: more than {MAX_FOLDERS:,} folders under it. Give the folder that holds "
                "the city as `source`."
            )
        below[:] = sorted(name for name in below if not _SKIPPED.fullmatch(name))
        yield from (f"{folder}/{name}" for name in sorted(names))
