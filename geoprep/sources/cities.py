"""SpaceNet's road cities as data: names, folders, file-name patterns, archives, addresses.

Sources of the figures: chip counts, road lengths and checksums are those of TorchGeo's SpaceNet
data sets, archive sizes those of the bucket's listing (in GiB). Nothing here reads a disk or a
network.
"""

import difflib
import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import PurePosixPath
from typing import Literal

from geoprep.errors import UsageError

BUCKET = "spacenet-dataset"
BUCKET_URL = f"https://{BUCKET}.s3.amazonaws.com"

# SpaceNet renamed its products in 2018; the SpaceNet 3 test archives still have the old names.
PRODUCTS: dict[str, tuple[str, ...]] = {
    "PAN": (),
    "MS": ("MUL",),
    "PS-MS": ("MUL-PanSharpen",),
    "PS-RGB": ("RGB-PanSharpen",),
}
_SPELLINGS = {
    spelling.lower(): product for product, old in PRODUCTS.items() for spelling in (product, *old)
}
SPEED_LABELS = "geojson_roads_speed"
PLAIN_LABELS = "geojson_roads"
OLDEST_LABELS = "spacenetroads"


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive of the public bucket; ``gib`` and ``md5`` are None if not published."""

    name: str
    holds: Literal["train", "test", "speed labels"]
    gib: float | None = None
    md5: str | None = None

    @property
    def url(self) -> str:
        """Return the address for a download with a browser or curl, without an account."""
        mission = self.name.partition("_")[0]
        return f"{BUCKET_URL}/spacenet/{mission}_roads/tarballs/{self.name}"


@dataclass(frozen=True, slots=True)
class City:
    """One SpaceNet area of interest.

    ``chips`` and ``road_km`` count labelled data only; ``example`` is the number of an existing
    chip (numbers have gaps).
    """

    name: str
    aoi_id: int
    place: str
    mission: Literal["SN3", "SN5"]
    chips: int
    road_km: int
    example: int
    archives: tuple[Archive, ...]

    @property
    def aoi(self) -> str:
        """Return the area's name as used in all paths, e.g. ``AOI_7_Moscow``."""
        return f"AOI_{self.aoi_id}_{self.place}"

    @property
    def token(self) -> str:
        """Return the word before the chip number in file names and scene ids."""
        return "img" if self.mission == "SN3" else "chip"

    @property
    def labelled(self) -> bool:
        """Return whether road labels were published for this city."""
        return self.chips > 0

    @property
    def folder(self) -> str:
        """Return the bucket's folder of single files, ending in a slash."""
        part = "train" if self.labelled else "test_public"
        return f"spacenet/{self.mission}_roads/{part}/{self.aoi}/"

    @property
    def label_folder(self) -> str:
        """Return the name of the folder that holds this city's labels."""
        return SPEED_LABELS if self.mission == "SN5" else PLAIN_LABELS

    def scene_id(self, number: int) -> str:
        """Return the id of one chip, unique over cities: ``AOI_7_Moscow_chip12``."""
        return f"{self.aoi}_{self.token}{number}"

    def file_name(self, content: str, number: int) -> str:
        """Return the current-generation file name of a product or a label folder."""
        part = "train" if self.labelled else "test_public"
        suffix = "geojson" if content.startswith(PLAIN_LABELS) else "tif"
        return f"{self.mission}_roads_{part}_{self.aoi}_{content}_{self.token}{number}.{suffix}"


class ImageRank(IntEnum):
    """Whether the folder of an image names its product."""

    IN_ITS_FOLDER = 0
    ELSEWHERE = 1


class LabelRank(IntEnum):
    """Kind of a label file, by its name or the name of its folder."""

    SPEED = 0
    SPEED_BY_TAIL_OR_FOLDER = 1
    PLAIN = 2
    OLDEST = 3


