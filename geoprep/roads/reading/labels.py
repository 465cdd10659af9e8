"""Road labels to a network: lines with speeds as the label code finds them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, transformer, utm_crs
from geoprep.errors import LabelError
from geoprep.labels import Schema, SpeedRule, read_road_table
from geoprep.roads.network import RoadNetwork
from geoprep.roads.reading.lines import network_from_lines

_NOWHERE: Final = {"geometry not finite", "geometry out of range"}


def read_labels(
    path: str | os.PathLike[str],
    *,
    schema: Schema = "auto",
    crs: str | None = None,
    as_published: bool = False,
) -> RoadNetwork:
    """Return the roads of a label file as a network in metres.

    Speeds are inferred from type, lanes and surface; what no car drives on is left out. Points
    merge where their coordinates in the file are exactly equal, whatever their heights; connected
    parts with no way of 5 m are left out.

    Parameters
    ----------
    path
        GeoJSON, or any line file that GDAL reads.
    schema
        How road attributes are spelled.
    crs
        Projected CRS in metres; by default the UTM zone of the middle of the roads.
    as_published
        Read the file as the reference program of APLS does, to compare with published figures:
        every line is a road (NaN is the speed of a footway), but a piece that two lines share is
        none.

    Raises
    ------
    LabelError
        The file cannot be used, or a road in it lies nowhere.
    """
    path = Path(path)
    try:
        table = read_road_table(path, SpeedRule(schema))
    except OSError as error:
        raise LabelError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    lost = sum(_NOWHERE.intersection(notes) != set() for notes in table.notes)
    if lost:
        raise LabelError(
            f"{path}: {lost} roads have coordinates that are no numbers, or no place on Earth: "
            "mend or remove them, for a score without them would be that of other roads"
        )
    linear = shapely.get_dimensions(table.lines) == 1  # no network is told by the area of a road
    lines, mph = table.lines[linear], table.mph[table.feature[linear]]
    if not as_published:
        drivable = np.isfinite(mph)
        lines, mph = lines[drivable], mph[drivable]
    target = crs or zone_of_lines(lines, table.crs)
    if target is None:
        return network_from_lines(lines, mph, None)
    move = transformer(table.crs, target)

    def to_metres(xy: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.column_stack(move.transform(xy[:, 0], xy[:, 1]))

    return network_from_lines(lines, mph, target, to_metres=to_metres, as_published=as_published)


def zone_of_lines(lines: NDArray[np.object_], crs: str) -> str | None:
    """Return the UTM zone of the middle of some lines, None if there are none."""
    if not len(lines):
        return None
    west, south, east, north = shapely.total_bounds(lines).tolist()
    lon, lat = transformer(crs, LONLAT).transform((west + east) / 2, (south + north) / 2)
    return utm_crs(lon, lat)
