"""Road labels: a label file and a rule for speeds in, lines with a speed and their masks out.

Face: :func:`read_roads`, :class:`Roads`, :class:`SpeedRule`, :func:`speed_polygons`, :func:`burn`
of vectors; :func:`read_mask`, :class:`MaskRule`, :func:`majority` of rasters.
"""

from geoprep.labels.codes import MaskRule
from geoprep.labels.majority import majority
from geoprep.labels.masks import SpeedPolygons, burn, speed_polygons
from geoprep.labels.rasters import Part, has_place, mask_values, read_mask
from geoprep.labels.reading import read_roads
from geoprep.labels.rule import SpeedRule
from geoprep.labels.table import Roads

__all__ = [
    "MaskRule",
    "Part",
    "Roads",
    "SpeedPolygons",
    "SpeedRule",
    "burn",
    "has_place",
    "majority",
    "mask_values",
    "read_mask",
    "read_roads",
    "speed_polygons",
]
