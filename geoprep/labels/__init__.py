"""Road labels: a label file and a rule for speeds in, lines with a speed and their masks out.

Face: :func:`read_roads`, :class:`Roads`, :class:`SpeedRule`, :func:`speed_polygons`, :func:`burn`.
"""

from geoprep.labels.masks import SpeedPolygons, burn, speed_polygons
from geoprep.labels.reading import read_roads
from geoprep.labels.rule import SpeedRule
from geoprep.labels.table import Roads

__all__ = ["Roads", "SpeedPolygons", "SpeedRule", "burn", "read_roads", "speed_polygons"]
