"""Centre line pixels in, a mended network with speeds out; several networks in, one out.

Face: :func:`trace` one raster, :func:`vectorize` files of them.
"""

from geoprep.roads.tracing.trace import trace
from geoprep.roads.tracing.vectorize import rasters_in, vectorize

__all__ = ["rasters_in", "trace", "vectorize"]
