"""One key per scene, from the names of its image, labels, prediction or table rows."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Final

_SPACENET: Final = re.compile(r"(aoi_\d+_.+)_((?:img|chip)\d+)")
_CONTENT: Final = re.compile(
    r"_(?:geojson_roads_speed|geojson_roads|spacenetroads|ps-rgb|ps-ms|pan|ms|mul-pansharpen"
    r"|rgb-pansharpen|mul|classes)(?=_)"
)
_SUFFIXES: Final = frozenset(
    {".geojson", ".json", ".gpkg", ".graphml", ".parquet", ".shp", ".fgb", ".csv"}
    | {".tif", ".tiff", ".png", ".p", ".pkl", ".pickle"}
)


def scene_key(name: str) -> str:
    """Return the part that all names of one scene share, in lower case.

    For a SpaceNet chip this is its area and number, whether the name is that of an image product, a
    label or an ImageId. For any other file it is the stem.

    Parameters
    ----------
    name
        File name, path or ImageId.

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
