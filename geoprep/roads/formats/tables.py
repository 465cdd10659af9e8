"""The table of edges that all formats share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyproj
import shapely
from numpy.typing import NDArray

from geoprep.errors import SourceError
from geoprep.roads.network import RoadNetwork

COLUMNS: Final = ("from_node", "to_node", "length_m", "speed_mph", "travel_time_s")
_SPEED_DIGITS: Final = 3
"""A thousandth of a mph: 55 comes out as 55, whatever parts it was averaged from."""


def edge_columns(network: RoadNetwork) -> dict[str, NDArray[Any]]:
    """Return the columns of every edge by name, int64 and float64; NaN where nothing is known."""
    values = (
        network.ends[:, 0],
        network.ends[:, 1],
        network.length_m,
        np.round(network.speed_mph, _SPEED_DIGITS),
        network.travel_time_s,
    )
    return dict(zip(COLUMNS, values, strict=True))


def network_of(
    path: Path,
    columns: Mapping[str, NDArray[Any]],
    lines: NDArray[np.object_],
    crs: str | None,
    nodes: NDArray[np.float64] | None = None,
) -> RoadNetwork:
    """Return a network from its table of edges.

    Parameters
    ----------
    columns
        ``from_node``, ``to_node`` and ``speed_mph`` at least.
    lines
        Of the edges, in ``crs``.
    nodes
        float64 (node, 2); None: the ends of the lines.

    Raises
    ------
    SourceError
        A column is missing, something is no line, or a node that an edge names is not there.
    """
    missing = [name for name in ("from_node", "to_node", "speed_mph") if name not in columns]
    if missing:
        raise SourceError(
            f"{path}: has no {' and no '.join(missing)}: this is no network of geoprep vectorize"
        )
    bad = (shapely.get_type_id(lines) != shapely.GeometryType.LINESTRING) | shapely.is_empty(lines)
    if bad.any():
        raise SourceError(f"{path}: edge {int(np.argmax(bad))} is no line")
    try:
        ends = np.column_stack([columns["from_node"], columns["to_node"]]).astype(np.int64)
        speed = np.array(columns["speed_mph"], np.float64)
    except (TypeError, ValueError) as error:
        raise SourceError(f"{path}: an edge has no nodes or no number as speed: {error}") from error
    if nodes is None:
        nodes = _ends_of(lines, ends, path)
    if len(ends) and not 0 <= ends.min() <= ends.max() < len(nodes):
        raise SourceError(f"{path}: an edge names node {ends.max()}, of {len(nodes)} nodes")
    if not (np.isfinite(nodes).all() and np.isfinite(shapely.get_coordinates(lines)).all()):
        raise SourceError(f"{path}: has coordinates that are no numbers")
    return RoadNetwork(nodes, ends, lines, speed, crs)


def _ends_of(
    lines: NDArray[np.object_], ends: NDArray[np.int64], path: Path
) -> NDArray[np.float64]:
    """Return the places of nodes: where the lines that name them end."""
    if not len(ends):
        return np.empty((0, 2))
    count = int(ends.max()) + 1
    if ends.min() < 0 or count > 2 * len(ends):
        raise SourceError(f"{path}: its nodes are not numbered from 0")
    nodes = np.full((count, 2), np.nan)
    for side, point in ((0, 0), (1, -1)):
        nodes[ends[:, side]] = shapely.get_coordinates(shapely.get_point(lines, point))
    return nodes


def crs_name(crs: object) -> str | None:
    """Return a CRS as ``EPSG:32611`` where it has a code, as WKT where not; None for none."""
    if crs is None or crs == "":
        return None
    parsed = pyproj.CRS.from_user_input(crs)
    if parsed.is_engineering:
        return None  # what GDAL calls "undefined Cartesian": a plain plane
    code = parsed.to_epsg()
    return f"EPSG:{code}" if code else str(parsed.to_wkt())
