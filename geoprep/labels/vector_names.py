"""Names of vector files, of their layers and of geometry types.

Apart from the reader of these files, which imports pyogrio and so pandas: most commands need
neither. GDAL prints its errors in all threads but the one that first imports pyogrio, so the reader
does so at its top, and not when a worker thread reads a file.
"""

from pathlib import Path, PurePosixPath
from typing import Final

GEOJSON_SUFFIXES: Final = (".geojson", ".json")
PARQUET_SUFFIXES: Final = (".parquet", ".geoparquet")
OSM_SUFFIXES: Final = (".osm", ".pbf")
OSM_LINES: Final = "lines"  # layer of the ways of OpenStreetMap data that are no areas
VECTOR_SUFFIXES: Final = (
    *(*GEOJSON_SUFFIXES, ".gpkg", ".shp", ".fgb", ".csv"),
    *(*PARQUET_SUFFIXES, *OSM_SUFFIXES, ".gdb", ".gdb.zip"),
    *(".geojsonl", ".geojsons", ".kml", ".kmz", ".gml", ".tab", ".mif", ".sqlite"),
)
"""Suffixes of files that are read as vectors when they are named as labels."""
_SHAPEFILE_PARTS: Final = (".dbf", ".prj", ".shx")

# Geometry types of layers as GDAL names them; None is a table without geometry. "Unknown" and
# "Geometry" may hold any type, lines included.
LINE_TYPES: Final = ("LineString", "Unknown", "Geometry")


def is_vector(label: str) -> bool:
    """Return whether a label is a vector file, by its name."""
    return PurePosixPath(label).name.lower().endswith(VECTOR_SUFFIXES)


def vector_parts(path: Path) -> list[Path]:
    """Return the files of a local vector file: itself, the others of a Shapefile, or a folder's."""
    if path.is_dir():  # a file geodatabase; programs leave locks in it
        return sorted(file for file in path.iterdir() if file.suffix != ".lock")
    parts = _SHAPEFILE_PARTS if path.suffix.lower() == ".shp" else ()
    return [path, *filter(Path.is_file, map(path.with_suffix, parts))]


def open_options(name: str) -> dict[str, str]:
    """Return the options that GDAL opens a file of some name with."""
    if not name.lower().endswith(OSM_SUFFIXES):
        return {}
    fields = {"CONFIG_FILE": str(Path(__file__).with_name("osm.ini"))}
    # Editors number new objects below 0, which GDAL's fast index of nodes refuses.
    return fields if name.lower().endswith(".pbf") else {**fields, "USE_CUSTOM_INDEXING": "NO"}
