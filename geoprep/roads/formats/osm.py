"""Road networks as OpenStreetMap data, which editors such as JOSM open."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import shapely
from numpy.typing import NDArray

from geoprep.crs import LONLAT, moved
from geoprep.errors import LabelError, SourceError
from geoprep.labels.attributes import HIGHWAY_TYPES
from geoprep.labels.vector_names import OSM_LINES
from geoprep.roads.formats.table import CONFIDENCE, edge_frame, edges_of_features, network_of_frame
from geoprep.roads.graph import renumbered
from geoprep.roads.network import RoadGraph

_SOURCE: Final = "geoprep"
"""Value of ``source`` and prefix of our keys. A speed is no ``maxspeed``: that is a legal limit."""
_COLUMNS: Final = ("speed_mph", *CONFIDENCE)
_FIELDS: Final = {f"{_SOURCE}_{column}": column for column in _COLUMNS}
_TAGS: Final = f"<tag k='highway' v='road'/><tag k='source' v='{_SOURCE}'/>"
_MOST_NODES: Final = 2000  # of a way, as the API of OpenStreetMap accepts them


def write_osm(network: RoadGraph, path: Path) -> None:
    """Write OpenStreetMap XML: one way per edge, and one node where edges meet.

    Numbers are negative, as of objects that OpenStreetMap does not have yet.
    """
    points, way_nodes = _nodes(network)
    tags = edge_frame(network, rounded=True).reindex(columns=_COLUMNS).to_numpy(np.float64)
    with path.open("w", encoding="utf-8") as file:
        file.write("<?xml version='1.0' encoding='UTF-8'?>\n")
        file.write(f"<osm version='0.6' generator='{_SOURCE}' upload='false'>\n")
        for number, (lon, lat) in enumerate(points.tolist(), 1):
            file.write(f"<node id='-{number}' lat='{lat:.7f}' lon='{lon:.7f}'/>\n")
        number = 0
        for nodes, values in zip(way_nodes, tags.tolist(), strict=True):
            known = zip(_COLUMNS, values, strict=True)
            own = "".join(f"<tag k='{_SOURCE}:{key}' v='{v:.6g}'/>" for key, v in known if v == v)
            for begin in range(0, len(nodes) - 1, _MOST_NODES - 1):
                number += 1
                part = nodes[begin : begin + _MOST_NODES]
                refs = "".join(f"<nd ref='-{node}'/>" for node in part)
                file.write(f"<way id='-{number}'>{refs}{_TAGS}{own}</way>\n")
        file.write("</osm>\n")


def _nodes(network: RoadGraph) -> tuple[NDArray[np.float64], list[list[int]]]:
    """Return all points in degrees, and the numbers, from 1, of those of every edge."""
    used, ends = renumbered(network.ends)
    xy, edge = shapely.get_coordinates(network.lines, return_index=True)
    first, last = np.diff(edge, prepend=-1) != 0, np.diff(edge, append=-1) != 0
    inner = ~(first | last)
    number = np.empty(len(xy), np.int64)
    number[first], number[last] = ends.T
    number[inner] = len(used) + np.arange(np.count_nonzero(inner))
    points = moved(np.concatenate([network.nodes[used], xy[inner]]), str(network.crs), LONLAT)
    parts = np.split(number + 1, np.flatnonzero(first)[1:])[: len(ends)]
    return points, [part.tolist() for part in parts]


def read_if_written_here(path: Path, layer: str | None) -> RoadGraph | None:
    """Return the roads for cars of a network that geoprep wrote; None of other data."""
    from geoprep.labels.vector_files import VectorFile  # imports pyogrio

    try:
        file = VectorFile.open(path)
        lines = file.layer(layer or OSM_LINES)
        features = file.read([lines], ["highway", "source", *_FIELDS])
    except LabelError as error:
        raise SourceError(str(error)) from error
    frame = edges_of_features(features, features.crs)
    frame = frame.reindex(columns=["highway", "source", *_FIELDS, "geometry"])
    frame = frame[frame["highway"].notna()]
    if not (frame["source"].eq(_SOURCE) | frame[list(_FIELDS)].notna().any(axis=1)).any():
        return None
    frame = frame[frame["highway"].isin(HIGHWAY_TYPES)].rename(columns=_FIELDS)
    return network_of_frame(path, frame)
