"""A window of a raster in, uint8 (y, x, band) out: nodata, area averages, rescaling.

Face: :func:`read_pixels` and :func:`render`, and what the limits between them are made from.
"""

from geoprep.imagery.counts import TileCounts
from geoprep.imagery.pixels import (
    Pixels,
    band_names,
    check_image,
    count_source,
    default_bands,
    grid_of,
    lookup_tables,
    percentile_limits,
    pixel_edges,
    read_pixels,
    render,
)

__all__ = [
    "Pixels",
    "TileCounts",
    "band_names",
    "check_image",
    "count_source",
    "default_bands",
    "grid_of",
    "lookup_tables",
    "percentile_limits",
    "pixel_edges",
    "read_pixels",
    "render",
]
