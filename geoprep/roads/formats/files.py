"""Road networks written to and read from files, in the format that the suffix says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from geoprep.errors import SourceError, UsageError
from geoprep.roads.formats.geopackage import write_geopackage
from geoprep.roads.formats.graphs import read_graphml, write_graphml
from geoprep.roads.formats.parquet import has_network_columns, read_parquet, write_parquet
from geoprep.roads.formats.vector_files import (
    has_network_fields,
    layers,
    read_vector,
    write_geojson,
)
from geoprep.roads.network import RoadGraph, check_network
from geoprep.storage import replaced, require_folder

_WRITERS: Final[dict[str, Callable[[RoadGraph, Path], None]]] = {
    ".gpkg": write_geopackage,
    ".geojson": write_geojson,
    ".graphml": write_graphml,
    ".parquet": write_parquet,
}
_VECTOR_SUFFIXES: Final = (".gpkg", ".geojson", ".json", ".shp", ".fgb")
NETWORK_SUFFIXES: Final = tuple(_WRITERS)
"""Suffixes of the formats that networks are written in."""


def write_network(network: RoadGraph, path: str | os.PathLike[str]) -> None:
    """Write a network to a file, which appears complete or not at all.

    Every edge has ``from_node``, ``to_node``, ``length_m``, ``speed_mph`` and ``travel_time_s``,
    and if it was traced from probabilities ``confidence_mean`` and ``confidence_least``.
    Unknown values are null. Speeds are rounded to 0.001 mph, times are not rounded.

    Parameters
    ----------
    network
        Network to write.
    path
        ``.gpkg`` (layers ``edges`` and ``nodes``, with a style by speed that QGIS applies),
        ``.geojson`` (longitude and latitude), ``.graphml`` (networkx, Gephi) or ``.parquet``
        (GeoParquet 1.1).

    Raises
    ------
    UsageError
        The suffix is another one, the folder does not exist, or the network is malformed, for
        example has coordinates that are not finite.
    """
    path = Path(path)
    try:
        write = _WRITERS[path.suffix.lower()]
    except KeyError:
        raise UsageError(_wrong_suffix(path, NETWORK_SUFFIXES)) from None
    check_network(network, str(path))
    with replaced(path) as partial:
        write(network, partial)


def read_network(path: str | os.PathLike[str], *, layer: str | None = None) -> RoadGraph:
    """Return the road network of a file: one that geoprep wrote, or lines with ``speed_mph``.

    Networks that another program, such as QGIS, has saved again may have multi-part lines, another
    CRS or layer name, and edges added, moved or split. Where ``from_node`` and ``to_node`` are
    missing, or disagree with where the lines end, nodes are rebuilt from coordinates: line ends
    within 10 cm of each other are one node, and a line that another one ends on is split there.

    Parameters
    ----------
    path
        ``.gpkg``, ``.geojson``, ``.json``, ``.shp``, ``.fgb``, ``.graphml`` or ``.parquet``.
    layer
        Layer of lines; None: ``edges``, else the only layer of lines with ``speed_mph``.

    Returns
    -------
    RoadGraph
        In the CRS of the file if that is a projected CRS in metres whose scale is within 1 % of
        true, else in the UTM zone of the middle of its lines. A file that is not georeferenced
        gives a network in its own plane.

    Raises
    ------
    UsageError
        The suffix is another one, or several layers are road networks.
    SourceError
        The file does not exist, cannot be read, or is not a road network.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (*_VECTOR_SUFFIXES, *NETWORK_SUFFIXES):
        raise UsageError(_wrong_suffix(path, NETWORK_SUFFIXES))
    if not path.is_file():
        raise SourceError(f"{path}: no such file")
    if suffix == ".graphml":
        return read_graphml(path)
    if suffix == ".parquet":
        return read_parquet(path)
    return read_vector(path, layer)


def is_network_file(path: Path, *, layer: str | None = None) -> bool:
    """Return whether a file holds a road network rather than labels.

    A network has lines with ``speed_mph``, and either node numbers or no road attributes such as
    ``highway``. GraphML is always a network.

    Parameters
    ----------
    path
        Local file.
    layer
        Layer of lines; None: any layer.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return has_network_columns(path)
    if suffix in _VECTOR_SUFFIXES:
        return has_network_fields(path, layer)
    return suffix == ".graphml"


def has_layer(path: Path, layer: str | None) -> bool:
    """Return whether a vector file has a layer of some name; False for None and other files."""
    return layer is not None and path.suffix.lower() in _VECTOR_SUFFIXES and layer in layers(path)


def check_target(path: Path) -> None:
    """Raise an error, before the work, if a network or SpaceNet table cannot be written to a path.

    Raises
    ------
    UsageError
        The suffix is another one, or the folder does not exist.
    """
    suffixes = (*NETWORK_SUFFIXES, ".csv")
    if path.suffix.lower() not in suffixes:
        raise UsageError(_wrong_suffix(path, suffixes))
    require_folder(path)


def _wrong_suffix(path: Path, suffixes: tuple[str, ...]) -> str:
    return f"{path}: the name of a road network file ends in {', '.join(suffixes)}"
