"""Finds the scenes of a SpaceNet city in a folder, an archive or a bucket.

Every source yields a list of (name, address) pairs. `_pair_up` matches images and labels by area
and number, so the rules are the same for all sources.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path, PurePosixPath

from geoprep.errors import SourceError
from geoprep.sources.cities import (
    PRODUCTS,
    SPEED_LABELS,
    City,
    FileRole,
    canonical_product,
    directions,
    file_role,
)
from geoprep.sources.city_folders import TooManyFoldersError, city_files
from geoprep.sources.extraction import extract
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.sources.synthetic import synthetic_notes
from geoprep.sources.tar import index_tar, is_archive, is_compressed
from geoprep.storage import is_remote, list_remote, member_address, s3_address

SOURCE_VARIABLE = "GEOPREP_DATA"


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the city: its role, its path within the source, and its address."""

    role: FileRole
    name: PurePosixPath
    address: str


@dataclass(slots=True)
class _Listing:
    """The files of the city in one source."""

    origin: str
    files: list[_File] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Number of images that were not extracted from an archive, by product.
    passed_over: dict[str, int] = field(default_factory=dict)

    def add(self, city: City, pairs: Iterable[tuple[str, str]]) -> None:
        for name, address in pairs:
            role = file_role(city, name)
            if role is not None:
                self.files.append(_File(role, PurePosixPath(name), address))


def find_scenes(
    city: City,
    source: str | Path | None = None,
    product: str = "PS-RGB",
    *,
    cache: Path | None = None,
    report: Callable[[int, int], None] | None = None,
) -> SourceScenes:
    """Find a city's images of one product, and the road label of each.

    Parameters
    ----------
    source
        A folder (the city's own or one above it), a tar archive, plain or gzipped, or an S3
        prefix. None: the first of ``$GEOPREP_DATA``, ``./data`` and ``.`` that has files of the
        city.
    product
        Imagery product, in its current or old spelling.
    cache
        Folder to extract a gzipped archive into; None: a folder beside the archive.
    report
        Called during the extraction with the bytes read and their total.

    Raises
    ------
    SourceError
        No data (the message lists the places searched and the ways to get data), no such product
        (it lists the available ones), or two files for one scene.
    """
    product = canonical_product(product)
    search = _Search(city, product, cache, report)
    if source is not None:
        listing = search.at(str(source))
        if not listing.files and not listing.passed_over:
            raise SourceError(_no_data(city, product, [_seen(listing)]))
        return _pair_up(city, listing, product)
    looked = []
    for place in _usual_places():
        if not Path(place).is_dir() and not is_remote(place) and not is_archive(Path(place)):
            looked.append(f"{Path(place).absolute()} (does not exist)")
            continue
        try:
            listing = search.at(place)
        except TooManyFoldersError as error:
            looked.append(str(error))
            continue
        if listing.files or listing.passed_over:
            return _pair_up(city, listing, product)
        looked.append(_seen(listing))
    raise SourceError(_no_data(city, product, looked))


def _pair_up(city: City, listing: _Listing, product: str) -> SourceScenes:
    """Match files by number: one image per scene, and its best label."""
    images = _by_number(f for f in listing.files if f.role.kind == "image")
    labels = _by_number(f for f in listing.files if f.role.kind == "label")
    chosen = {
        number: _one(files, f"image of {city.scene_id(number)}")
        for number, all_files in images.items()
        if (files := [f for f in all_files if f.role.product == product])
    }
    if not chosen:
        raise SourceError(_no_product(city, listing, images, len(labels), product))
    scenes = [
        Scene(
            city.scene_id(number),
            image.address,
            _label_of(image, labels.get(number, []), city.scene_id(number)),
        )
        for number, image in sorted(chosen.items())
    ]
    orphans = [min(labels[n], key=_preference).address for n in sorted(labels) if n not in chosen]
    notes = (*listing.notes, *synthetic_notes(scenes, listing.origin))
    return SourceScenes(tuple(scenes), listing.origin, product, tuple(orphans), notes=notes)


def _by_number(files: Iterable[_File]) -> dict[int, list[_File]]:
    result: dict[int, list[_File]] = {}
    for file in files:
        result.setdefault(file.role.number, []).append(file)
    return result


def _preference(file: _File) -> tuple[int, str]:
    return file.role.rank, file.address


def _one(files: Sequence[_File], what: str) -> _File:
    """Return the file of the lowest rank, which must be the only one."""
    lowest = min(file.role.rank for file in files)
    best = sorted((f for f in files if f.role.rank == lowest), key=_preference)
    if len(best) > 1:
        raise SourceError(
            f"there are two files for the {what}: {best[0].address} and {best[1].address}. Give "
            "the folder that holds the right one as `source`, or remove the other."
        )
    return best[0]


