"""Road networks as files, frames and graphs of networkx."""

from geoprep.roads.formats.files import (
    check_target,
    has_layer,
    is_network_file,
    read_network,
    write_geojson,
    write_network,
)
from geoprep.roads.formats.graphs import multigraph
from geoprep.roads.formats.table import FRAME_NAMES, edge_frame, network_of_frame

__all__ = [
    "FRAME_NAMES",
    "check_target",
    "edge_frame",
    "has_layer",
    "is_network_file",
    "multigraph",
    "network_of_frame",
    "read_network",
    "write_geojson",
    "write_network",
]
