"""Names of files: suffixes by kind of content, and the scene that a name means."""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import Final

VECTOR_SUFFIXES: Final = (".gpkg", ".geojson", ".json", ".shp", ".fgb", ".osm", ".pbf")
"""Files of lines that GDAL reads."""
NETWORK_SUFFIXES: Final = (".gpkg", ".geojson", ".parquet")
"""Formats that networks are written in."""
TABLE_SUFFIX: Final = ".csv"
READ_SUFFIXES: Final = tuple(dict.fromkeys((*NETWORK_SUFFIXES, ".graphml", *VECTOR_SUFFIXES)))
"""Formats that networks are read from."""
ROAD_SUFFIXES: Final = (*READ_SUFFIXES, TABLE_SUFFIX)
GEOTIFF_SUFFIXES: Final = (".tif", ".tiff")
RASTER_SUFFIXES: Final = (*GEOTIFF_SUFFIXES, ".png", ".jp2", ".vrt", ".img")

_PRODUCT: Final = re.compile(r"(?:PS-RGB|PS-MS|MS|PAN|RGB-PanSharpen|MUL-PanSharpen)_")
_SPACENET: Final = re.compile(r"(aoi_\d+_.+)_((?:img|chip)\d+)")
_CONTENT: Final = re.compile(
    r"_(?:geojson_roads_speed|geojson_roads|spacenetroads|ps-rgb|ps-ms|pan|ms|mul-pansharpen"
    r"|rgb-pansharpen|mul|classes)(?=_)"
)
_SUFFIXES: Final = frozenset((*ROAD_SUFFIXES, *RASTER_SUFFIXES))


def scene_key(name: str) -> str:
    """Return the part that all names of one scene share, in lower case: the stem of other files.

    Examples
    --------
    >>> scene_key("SN5_roads_test_public_AOI_9_San_Juan_PS-RGB_chip98.tif")
    'aoi_9_san_juan_chip98'
    >>> scene_key("AOI_9_San_Juan_chip98"), scene_key("maps/Town.geojson")
    ('aoi_9_san_juan_chip98', 'town')
    """
    path = PurePath(name)
    stem = (path.stem if path.suffix.lower() in _SUFFIXES else path.name).lower()
    chip = _SPACENET.search(_CONTENT.sub("", stem))
    return f"{chip[1]}_{chip[2]}" if chip else stem


def image_id(name: str) -> str:
    """Return the ImageId of a file: its stem without the image product.

    Examples
    --------
    >>> image_id("SN5_roads_test_public_AOI_9_San_Juan_PS-RGB_chip98.tif")
    'SN5_roads_test_public_AOI_9_San_Juan_chip98'
    """
    return _PRODUCT.sub("", Path(name).stem)
