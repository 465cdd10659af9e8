"""The table of edges that all file formats share: its columns, and the network made from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyproj
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, reproject, transformer, utm_crs
from geoprep.errors import SourceError
from geoprep.roads.formats.topology import ends_agree, network_from_ends
from geoprep.roads.network import RoadGraph

COLUMNS: Final = ("from_node", "to_node", "length_m", "speed_mph", "travel_time_s")
CONFIDENCE: Final = ("confidence_mean", "confidence_least")
"""Columns of networks that were traced from probabilities."""
_ROAD_ATTRIBUTES: Final = frozenset(
    {"highway", "fclass", "road_type", "lanes", "lane_number", "lane_numbe", "surface", "paved"}
    | {"inferred_speed_mph", "inferred_speed_mps"}
)
_CONFIDENCE_DIGITS: Final = 3
_SPEED_DIGITS: Final = 3
"""Speeds are written to 0.001 mph: an average of 54.99999999 is written as 55."""
_MOST_SCALE_ERROR: Final = 0.01


def edge_columns(network: RoadGraph) -> dict[str, NDArray[Any]]:
    """Return the columns of the edge table by name, int64 and float64; NaN where unknown."""
    values = (
        network.ends[:, 0],
        network.ends[:, 1],
        network.length_m,
        np.round(network.speed_mph, _SPEED_DIGITS),
        network.travel_time_s,
    )
    columns = dict(zip(COLUMNS, values, strict=True))
    if network.confidence is not None:
        shares = np.round(network.confidence, _CONFIDENCE_DIGITS).T
        columns |= dict(zip(CONFIDENCE, shares, strict=True))
    return columns


def are_network_fields(names: Collection[str]) -> bool:
    """Return whether a layer with these fields is a road network rather than labels.

    Labels also carry speeds, often outdated ones, beside the attributes that speeds follow from.
    """
    numbered = {"from_node", "to_node"} <= set(names)
    return "speed_mph" in names and (numbered or not _ROAD_ATTRIBUTES & set(names))


def network_of_table(
    path: Path,
    columns: Mapping[str, NDArray[Any]],
    lines: NDArray[np.object_],
    crs: str | None,
    nodes: NDArray[np.float64] | None = None,
) -> RoadGraph:
    """Return the network of a table of edges, with nodes rebuilt where they are missing or stale.

    Parameters
    ----------
    path
        The file, for error messages.
    columns
        ``speed_mph`` at least; ``from_node`` and ``to_node`` if the table has them.
    lines
        Object (edge,): LineStrings, or MultiLineStrings whose parts become edges.
    crs
        CRS of the lines; None if they are in a plane of metres.
    nodes
        float64 (node, 2): coordinates of the nodes in ``crs``; None: taken from the lines.

    Raises
    ------
    SourceError
        ``speed_mph`` is missing or no number, a geometry is not a line, or a coordinate is not
        finite.
    """
    if "speed_mph" not in columns:
        raise SourceError(
            f"{path}: has no field speed_mph, so it is not a road network. Write one with geoprep "
            "vectorize, or add the field."
        )
    kinds = shapely.get_type_id(lines)
    line = (kinds == shapely.GeometryType.LINESTRING) | (
        kinds == shapely.GeometryType.MULTILINESTRING
    )
    if not line.all() or shapely.is_empty(lines).any():
        wrong = int(np.argmax(~line | shapely.is_empty(lines)))
        raise SourceError(f"{path}: feature {wrong} is not a line. Remove it.")
    parts, part_of = shapely.get_parts(lines, return_index=True)
    try:
        speed = np.array(columns["speed_mph"], np.float64)[part_of]
    except (TypeError, ValueError) as error:
        raise SourceError(f"{path}: speed_mph is not a number: {error}") from error
    if not np.isfinite(shapely.get_coordinates(parts)).all():
        raise SourceError(f"{path}: has coordinates that are not finite")
    ends, confidence = _node_numbers(columns), _confidence(columns, part_of)
    metric = metric_crs(parts, crs)
    if crs is not None and metric is not None and metric != crs:
        parts = reproject(parts, crs, metric)
        if not np.isfinite(shapely.get_coordinates(parts)).all():
            raise SourceError(f"{path}: has coordinates outside the domain of its CRS")
        if nodes is not None:
            nodes = np.column_stack(transformer(crs, metric).transform(*nodes.T))
    if ends is not None and len(parts) == len(lines):
        if nodes is not None and ends_agree(parts, ends, nodes):
            return RoadGraph(nodes, ends, parts, speed, metric, confidence)
        ends, nodes = _nodes_of_ends(parts, ends)
        if ends_agree(parts, ends, nodes):
            return RoadGraph(nodes, ends, parts, speed, metric, confidence)
    return replace(network_from_ends(parts, speed, metric), confidence=confidence)


def _confidence(
    columns: Mapping[str, NDArray[Any]], part_of: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    """Return the confidence of every edge, float64 (edge, 2); None if the table has none."""
    try:
        shares = np.column_stack([columns[name] for name in CONFIDENCE]).astype(np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    return shares[part_of] if np.isfinite(shares).any() else None


def _node_numbers(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.int64] | None:
    """Return the nodes that every edge names, int64 (edge, 2); None if an edge names none."""
    try:
        numbers = np.column_stack([columns["from_node"], columns["to_node"]]).astype(np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    return numbers.astype(np.int64) if np.isfinite(numbers).all() else None


def _nodes_of_ends(
    lines: NDArray[np.object_], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return nodes numbered from 0 and their coordinates, from the lines that end at them."""
    numbers, compact = np.unique(ends, return_inverse=True)
    compact = compact.reshape(-1, 2).astype(np.int64)
    nodes = np.full((len(numbers), 2), np.nan)
    for side, point in ((0, 0), (1, -1)):
        nodes[compact[:, side]] = shapely.get_coordinates(shapely.get_point(lines, point))
    return compact, nodes


def metric_crs(lines: NDArray[np.object_], crs: str | None) -> str | None:
    """Return the CRS in which lengths of some lines can be measured in metres.

    That is their own CRS if it is projected, in metres, and true to scale within 1 % at the middle
    of the lines; else the UTM zone of the middle. Web Mercator, for example, makes roads in Moscow
    1.8 times as long.
    """
    if crs is None or not len(lines):
        return crs
    west, south, east, north = shapely.total_bounds(lines).tolist()
    lon, lat = transformer(crs, LONLAT).transform((west + east) / 2, (south + north) / 2)
    parsed = pyproj.CRS.from_user_input(crs)
    if parsed.is_projected and all(axis.unit_conversion_factor == 1 for axis in parsed.axis_info):
        scale = pyproj.Proj(parsed).get_factors(lon, lat)
        error = max(abs(scale.meridional_scale - 1), abs(scale.parallel_scale - 1))
        if not error > _MOST_SCALE_ERROR:
            return crs
    return utm_crs(lon, lat)


def crs_name(crs: object) -> str | None:
    """Return a CRS as ``EPSG:32611`` where it has a code, else as WKT; None if there is none."""
    if crs is None or crs == "":
        return None
    parsed = pyproj.CRS.from_user_input(crs)
    if parsed.is_engineering:
        return None  # GDAL's "undefined Cartesian": not georeferenced
    code = parsed.to_epsg()
    return f"EPSG:{code}" if code else str(parsed.to_wkt())