@dataclass(frozen=True, slots=True)
class FileRole:
    """Role of a file of a city. Of two files with one role and number, the lower rank counts."""

    kind: Literal["image", "label"]
    number: int
    product: str
    rank: ImageRank | LabelRank

    @property
    def has_speeds(self) -> bool:
        """Return whether this is a label with speeds."""
        return self.kind == "label" and self.rank < LabelRank.PLAIN


def _sn3(name: str, aoi_id: int, counts: tuple[int, int, int], md5s: tuple[str, str, str]) -> City:
    aoi = f"AOI_{aoi_id}_{name.title()}"
    train, speed, test = md5s
    archives = (
        Archive(f"SN3_roads_train_{aoi}.tar.gz", "train", md5=train),
        Archive(f"SN3_roads_train_{aoi}_{SPEED_LABELS}.tar.gz", "speed labels", md5=speed),
        Archive(f"SN3_roads_test_public_{aoi}.tar.gz", "test", md5=test),
    )
    return City(name, aoi_id, name.title(), "SN3", *counts, archives)


CITIES: dict[str, City] = {
    city.name: city
    for city in (
        _sn3("vegas", 2, (854, 3685, 0), (
            "06317255b5e0c6df2643efd8a50f22ae",
            "4acf7846ed8121db1319345cfe9fdca9",
            "e9eb2220888ba38cab175fc6db6799a2",
        )),
        _sn3("paris", 3, (257, 425, 101), (
            "c13baf88ee10fe47870c303223cabf82",
            "abc8199d4c522d3a14328f4f514702ad",
            "21098cfe471dba6208c92b37b8203ae9",
        )),
        _sn3("shanghai", 4, (1028, 3537, 371), (
            "ef3de027c3da734411d4333bee9c273b",
            "f1db36bd17b2be2281f5f7d369e9e25d",
            "2e7438b870ffd33d4453366db1c5b317",
        )),
        _sn3("khartoum", 5, (283, 1030, 21), (
            "46f327b550076f87babb5f7b43f27c68",
            "d969693760d59401a84bd9215375a636",
            "f367c79fa0fc1d38e63a0fdd065ed957",
        )),
        City("moscow", 7, "Moscow", "SN5", 1352, 3066, 996, (
            Archive("SN5_roads_train_AOI_7_Moscow.tar.gz", "train", 35.0,
                    "03082d01081a6d8df2bc5a9645148d2a"),
            Archive("SN5_roads_test_public_AOI_7_Moscow.tar.gz", "test", 5.8),
        )),
        City("mumbai", 8, "Mumbai", "SN5", 1016, 1951, 0, (
            Archive("SN5_roads_train_AOI_8_Mumbai.tar.gz", "train", 18.5,
                    "1ee20ba781da6cb7696eef9a95a5bdcc"),
            Archive("SN5_roads_test_public_AOI_8_Mumbai.tar.gz", "test", 3.2),
        )),
        City("san_juan", 9, "San_Juan", "SN5", 0, 0, 98, (
            Archive("SN5_roads_test_public_AOI_9_San_Juan.tar.gz", "test", 4.9,
                    "fc45afef219dfd3a20f2d4fc597f6882"),
        )),
    )
}  # fmt: skip


def get_city(name: str) -> City:
    """Return a city by name, whatever its case and separators, or by AOI (``AOI_7_Moscow``).

    Raises
    ------
    UsageError
        No such city; the message lists the known ones and the most similar name.
    """
    known = {key: city for city in CITIES.values() for key in _keys(city)}
    wanted = re.sub(r"[\W_]+", "_", name.lower()).strip("_")
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=1)
    hint = f" Did you mean {known[near[0]].name}?" if near else ""
    raise UsageError(f"unknown city {name!r}.{hint} Known cities: {', '.join(CITIES)}.")


def _keys(city: City) -> tuple[str, ...]:
    also = ("las_vegas",) if city.name == "vegas" else ()
    return (city.name, city.aoi.lower(), f"aoi_{city.aoi_id}", *also)


