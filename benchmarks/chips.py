"""SpaceNet chips to measure on: synthetic ones, or links to real ones."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import rasterio
from rasterio.windows import Window

from geoprep.errors import SourceError
from geoprep.sources.cities import CITIES, City, get_city
from geoprep.sources.city_scenes import find_scenes
from geoprep.sources.scene import Scene
from geoprep.synth import synthesise

KINDS = {"uint16": "vegas", "uint8": "moscow"}
"""dtype to a city whose PS-RGB product has it: SpaceNet 3 has 11 bits, SpaceNet 5 has 8."""

SEED = 5
REAL = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Default folder of real chips."""
_NUMBER = re.compile(r"(img|chip)\d+(?=\.\w+$)")


@dataclass(frozen=True, slots=True)
class Chips:
    """Chips of one dtype in a folder of SpaceNet's layout.

    Attributes
    ----------
    kind
        ``uint16``, ``uint8``, or ``real``.
    origin
        Description of the pixels.
    """

    kind: str
    city: City
    folder: Path
    count: int
    origin: str

    def scenes(self) -> tuple[Scene, ...]:
        """Return the chips with the paths of images and labels."""
        return find_scenes(self.city, self.folder).scenes


def draw_chips(work: Path, kind: str, count: int, size: int, workers: int) -> Chips:
    """Return new synthetic chips.

    Parameters
    ----------
    work
        Folder to write to.
    kind
        Key of `KINDS`.
    count
        Number of chips.
    size
        Side of a chip in pixels; SpaceNet uses 1300.
    workers
        Number of threads.
    """
    city, folder = get_city(KINDS[kind]), work / kind
    synthesise(folder, city, scenes=count, seed=SEED, size=size, workers=workers)
    origin = f"{count} synthetic {kind} chips of {size} x {size} x 3, LZW"
    return Chips(kind, city, folder, count, origin)


def draw_mosaic(path: Path, side: int, dtype: str) -> Path:
    """Write a tiled GeoTIFF of ``side`` x ``side`` x 3 pixels of half a metre: fields and noise."""
    rng, top = np.random.default_rng(SEED), {"uint8": 240, "uint16": 3000}[dtype]
    place = {"crs": "EPSG:32637", "transform": rasterio.Affine(0.5, 0, 4e5, 0, -0.5, 6.2e6)}
    tiles = {"tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "deflate"}
    size = {"width": side, "height": side, "count": 3, "dtype": dtype}
    with rasterio.open(path, "w", driver="GTiff", **size, **place, **tiles) as file:
        for row in range(0, side, 512):
            rows = min(512, side - row)
            fields = rng.integers(1, top, (3, 32, side // 16 + 1)).repeat(16, 1).repeat(16, 2)
            noise = rng.integers(0, top // 50, (3, rows, side))
            values = (fields[:, :rows, :side] + noise).astype(dtype)
            file.write(values, window=Window(0, row, side, rows))
    return path


def find_real_chips(work: Path, source: Path, count: int) -> Chips | None:
    """Return links to real chips, repeated until there are enough; None if there are none.

    Parameters
    ----------
    work
        Folder for the links.
    source
        Folder in SpaceNet's layout; the first city found in it is used.
    count
        Number of links.
    """
    for city in CITIES.values():
        try:
            scenes = find_scenes(city, source).scenes
        except SourceError:
            continue
        origin = f"{min(len(scenes), count)} real chip(s) of {city.aoi}"
        found = Chips("real", city, source, len(scenes), origin)
        return link_chips(found, work / "real", count)
    return None


def link_chips(chips: Chips, folder: Path, count: int) -> Chips:
    """Return ``count`` chips that are links to the given ones, numbered from 0."""
    scenes = chips.scenes()
    for number in range(count):
        scene = scenes[number % len(scenes)]
        for address in filter(None, (scene.image, scene.label)):
            old = Path(address).resolve()
            name = _NUMBER.sub(rf"\g<1>{number}", old.name)
            new = folder / chips.city.aoi / old.parent.name / name
            new.parent.mkdir(parents=True, exist_ok=True)
            new.symlink_to(old)
    return replace(chips, folder=folder, count=count)
