"""Road networks from label files, SpaceNet's tables and adjacency dictionaries; scene keys."""

from geoprep.roads.reading.adjacency import PICKLE_SUFFIXES, is_adjacency, read_adjacency
from geoprep.roads.reading.csv_reader import read_csv
from geoprep.roads.reading.label_files import read_labels, read_labels_with_notes
from geoprep.roads.reading.line_network import network_from_lines
from geoprep.roads.reading.scene_names import scene_key

__all__ = [
    "PICKLE_SUFFIXES",
    "is_adjacency",
    "network_from_lines",
    "read_adjacency",
    "read_csv",
    "read_labels",
    "read_labels_with_notes",
    "scene_key",
]
