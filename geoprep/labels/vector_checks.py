"""Checks of vector files and coordinates that GDAL reads without an error, as something else."""

from __future__ import annotations

import struct
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
import pyproj
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, is_geographic, transformer
from geoprep.errors import LabelError

_SHAPE_HEADER: Final = 100
_TABLE_HEADER: Final = 32
_CODE_PAGE: Final = 29
"""Byte of the header of a dBASE table that states the encoding; 0 if it does not."""
OUT_OF_RANGE: Final = "geometry out of range"
NOT_FINITE: Final = "geometry not finite"
_MAX_LON_DEG: Final = 360.0
_MAX_LAT_DEG: Final = 90.0


def bytes_of(path: Path | bytes, most: int = -1) -> bytes:
    """Return the contents of a file, or the first ``most`` bytes of it; contents as they are."""
    if isinstance(path, bytes):
        return path
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise LabelError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def require_crs(crs: str, name: str) -> None:
    """Refuse a file whose coordinates cannot be located on Earth."""
    try:
        transformer(crs, LONLAT)
    except pyproj.exceptions.ProjError as error:  # also for a local CRS, or one of the Moon
        stated = f"a CRS that is not on Earth ({crs[:60]})" if crs else "no CRS"
        raise LabelError(
            f"{name}: has {stated}; write the right one with {crs_command(name)} (a "
            "Shapefile needs its .prj file in the same folder)"
        ) from error


def crs_command(name: str) -> str:
    """Return the command that states the right CRS of a file."""
    return f"ogr2ogr -a_srs EPSG:CODE fixed.gpkg {PurePosixPath(name).name}"


def require_whole_shapefile(path: Path) -> bool:
    """Refuse a Shapefile without its attributes, or shorter than its headers say.

    Returns whether it states the encoding of its text, in a .cpg file or by its code page.

    GDAL reads both without an error: as roads without type, and as roads without geometry.
    """
    table = next((p for p in map(path.with_suffix, (".dbf", ".DBF")) if p.is_file()), None)
    if table is None:
        raise LabelError(
            f"{path}: its attribute file {path.stem}.dbf is missing; put it in the same folder"
        )
    header = bytes_of(path, _SHAPE_HEADER)
    if len(header) == _SHAPE_HEADER:  # GDAL refuses anything shorter
        # ESRI Shapefile Technical Description (1998), page 3: the length, in words of 16 bits.
        _require_size(path, struct.unpack(">i", header[24:28])[0] * 2)
    _require_size(table, _TABLE_HEADER)
    header = bytes_of(table, _TABLE_HEADER)
    # dBASE III: number of rows, bytes of the header, bytes per row.
    rows, start, row = struct.unpack("<IHH", header[4:12])
    _require_size(table, start + rows * row)
    return header[_CODE_PAGE] != 0 or any(
        map(Path.is_file, map(path.with_suffix, (".cpg", ".CPG")))
    )


def _require_size(path: Path, expected: int) -> None:
    size = path.stat().st_size
    if size < expected:
        raise LabelError(
            f"{path}: truncated, {size} of {expected} bytes are there; download it again"
        )


def bad_lines(lines: NDArray[np.object_], crs: str) -> dict[int, str]:
    """Return the lines with invalid coordinates: index -> what is wrong with them."""
    xy, line = shapely.get_coordinates(lines, return_index=True)
    finite = np.isfinite(xy).all(axis=1)
    inside = finite
    if is_geographic(crs):
        inside = (np.abs(xy) <= (_MAX_LON_DEG, _MAX_LAT_DEG)).all(axis=1)
    if inside.all():
        return {}
    bad = dict.fromkeys(line[~inside].tolist(), OUT_OF_RANGE)
    return bad | dict.fromkeys(line[~finite].tolist(), NOT_FINITE)
