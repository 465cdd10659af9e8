"""Road networks read from SpaceNet's CSV table, which has lines in pixels of each image."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, transformer, utm_crs
from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid
from geoprep.roads.network import RoadGraph
from geoprep.roads.reading.line_network import ToMetres, network_from_lines
from geoprep.roads.reading.scene_names import scene_key
from geoprep.speed import MPS_PER_MPH

_SMALL_PX: Final = 10.0
_SMALL_NODES: Final = 30
_Row = tuple[str, float]  # line as WKT, speed in mph


def read_csv(
    path: str | os.PathLike[str],
    *,
    grids: Mapping[str, Grid] | None = None,
    pixel_size_m: float | tuple[float, float] | None = None,
) -> dict[str, RoadGraph]:
    """Return the network of every image in a SpaceNet table, by scene key.

    The table has the columns ``ImageId`` and ``WKT_Pix``, and may have ``length_m`` and
    ``travel_time_s``, from which speeds follow. Both conventions of ImageId are read. A row
    ``LINESTRING EMPTY`` is an image without roads. Pixels count from the upper left corner of an
    image, x to the right and y down. Connected components without a path of 10 pixels are left out.

    Parameters
    ----------
    path
        CSV file.
    grids
        Georeferenced grids of images by scene key (`scene_key`). Networks of these images are in
        the UTM zone of the middle of the image.
    pixel_size_m
        Pixel size in metres, or width and height of a pixel, for images without a grid. Their
        networks are in a plane with x to the right, y up, and 0 at the upper left corner.

    Raises
    ------
    LabelError
        The table cannot be read; the message gives the line.
    UsageError
        An image has neither a grid nor a pixel size.
    """
    path = Path(path)
    grids = grids or {}
    networks = {}
    for key, rows in _rows(path).items():
        lines, speed = _lines(rows, f"{path}, {key}")
        if key in grids:
            networks[key] = _on_ground(lines, speed, grids[key])
        elif pixel_size_m is not None or not len(lines):
            networks[key] = _in_plane(lines, speed, pixel_size_m or 1.0)
        else:
            raise UsageError(
                f"{path}: the roads of {key} are in pixels. Give `images`, or `pixel_size` in "
                "metres."
            )
    return networks


def _rows(path: Path) -> dict[str, list[_Row]]:
    images: dict[str, list[_Row]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            if not {"ImageId", "WKT_Pix"} <= set(table.fieldnames or ()):
                raise LabelError(
                    f"{path}: its first line does not name the columns ImageId and WKT_Pix"
                )
            for row in table:
                rows = images.setdefault(scene_key(row["ImageId"] or ""), [])
                text = (row["WKT_Pix"] or "").strip()
                if "EMPTY" not in text.upper():
                    rows.append((text, _speed(row, f"{path}, line {table.line_num}")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabelError(f"{path}: not readable as CSV: {error}") from error
    return images


def _lines(rows: list[_Row], where: str) -> tuple[NDArray[np.object_], NDArray[np.float64]]:
    """Return the lines of an image and their speeds; a row with several parts gives several."""
    try:
        with np.errstate(invalid="ignore"):  # "nan" as a coordinate
            geometry = shapely.from_wkt(np.array([text for text, _ in rows], object))
    except shapely.errors.GEOSException as error:
        raise LabelError(f"{where}: a WKT_Pix is not a geometry ({error})") from error
    lines, row = shapely.get_parts(shapely.force_2d(geometry), return_index=True)
    if (shapely.get_type_id(lines) != shapely.GeometryType.LINESTRING).any():
        raise LabelError(f"{where}: a WKT_Pix is not a LINESTRING")
    if not np.isfinite(shapely.get_coordinates(lines)).all():
        raise LabelError(f"{where}: a WKT_Pix has coordinates that are not finite")
    return lines, np.array([speed for _, speed in rows], np.float64)[row]


def _speed(row: Mapping[str, str | None], where: str) -> float:
    """Return the speed in mph from length and travel time of a row; NaN if either is missing."""
    length, time = row.get("length_m"), row.get("travel_time_s")
    if not length or not time:
        return math.nan
    try:
        metres, seconds = float(length), float(time)
    except ValueError as error:
        raise LabelError(f"{where}: length_m and travel_time_s must be numbers") from error
    if not (0 < metres < math.inf and 0 < seconds < math.inf):
        return math.nan
    return metres / seconds / MPS_PER_MPH


def _on_ground(lines: NDArray[np.object_], speed: NDArray[np.float64], grid: Grid) -> RoadGraph:
    crs = _utm_crs_of_image(grid)
    move = transformer(grid.crs, crs)
    a, b, c, d, e, f = grid.transform[:6]

    def to_metres(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        x, y = xy.T
        return np.column_stack(move.transform(a * x + b * y + c, d * x + e * y + f))

    return _network(lines, speed, to_metres, crs)


def _utm_crs_of_image(grid: Grid) -> str:
    """Return the CRS of the UTM zone of the middle of an image."""
    middle = grid.transform * (grid.width / 2, grid.height / 2)
    return utm_crs(*transformer(grid.crs, LONLAT).transform(*middle))


def _in_plane(
    lines: NDArray[np.object_],
    speed: NDArray[np.float64],
    pixel_size_m: float | tuple[float, float],
) -> RoadGraph:
    scale = np.broadcast_to(pixel_size_m, 2) * [1, -1]
    return _network(lines, speed, lambda xy: xy * scale, None)


def _network(
    lines: NDArray[np.object_], speed: NDArray[np.float64], to_metres: ToMetres, crs: str | None
) -> RoadGraph:
    return network_from_lines(
        lines,
        speed,
        crs,
        to_metres=to_metres,
        min_path=_SMALL_PX,
        small_nodes=_SMALL_NODES,
        min_path_in_lines=True,
    )
