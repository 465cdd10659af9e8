"""A network to a file by its suffix, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from geoprep.errors import SourceError, UsageError
from geoprep.roads.formats.geojson import read_geojson, write_geojson
from geoprep.roads.formats.geopackage import read_geopackage, write_geopackage
from geoprep.roads.formats.graphs import read_graphml, write_graphml
from geoprep.roads.formats.parquet import read_parquet, write_parquet
from geoprep.roads.network import RoadNetwork
from geoprep.storage import replaced, require_folder

_Write = Callable[[RoadNetwork, Path], None]
_Read = Callable[[Path], RoadNetwork]

_FORMATS: Final[dict[str, tuple[_Write, _Read]]] = {
    ".gpkg": (write_geopackage, read_geopackage),
    ".geojson": (write_geojson, read_geojson),
    ".graphml": (write_graphml, read_graphml),
    ".parquet": (write_parquet, read_parquet),
}
SUFFIXES: Final = tuple(_FORMATS)


def write_network(network: RoadNetwork, path: Path) -> None:
    """Write a network; the file appears at once, or not at all.

    Every edge has ``from_node``, ``to_node``, ``length_m``, ``speed_mph`` and ``travel_time_s``;
    what is unknown is null. Speeds are rounded to a thousandth of a mph, times are not.

    Parameters
    ----------
    path
        ``.gpkg`` (layers ``edges`` and ``nodes`` with a style by speed that QGIS applies),
        ``.geojson`` (longitude and latitude), ``.graphml`` (networkx, Gephi) or ``.parquet``
        (GeoParquet 1.1).

    Raises
    ------
    UsageError
        Another suffix, or a folder that does not exist.
    """
    write = _format(path)[0]
    with replaced(path) as partial:
        write(network, partial)


def read_network(path: Path) -> RoadNetwork:
    """Return the network that :func:`write_network` wrote.

    Raises
    ------
    UsageError
        Another suffix.
    SourceError
        There is no such file, or it is no network of ours.
    """
    read = _format(path)[1]
    if not path.is_file():
        raise SourceError(f"{path}: no such file")
    return read(path)


def check_target(path: Path) -> None:
    """Refuse, before hours of work, what no network, nor SpaceNet's table, can be written to.

    Raises
    ------
    UsageError
        Another suffix, or a folder that does not exist.
    """
    suffixes = *SUFFIXES, ".csv"
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{path}: a road network is a file that ends in {', '.join(suffixes)}")
    require_folder(path)


def _format(path: Path) -> tuple[_Write, _Read]:
    try:
        return _FORMATS[path.suffix.lower()]
    except KeyError:
        raise UsageError(
            f"{path}: a road network is a file that ends in {', '.join(SUFFIXES)}"
        ) from None
