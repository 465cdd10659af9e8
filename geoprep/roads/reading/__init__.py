"""Roads as others write them: label files and SpaceNet's tables in, networks out.

Face: :func:`read_labels`, :func:`read_csv`, :func:`network_from_lines`, :func:`scene_key`.
"""

from geoprep.roads.reading.labels import read_labels
from geoprep.roads.reading.lines import network_from_lines
from geoprep.roads.reading.names import scene_key
from geoprep.roads.reading.spacenet import read_csv

__all__ = ["network_from_lines", "read_csv", "read_labels", "scene_key"]