def canonical_product(name: str) -> str:
    """Return the current name of a product given in any case or in its old spelling."""
    return _SPELLINGS.get(name.lower(), name)


_NAME = re.compile(
    r"(?P<head>.*?)AOI_(?P<aoi>\d+)_(?P<body>.*?)(?P<token>img|chip)(?P<number>\d+)"
    r"(?P<tail>_speed)?\.(?P<suffix>tiff?|geojson|json)",
    re.IGNORECASE,
)
_MISSION = re.compile(r"(SN\d+)_", re.IGNORECASE)


def file_role(city: City, path: str) -> FileRole | None:
    """Return the role of a file of a city, by its name and the name of its folder; None: no role.

    Files are matched by area and number. SpaceNet 2 has the same areas and numbers with labels of
    buildings, so files that name another mission do not belong to the city.

    Parameters
    ----------
    path
        Path, archive member or object key with ``/`` between folders.
    """
    pure = PurePosixPath(path)
    match = _NAME.fullmatch(pure.name)
    if match is None or int(match["aoi"]) != city.aoi_id or pure.name.startswith("."):
        return None
    mission = _MISSION.match(pure.name)
    if mission is not None and mission[1].upper() != city.mission:
        return None
    if match["suffix"].lower().startswith("tif"):
        return None if match["tail"] else _image_role(match, pure)
    return _label_role(match, pure)


def _image_role(match: re.Match[str], pure: PurePosixPath) -> FileRole:
    folder = pure.parent.name
    words = pure.stem.lower().split("_")
    named = next((_SPELLINGS[word] for word in words if word in _SPELLINGS), None)
    base = re.split(r"[_.]", folder.lower())[0]
    if folder.lower() in _SPELLINGS:
        product, rank = named or _SPELLINGS[folder.lower()], ImageRank.IN_ITS_FOLDER
    elif base in _SPELLINGS:  # a derived product beside the others, such as PS-RGB_8bit
        product, rank = folder, ImageRank.IN_ITS_FOLDER
    else:
        product, rank = named or folder, ImageRank.ELSEWHERE
    return FileRole("image", int(match["number"]), product, rank)


def _label_role(match: re.Match[str], pure: PurePosixPath) -> FileRole | None:
    name, folder = pure.name.lower(), pure.parent.name.lower()
    if SPEED_LABELS in name:
        rank = LabelRank.SPEED
    elif (PLAIN_LABELS in name or OLDEST_LABELS in name) and (
        match["tail"] or folder.startswith(SPEED_LABELS)
    ):
        rank = LabelRank.SPEED_BY_TAIL_OR_FOLDER
    elif PLAIN_LABELS in name:
        rank = LabelRank.PLAIN
    elif OLDEST_LABELS in name:
        rank = LabelRank.OLDEST
    else:
        return None
    return FileRole("label", int(match["number"]), "", rank)


def directions(city: City, product: str = "PS-RGB") -> str:
    """Return lines with the ways to get this city's data, or a synthetic stand-in for it."""
    content = [product, city.label_folder] if city.labelled else [product]
    copies = [
        f"    aws s3 cp --no-sign-request s3://{BUCKET}/{city.folder}{name}/"
        f"{city.file_name(name, city.example)} data/{city.aoi}/{name}/"
        for name in content
    ]
    return "\n".join([
        "Ways to get data:",
        f"  the real city, no account needed: geoprep download --city {city.name}",
        f"  a synthetic city: geoprep synth --city {city.name} --out data/",
        "  archives of the public SpaceNet bucket (put them into data/):",
        *(_archive_line(archive) for archive in city.archives),
        "  one scene:",
        *copies,
        f"  or read the bucket in place, with this `source`: s3://{BUCKET}/{city.folder}",
    ])  # fmt: skip


def _archive_line(archive: Archive) -> str:
    size = "size not published" if archive.gib is None else f"{archive.gib} GiB"
    md5 = f", md5 {archive.md5}" if archive.md5 else ""
    return f"    {archive.url} ({archive.holds}, {size}{md5})"
