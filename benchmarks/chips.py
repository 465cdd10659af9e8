"""Chips to measure on: synthetic ones drawn for the purpose, or real ones, as many as wanted."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from geoprep.errors import SourceError
from geoprep.sources import CITIES, City, Scene, find_scenes, get_city
from geoprep.synth import synthesise

KINDS = {"uint16": "vegas", "uint8": "moscow"}
"""Kind of chip to a city whose PS-RGB product is like it: SpaceNet 3's 11 bits, SpaceNet 5's 8."""

SEED = 5
REAL = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Where real chips are looked for."""
_NUMBER = re.compile(r"(img|chip)\d+(?=\.\w+$)")


@dataclass(frozen=True, slots=True)
class Chips:
    """Some chips of one kind in a folder of SpaceNet's layout.

    Attributes
    ----------
    kind
        ``uint16``, ``uint8``, or ``real``.
    origin
        What the pixels are, in words.
    """

    kind: str
    city: City
    folder: Path
    count: int
    origin: str

    def scenes(self) -> tuple[Scene, ...]:
        """Return the addresses of images and labels."""
        return find_scenes(self.city, self.folder).scenes


def synthetic(work: Path, kind: str, count: int, size: int, workers: int) -> Chips:
    """Draw chips.

    Parameters
    ----------
    work
        Folder for them.
    kind
        One of `KINDS`.
    count
        How many.
    size
        Pixels per side; SpaceNet's have 1300.
    workers
        Threads that draw.
    """
    city, folder = get_city(KINDS[kind]), work / kind
    synthesise(folder, city, scenes=count, seed=SEED, size=size, workers=workers)
    origin = f"{count} synthetic {kind} chips of {size} x {size} x 3, LZW"
    return Chips(kind, city, folder, count, origin)


def real(work: Path, source: Path, count: int) -> Chips | None:
    """Return real chips, each in the store as often as it takes; None where there are none.

    Parameters
    ----------
    work
        Folder for links to them.
    source
        Folder in SpaceNet's layout; the first city found in it counts.
    count
        How many.
    """
    for city in CITIES.values():
        try:
            scenes = find_scenes(city, source).scenes
        except SourceError:
            continue
        origin = f"{min(len(scenes), count)} real chip(s) of {city.aoi}"
        found = Chips("real", city, source, len(scenes), origin)
        return linked(found, work / "real", count)
    return None


def linked(chips: Chips, folder: Path, count: int) -> Chips:
    """Return any number of chips as links to some, under new numbers: it takes no disk."""
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
