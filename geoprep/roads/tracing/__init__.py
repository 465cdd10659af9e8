"""Centre line pixels in, a road network with speeds out; networks of several rasters to one.

Entry points: :func:`trace` one raster in memory, :func:`vectorize` raster files to one network,
:func:`vectorize_each` raster files to one network each.
"""

from geoprep.roads.tracing.steps import trace
from geoprep.roads.tracing.vectorization import rasters_in, vectorize, vectorize_each

__all__ = ["rasters_in", "trace", "vectorize", "vectorize_each"]
