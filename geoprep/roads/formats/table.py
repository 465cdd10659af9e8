"""The table of edges that all formats and frames share, and the network made from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import crs_name, is_geographic, metric_crs, reproject
from geoprep.errors import SourceError
from geoprep.labels import ROAD_FIELDS
from geoprep.roads.formats.lines import network_from_lines
from geoprep.roads.graph import renumbered
from geoprep.roads.network import RoadGraph, line_ends

if TYPE_CHECKING:
    import geopandas as gpd

    from geoprep.labels import Features

CONFIDENCE: Final = ("confidence_mean", "confidence_least")
"""Columns of networks that were traced from probabilities."""
COLUMNS: Final = {
    "from_node": "u",
    "to_node": "v",
    "length_m": "length",
    "speed_mph": "speed_mph",
    "travel_time_s": "travel_time",
    **dict.fromkeys(CONFIDENCE, ""),
}
"""Columns of edges: their names in files, and those of osmnx in frames (empty: the same)."""
FRAME_NAMES: Final = {name: osmnx or name for name, osmnx in COLUMNS.items()}
_ROUNDED: Final = {"speed_mph", *CONFIDENCE}
"""Columns that files have rounded to three digits: an average of 54.99999999 is written as 55."""
_DIGITS: Final = 3
_ROAD_ATTRIBUTES: Final = ROAD_FIELDS - {"speed_mph"} | {"surface", "paved"}


def edge_frame(network: RoadGraph, *, rounded: bool = False) -> gpd.GeoDataFrame:
    """Return one row per edge, with the columns of files; NaN where unknown."""
    import geopandas as gpd

    values = [*network.ends.T, network.length_m, network.speed_mph, network.travel_time_s]
    values += [] if network.confidence is None else list(network.confidence.T)
    columns = dict(zip(COLUMNS, values, strict=False))
    if rounded:
        columns |= {name: np.round(columns[name], _DIGITS) for name in _ROUNDED & columns.keys()}
    return gpd.GeoDataFrame(columns, geometry=network.lines, crs=network.crs)


def are_network_fields(names: Collection[str]) -> bool:
    """Return whether a layer with these fields is a road network rather than labels.

    Labels also carry speeds, often outdated ones, beside the attributes that speeds follow from.
    """
    numbered = {"from_node", "to_node"} <= set(names)
    return "speed_mph" in names and (numbered or not _ROAD_ATTRIBUTES & set(names))


def edges_of_features(features: Features, crs: str | None) -> gpd.GeoDataFrame:
    """Return one row per line of a vector file, with the fields that were read."""
    import geopandas as gpd

    wrong = next((number for number, note in enumerate(features.notes) if note), None)
    if wrong is not None:
        raise SourceError(f"{features.name}: feature {wrong} is not a line. Remove it.")
    rows = [features.attributes[number] for number in features.feature.tolist()]
    return gpd.GeoDataFrame(rows, geometry=features.shapes, crs=crs)


def network_of_frame(name: object, frame: gpd.GeoDataFrame) -> RoadGraph:
    """Return the network of a frame of edges with the columns of files; ``name`` is for errors.

    1. Geometries are LineStrings, or MultiLineStrings whose parts become edges.
    2. The network is in the CRS of the frame if that is in true metres, else in a UTM zone.
    3. Nodes are those that the columns number; missing and stale numbers are made anew from the
       lines (`network_from_lines`, joined at their ends).
    """
    columns = {column: frame[column].to_numpy() for column in COLUMNS if column in frame}
    lines = np.asarray(shapely.force_2d(frame.geometry.to_numpy()), object)
    if "speed_mph" not in columns and len(lines):
        raise SourceError(
            f"{name}: has no field speed_mph, so it is not a road network. Write one with geoprep "
            "vectorize, or add the field."
        )
    of_lines = (shapely.GeometryType.LINESTRING, shapely.GeometryType.MULTILINESTRING)
    wrong = ~np.isin(shapely.get_type_id(lines), of_lines) | shapely.is_empty(lines)
    if wrong.any():
        raise SourceError(f"{name}: feature {int(np.argmax(wrong))} is not a line. Remove it.")
    parts, part_of = shapely.get_parts(lines, return_index=True)  # 1
    try:
        speed = np.array(columns.get("speed_mph", ()), np.float64)[part_of]
    except (TypeError, ValueError) as error:
        raise SourceError(f"{name}: speed_mph is not a number: {error}") from error
    ends, confidence = _numbers(columns, "from_node", "to_node"), _numbers(columns, *CONFIDENCE)
    if confidence is not None:
        confidence = confidence[part_of] if np.isfinite(confidence).any() else None
    metric, edges = _in_metres(name, parts, crs_name(frame.crs))  # 2
    if ends is not None and len(edges) == len(lines) and np.isfinite(ends).all():  # 3
        numbered = _numbered_nodes(edges, ends.astype(np.int64))
        if numbered is not None:
            return RoadGraph(*numbered, edges, speed, metric, confidence)
    return network_from_lines(edges, speed, metric, confidence, joined="ends")


def _in_metres(
    name: object, lines: NDArray[np.object_], crs: str | None
) -> tuple[str | None, NDArray[np.object_]]:
    """Return a CRS in metres for lines, and the lines in it."""
    xy = shapely.get_coordinates(lines)
    if not np.isfinite(xy).all():
        raise SourceError(f"{name}: has coordinates that are not finite")
    outside = SourceError(
        f"{name}: has coordinates outside the domain of its CRS {str(crs)[:60]}. Assign the right "
        "CRS, for example with ogr2ogr -a_srs EPSG:CODE."
    )
    if crs is not None and is_geographic(crs) and (np.abs(xy) > (180, 90)).any():
        raise outside  # metres, perhaps
    try:
        metric = metric_crs(lines, crs)
    except OverflowError as error:  # its middle is at infinity
        raise outside from error
    if crs is not None and metric is not None and metric != crs:
        lines = reproject(lines, crs, metric)
        if not np.isfinite(shapely.get_coordinates(lines)).all():
            raise outside
    return metric, lines


def _numbers(columns: Mapping[str, NDArray[Any]], *names: str) -> NDArray[np.float64] | None:
    """Return columns as float64 (edge, column); None if one is missing or holds no numbers."""
    try:
        return np.column_stack([columns[name] for name in names]).astype(np.float64)
    except (KeyError, TypeError, ValueError):
        return None


_SAME_M: Final = 0.01
"""Distance of a line end from its node up to which node numbers count as right: rounding."""
_COINCIDENT_M: Final = 0.001


def _numbered_nodes(
    lines: NDArray[np.object_], ends: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]] | None:
    """Return the nodes that lines end at, and those of each line; None if numbers are stale.

    They are where a line ends more than 1 cm from its node, and where two nodes coincide within
    1 mm.
    """
    from scipy.spatial import cKDTree

    numbers, pairs = renumbered(ends)
    nodes, xy = np.empty((len(numbers), 2)), line_ends(lines)
    nodes[pairs.T.ravel()] = xy.transpose(1, 0, 2).reshape(-1, 2)
    agree = (np.hypot(*(xy - nodes[pairs]).reshape(-1, 2).T) <= _SAME_M).all()
    return (nodes, pairs) if agree and not cKDTree(nodes).query_pairs(_COINCIDENT_M) else None