def _label_of(image: _File, labels: Sequence[_File], scene: str) -> str | None:
    """Return the label of an image: one with speeds if possible, the nearest in the folder tree."""
    if not labels:
        return None
    lowest = min(file.role.rank for file in labels)
    best = [file for file in labels if file.role.rank == lowest]
    shared = {f.address: _shared_folders(f.name, image.name) for f in best}
    nearest = max(shared.values())
    return _one([f for f in best if shared[f.address] == nearest], f"label of {scene}").address


def _shared_folders(a: PurePosixPath, b: PurePosixPath) -> int:
    pairs = zip(a.parent.parts, b.parent.parts, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(frozen=True, slots=True)
class _Search:
    """Search for a product of a city in one place after the other."""

    city: City
    product: str
    cache: Path | None
    report: Callable[[int, int], None] | None

    def at(self, place: str) -> _Listing:
        if is_remote(place):
            return self._bucket(place)
        path = Path(place).expanduser().absolute()
        if path.is_dir():
            return self._folder(path)
        if not path.exists():
            raise SourceError(_no_data(self.city, self.product, [f"{path} (does not exist)"]))
        if not is_archive(path):
            raise SourceError(
                f"{path}: not a folder and not a .tar or .tar.gz archive. Give the folder that "
                f"holds {self.city.aoi}, or use `images` for other imagery."
            )
        listing = _Listing(str(path))
        self._archive(path, listing)
        return listing

    def _bucket(self, place: str) -> _Listing:
        address = s3_address(place)
        if is_archive(Path(address)):
            raise SourceError(
                f"{address}: an archive cannot be read in place over the network. Download it, or "
                f"give the folder of single files, such as s3://.../{self.city.folder}"
            )
        listing = _Listing(address)
        listing.add(self.city, ((one.address, one.address) for one in list_remote(address)))
        return listing

    def _folder(self, path: Path) -> _Listing:
        if canonical_product(path.name) in PRODUCTS:  # the labels are in a folder beside this one
            path = path.parent
        tree = city_files(path, self.city)
        listing = _Listing(str(path), notes=tree.notes)
        listing.add(self.city, ((found, found) for found in tree.files))
        unpacked = any(file.role.kind == "image" for file in listing.files)
        speeds = any(file.role.has_speeds for file in listing.files)
        for archive in tree.archives:
            # SpaceNet 3 has its speed labels in a separate archive, needed for unpacked images too.
            if not unpacked or (SPEED_LABELS in archive and not speeds):
                self._archive(Path(archive), listing)
            else:
                listing.notes.append(f"not read, since there are extracted files: {archive}")
        return listing

    def _archive(self, archive: Path, listing: _Listing) -> None:
        if not is_compressed(archive):
            members = index_tar(archive)
            pairs = [(m.name, member_address(archive, m.name, m.offset, m.size)) for m in members]
            listing.add(self.city, pairs)
            return
        into = self.cache or archive.with_name(f"{archive.name}.unpacked")
        done = extract(archive, self.city, self.product, into, self.report)
        for product, count in done.products.items():
            listing.passed_over[product] = listing.passed_over.get(product, 0) + count
        listing.add(self.city, ((name, str(into.absolute() / name)) for name in done.files))


def _usual_places() -> list[str]:
    named = os.environ.get(SOURCE_VARIABLE)
    if not named:
        return ["data", "."]
    return [named if is_remote(named) else str(Path(named).expanduser()), "data", "."]


def _seen(listing: _Listing) -> str:
    return "; ".join([listing.origin, *listing.notes])


def _no_data(city: City, product: str, looked: Sequence[str]) -> str:
    places = "\n".join(f"  {place}" for place in looked)
    return (
        f"no SpaceNet files of {city.place.replace('_', ' ')} ({city.aoi}) found. Looked in:\n"
        f"{places}\n{directions(city, product)}"
    )


def _no_product(
    city: City, listing: _Listing, images: dict[int, list[_File]], labels: int, product: str
) -> str:
    there = dict(listing.passed_over)
    for files in images.values():
        for name in {file.role.product for file in files} - listing.passed_over.keys():
            there[name] = there.get(name, 0) + 1
    if there:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(there.items()))
        # Bands 5, 3, 2 of the multispectral product are red, green and blue (WorldView-3).
        other = "PS-MS with `bands` 5,3,2" if "PS-MS" in there else min(there)
        return (
            f"{listing.origin} has no {product} images of {city.aoi}. It has images of {listed}: "
            f"choose one of them as `product`, such as {other}."
        )
    return (
        f"{listing.origin} has {labels} road labels of {city.aoi} but no images.\n"
        f"{directions(city, product)}"
    )
