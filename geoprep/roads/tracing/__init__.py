"""Centre line pixels in, a mended network with speeds out; several networks in, one out.

Face: :func:`trace` one raster, :func:`vectorize` files of them (``_apart``: one by one);
:func:`blank_rasters` say nothing.
"""

from geoprep.roads.tracing.steps import trace
from geoprep.roads.tracing.vectorization import (
    blank_rasters,
    rasters_in,
    vectorize,
    vectorize_apart,
)

__all__ = ["blank_rasters", "rasters_in", "trace", "vectorize", "vectorize_apart"]
