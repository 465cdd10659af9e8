"""GeoJSON (RFC 7946): edges in longitude and latitude."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import shapely

from geoprep.crs import LONLAT, reproject, utm_crs
from geoprep.errors import SourceError
from geoprep.roads.formats.tables import edge_columns, network_of
from geoprep.roads.network import RoadNetwork

_DECIMALS: Final = 8
"""Of a degree: a millimetre."""
_PLANE_DECIMALS: Final = 3


def write_geojson(network: RoadNetwork, path: Path) -> None:
    """Write a feature per edge.

    A network without a place on the ground keeps its metres, which RFC 7946 does not provide for:
    the file then says ``"crs": null``, as the specification before it had it.
    """
    lines, decimals = network.lines, _PLANE_DECIMALS
    if network.crs is not None:
        lines, decimals = reproject(network.lines, network.crs, LONLAT), _DECIMALS
    columns = edge_columns(network)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    # One feature a line: large files stay readable, and a diff shows which edge moved.
    features = [
        json.dumps(
            {
                "type": "Feature",
                "geometry": {
                    "type": "LineString",
                    "coordinates": np.round(shapely.get_coordinates(line), decimals).tolist(),
                },
                "properties": dict(zip(columns, map(_number, row), strict=True)),
            }
        )
        for line, row in zip(lines, rows, strict=True)
    ]
    head = '{"type": "FeatureCollection", ' + ('"crs": null, ' if network.crs is None else "")
    path.write_text(head + '"features": [\n' + ",\n".join(features) + "\n]}\n", encoding="utf-8")


def _number(value: float) -> float | None:
    return None if value != value else round(value, 4)  # JSON has no NaN


def read_geojson(path: Path) -> RoadNetwork:
    """Read a network into the UTM zone of its middle; one without a place into its own plane.

    Raises
    ------
    SourceError
        It is no GeoJSON of edges.
    """
    try:
        document = json.loads(path.read_bytes())
        features = document["features"]
        lines = np.array([_line(feature) for feature in features], object)
        rows = [feature["properties"] or {} for feature in features]
    except (ValueError, KeyError, TypeError, shapely.errors.ShapelyError) as error:
        raise SourceError(f"{path}: not readable as GeoJSON of lines: {error}") from error
    columns = {name: np.array([row.get(name) for row in rows], object) for name in _named(rows)}
    if not len(lines):
        columns = dict.fromkeys(("from_node", "to_node", "speed_mph"), np.empty(0))
    crs = None
    if document.get("crs", "") is not None and len(lines):
        west, south, east, north = shapely.total_bounds(lines).tolist()
        if not (-180 <= west <= east <= 180 and -90 <= south <= north <= 90):
            raise SourceError(f"{path}: its coordinates are no longitudes and latitudes")
        crs = utm_crs((west + east) / 2, (south + north) / 2)
        lines = reproject(lines, LONLAT, crs)
    return network_of(path, columns, lines, crs)


def _line(feature: dict[str, Any]) -> shapely.LineString:
    geometry = feature["geometry"]
    if geometry["type"] != "LineString":
        raise ValueError(f"a {geometry['type']} among the lines")
    return shapely.LineString(np.array(geometry["coordinates"], float)[:, :2])


def _named(rows: list[dict[str, Any]]) -> list[str]:
    """Return the properties that every feature has."""
    return [name for name in (rows[0] if rows else {}) if all(name in row for row in rows)]
