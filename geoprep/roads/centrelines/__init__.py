"""Rasters of roads in, the pixels of their centre lines out, whatever the raster's size.

Entry points: :func:`open_raster`, :func:`skeleton`.
"""

from geoprep.roads.centrelines.opening import open_raster
from geoprep.roads.centrelines.rasters import RoadRaster
from geoprep.roads.centrelines.thinning import Skeleton, skeleton

__all__ = ["RoadRaster", "Skeleton", "open_raster", "skeleton"]
