"""SpaceNet's CSV table of roads: lines in pixels of each image, x to the right and y down."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import reproject
from geoprep.errors import LabelError, UsageError
from geoprep.grid import Grid, utm_crs_of
from geoprep.roads.formats.lines import ToMetres, network_of_labels
from geoprep.roads.names import scene_key
from geoprep.roads.network import Plane, RoadGraph
from geoprep.speed import MPS_PER_MPH
from geoprep.storage.output_files import replaced
from geoprep.texts import csv_cell

HEADER: Final = ("ImageId", "WKT_Pix", "length_m", "travel_time_s")
_SMALL_PX: Final = 10.0
_SMALL_NODES: Final = 30
_QUOTED = re.compile("^'(?=[=+@-])")
_Row = tuple[str, float]  # line as WKT, speed in mph


@dataclass(frozen=True, slots=True)
class ImageRoads:
    """The roads of one image: in the CRS of ``grid``, or in the plane of its pixels (x, y)."""

    image_id: str
    network: RoadGraph
    gsd_m: tuple[float, float]
    grid: Grid | None

    def pixel_lines(self) -> NDArray[np.object_]:
        """Return the lines in pixels."""
        network = self.network
        if self.grid is None or network.crs is None:
            return shapely.transform(network.lines, Plane(self.gsd_m).to_pixels)
        lines = reproject(network.lines, network.crs, self.grid.crs)
        return shapely.transform(lines, self.grid.to_pixels)


def write_csv(images: Iterable[ImageRoads], path: Path) -> dict[str, int]:
    """Write one row per edge; return the numbers of images and edges. Unknown times are empty."""
    seen: set[str] = set()
    edges = 0
    with replaced(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(HEADER)
        for image in images:
            if image.image_id in seen:
                raise UsageError(
                    f"{path}: two images have the ImageId {image.image_id}: rename one"
                )
            seen.add(image.image_id)
            table.writerows(_written_rows(image))
            edges += len(image.network.lines)
    return {"images": len(seen), "edges": edges}


def _written_rows(image: ImageRoads) -> list[tuple[str, str, str, str]]:
    if not len(image.network.lines):
        return [(csv_cell(image.image_id), "LINESTRING EMPTY", "0", "0")]
    texts = shapely.to_wkt(image.pixel_lines(), rounding_precision=3)
    lengths, times = image.network.length_m.tolist(), image.network.travel_time_s.tolist()
    return [
        (csv_cell(image.image_id), text, f"{length:.3f}", "" if math.isnan(time) else f"{time:.3f}")
        for text, length, time in zip(texts, lengths, times, strict=True)
    ]


def read_csv(
    path: str | os.PathLike[str],
    *,
    grids: Mapping[str, Grid] | None = None,
    pixel_size_m: float | None = None,
) -> dict[str, RoadGraph]:
    """Return the network of every image in a table, by scene key.

    Images with a grid (by scene key) are in the UTM zone of its middle, others in their own plane.
    Connected components without a path of 10 pixels are left out.
    """
    path = Path(path)
    grids = grids or {}
    networks = {}
    for key, rows in _rows(path).items():
        lines, speed = _lines(rows, f"{path}, {key}")
        crs: str | None = None
        to_metres: ToMetres
        if key in grids:
            crs = utm_crs_of(grids[key])
            to_metres = partial(grids[key].to_crs, crs=crs)
            wide, high = grids[key].gsd_m()
        elif pixel_size_m is None and len(lines):
            raise UsageError(
                f"{path}: the roads of {key} are in pixels. Give `images`, or `pixel_size` in "
                "metres."
            )
        else:
            wide = high = pixel_size_m or 1.0
            to_metres = Plane((wide, high)).to_metres
        networks[key] = network_of_labels(
            lines,
            speed,
            crs,
            to_metres=to_metres,
            min_path=_SMALL_PX * math.sqrt(wide * high),
            small_nodes=_SMALL_NODES,
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
                rows = images.setdefault(scene_key(_QUOTED.sub("", row["ImageId"] or "")), [])
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
