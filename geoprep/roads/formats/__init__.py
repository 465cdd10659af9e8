"""Road networks as files, and as graphs of networkx."""

from geoprep.roads.formats.csv_writer import ImageRoads, write_csv
from geoprep.roads.formats.files import (
    NETWORK_SUFFIXES,
    check_target,
    has_layer,
    is_network_file,
    read_network,
    write_network,
)
from geoprep.roads.formats.graphs import from_networkx, to_networkx

__all__ = [
    "NETWORK_SUFFIXES",
    "ImageRoads",
    "check_target",
    "from_networkx",
    "has_layer",
    "is_network_file",
    "read_network",
    "to_networkx",
    "write_csv",
    "write_network",
]
