"""One name for one scene, whatever the file or table that it is named in."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Final

_SPACENET: Final = re.compile(r"(aoi_\d+_.+)_((?:img|chip)\d+)")
_CONTENT: Final = re.compile(
    r"_(?:geojson_roads_speed|geojson_roads|spacenetroads|ps-rgb|ps-ms|pan|ms|mul-pansharpen"
    r"|rgb-pansharpen|mul)(?=_)"
)
_SUFFIXES: Final = {".geojson", ".json", ".gpkg", ".shp", ".fgb", ".csv", ".tif", ".tiff", ".png"}


def scene_key(name: str) -> str:
    """Return what the names of one scene have in common, in lower case.

    Of a SpaceNet chip: its area and number, whichever product, label folder or ImageId the name
    comes from. Of any other file: its stem.

    Examples
    --------
    >>> scene_key("SN5_roads_test_public_AOI_9_San_Juan_PS-RGB_chip98.tif")
    'aoi_9_san_juan_chip98'
    >>> scene_key("AOI_9_San_Juan_chip98"), scene_key("maps/Town.geojson")
    ('aoi_9_san_juan_chip98', 'town')
    """
    path = PurePath(name)
    stem = (path.stem if path.suffix.lower() in _SUFFIXES else path.name).lower()
    found = _SPACENET.search(_CONTENT.sub("", stem))
    return f"{found[1]}_{found[2]}" if found else stem
