"""SpaceNet's road cities as data: names, folders, file names, archives, addresses.

Chip counts, road lengths and checksums are those of TorchGeo's SpaceNet data sets, archive sizes
those of the bucket's listing (in GiB).
"""

import re
from dataclasses import dataclass
from typing import Literal

from geoprep.errors import UsageError
from geoprep.texts import suggestion

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
    """Return a city by name, whatever its case and separators, or by AOI (``AOI_7_Moscow``)."""
    known = {"las_vegas": CITIES["vegas"]}
    for city in CITIES.values():
        known |= dict.fromkeys((city.name, city.aoi.lower(), f"aoi_{city.aoi_id}"), city)
    wanted = re.sub(r"[\W_]+", "_", name.lower()).strip("_")
    if wanted in known:
        return known[wanted]
    hint = suggestion(wanted, CITIES) or "."
    raise UsageError(f"unknown city {name!r}{hint} Known cities: {', '.join(CITIES)}.")


def canonical_product(name: str) -> str:
    """Return the current name of a product given in any case or in its old spelling."""
    return _SPELLINGS.get(name.lower(), name)


# FOLDER/NAME, where the folder is called after the product: SN5_roads_train_..., MUL-PanSharpen_...
_FILE = re.compile(
    r"(?:(?P<folder>[^/]*)/)?(?!\.)(?:(?P<mission>SN\d+)_)?[^/]*?AOI_(?P<aoi>\d+)_[^/]*?"
    r"(?:img|chip)(?P<number>\d+)\.(?:(?P<image>tiff?)|(?:geo)?json)",
    re.IGNORECASE,
)


def city_file(city: City, path: str) -> tuple[str, int] | None:
    """Return what a file of a city is, and its number; None for files of no role.

    It is an image of the product that its folder is called after, or has speed labels or plain
    ones. SpaceNet 2 has the same areas and numbers with labels of buildings, so files that name
    another mission do not belong to the city. Folders are separated by ``/``.
    """
    text = "/".join(path.split("/")[-2:])
    match = _FILE.fullmatch(text)
    if match is None or int(match["aoi"]) != city.aoi_id:
        return None
    if match["mission"] and match["mission"].upper() != city.mission:
        return None
    if match["image"]:
        return canonical_product(match["folder"] or ""), int(match["number"])
    # The first word counts: the other one is a part of it.
    kind = next((name for name in (SPEED_LABELS, PLAIN_LABELS) if name in text.lower()), None)
    return (kind, int(match["number"])) if kind else None


def directions(city: City) -> str:
    """Return lines with the ways to get this city's data, or a synthetic stand-in for it."""
    return "\n".join([
        "Ways to get data:",
        f"  the real city, no account needed: geoprep download --city {city.name}",
        f"  a synthetic city: geoprep synth --city {city.name} --out data/",
        "  archives of the public SpaceNet bucket (put them into data/): geoprep cities",
        f"  or read the bucket in place, with this `source`: s3://{BUCKET}/{city.folder}",
    ])  # fmt: skip
