"""The table of edges that all formats and frames share, and the network made from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import crs_name, is_geographic, metric_crs, reproject
from geoprep.errors import SourceError
from geoprep.labels.attributes import ROAD_FIELDS, is_null
from geoprep.roads.formats.lines import JOINED_M, SAME_M, network_from_lines, normal_form
from geoprep.roads.graph import renumbered
from geoprep.roads.network import ATTRIBUTES, SPEED_BACK, RoadGraph, check_network, line_ends
from geoprep.speed import KMH_PER_MPH

if TYPE_CHECKING:
    import geopandas as gpd

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
SPEEDS: Final = ("speed_mph", "speed_kph")
READ_COLUMNS: Final = (*COLUMNS, *ATTRIBUTES, *SPEEDS)
"""Columns that are read from a file, if it has them."""
FRAME_NAMES: Final = {name: osmnx or name for name, osmnx in COLUMNS.items()}
_ROUNDED: Final = {"speed_mph", SPEED_BACK, *CONFIDENCE}
"""Columns that files have rounded to three digits: an average of 54.99999999 is written as 55."""
_DIGITS: Final = 3
_ROAD_ATTRIBUTES: Final = ROAD_FIELDS - {"speed_mph"} | {"surface", "paved"}


def edge_frame(network: RoadGraph, *, rounded: bool = False) -> gpd.GeoDataFrame:
    """Return one row per edge, with the columns of files; NaN where unknown."""
    import geopandas as gpd

    values = [*network.ends.T, network.length_m, network.speed_mph, network.travel_time_s]
    values += [] if network.confidence is None else list(network.confidence.T)
    columns = dict(zip(COLUMNS, values, strict=False)) | dict(network.attributes)
    if rounded:
        columns |= {name: np.round(columns[name], _DIGITS) for name in _ROUNDED & columns.keys()}
    return gpd.GeoDataFrame(columns, geometry=network.lines, crs=network.crs)


def are_network_fields(names: Collection[str]) -> bool:
    """Return whether a layer with these fields is a road network rather than labels.

    Labels also carry speeds, often outdated ones, beside the attributes that speeds follow from.
    """
    numbered = {"from_node", "to_node"} <= set(names)
    return not set(SPEEDS).isdisjoint(names) and (numbered or not _ROAD_ATTRIBUTES & set(names))


def network_of_frame(name: object, frame: gpd.GeoDataFrame) -> RoadGraph:
    """Return the network of a frame of edges with the columns of files; ``name`` is for errors.

    1. Geometries are LineStrings, or MultiLineStrings whose parts become edges.
    2. The network is in the CRS of the frame if that is in true metres, else in a UTM zone.
    3. Nodes are those that the columns number; missing and stale numbers are made anew from the
       lines, whose ends are joined within 10 cm.
    4. The network has the one form of all networks (`normal_form`).
    """
    columns = {column: frame[column].to_numpy() for column in READ_COLUMNS if column in frame}
    lines = np.asarray(shapely.force_2d(frame.geometry.to_numpy()), object)
    of_lines = (shapely.GeometryType.LINESTRING, shapely.GeometryType.MULTILINESTRING)
    wrong = ~np.isin(shapely.get_type_id(lines), of_lines) | shapely.is_empty(lines)
    if wrong.any():
        raise SourceError(f"{name}: feature {int(np.argmax(wrong))} is not a line. Remove it.")
    parts, part_of = shapely.get_parts(lines, return_index=True)  # 1
    speed = _speeds(name, columns, len(lines))[part_of]
    ends, confidence = _numbers(columns, "from_node", "to_node"), _numbers(columns, *CONFIDENCE)
    if confidence is not None:
        confidence = confidence[part_of] if np.isfinite(confidence).any() else None
    attributes = _attributes(columns, part_of)
    metric, edges = _in_metres(name, parts, crs_name(frame.crs))  # 2
    numbered = None
    if ends is not None and len(edges) == len(lines) and np.isfinite(ends).all():  # 3
        numbered = _numbered_nodes(edges, ends.astype(np.int64))
    if numbered is None:
        network = network_from_lines(
            edges, speed, metric, confidence, attributes, within_m=JOINED_M
        )
    else:
        network = normal_form(RoadGraph(*numbered, edges, speed, metric, confidence, attributes))
    check_network(network, str(name))
    return network


def _speeds(name: object, columns: Mapping[str, NDArray[Any]], count: int) -> NDArray[np.float64]:
    """Return the speed of every feature in mph, from a column in mph or in km/h."""
    column = "speed_mph" if "speed_mph" in columns else "speed_kph"
    if column not in columns and count:
        raise SourceError(
            f"{name}: has no field speed_mph or speed_kph, so it is not a road network. Write one "
            "with geoprep vectorize, or add the field."
        )
    try:
        speed = np.array(columns.get(column, ()), np.float64)
    except (TypeError, ValueError) as error:
        raise SourceError(f"{name}: {column} is not a number: {error}") from error
    return speed if column == "speed_mph" else speed / KMH_PER_MPH


def _attributes(
    columns: Mapping[str, NDArray[Any]], part_of: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Return the attributes of edges that are known of any: tags as text, None where unknown."""
    attributes: dict[str, NDArray[Any]] = {}
    for column in ATTRIBUTES:
        if column == SPEED_BACK and (back := _numbers(columns, column)) is not None:
            attributes[column] = back[part_of, 0]
        elif column in columns and column != SPEED_BACK:
            texts = [None if is_null(value) else str(value) for value in columns[column].tolist()]
            if any(texts):
                attributes[column] = np.array(texts, object)[part_of]
    return attributes


def _in_metres(
    name: object, lines: NDArray[np.object_], crs: str | None
) -> tuple[str | None, NDArray[np.object_]]:
    """Return a CRS in metres for lines, and the lines in it."""
    xy = shapely.get_coordinates(lines)
    if not np.isfinite(xy).all():
        raise SourceError(f"{name}: has coordinates that are not finite")
    short = len(lines) and shapely.length(lines).max() < 1  # in metres, no road is one long
    if crs is None and short and (np.abs(xy) <= (180, 90)).all():
        raise SourceError(
            f"{name}: has no CRS, and its coordinates look like degrees. State the CRS with "
            "ogr2ogr -a_srs EPSG:4326 fixed.gpkg FILE"
        )
    outside = SourceError(
        f"{name}: has coordinates outside the domain of its CRS {str(crs)[:60]}. Assign the right "
        "CRS, for example with ogr2ogr -a_srs EPSG:CODE."
    )
    if crs is not None and is_geographic(crs) and (np.abs(xy) > (360, 90)).any():
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
    return (nodes, pairs) if agree and not cKDTree(nodes).query_pairs(SAME_M) else None
