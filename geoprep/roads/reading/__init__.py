"""Road networks from label files and SpaceNet's tables, read as for APLS; keys of scenes."""

from geoprep.roads.reading.csv_reader import read_csv
from geoprep.roads.reading.label_files import read_labels, read_labels_with_notes
from geoprep.roads.reading.line_network import network_from_lines
from geoprep.roads.reading.scene_names import scene_key

__all__ = ["network_from_lines", "read_csv", "read_labels", "read_labels_with_notes", "scene_key"]
