"""Road networks from label files, SpaceNet's tables and adjacency dictionaries."""

from geoprep.roads.reading.adjacency import is_adjacency, json_content, read_adjacency
from geoprep.roads.reading.label_files import read_labels, read_labels_with_notes
from geoprep.roads.reading.spacenet_csv import ImageRoads, read_csv, write_csv

__all__ = [
    "ImageRoads",
    "is_adjacency",
    "json_content",
    "read_adjacency",
    "read_csv",
    "read_labels",
    "read_labels_with_notes",
    "write_csv",
]
