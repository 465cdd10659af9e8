"""A window of a raster in, uint8 (y, x, band) out: nodata, area averages, rescaling.

Face: :func:`read_pixels` and :func:`render`, what the limits between them are made from, and
:class:`TileCounts` for what came out.
"""

from geoprep.imagery.counts import TileCounts, add_black, count_mask, count_source
from geoprep.imagery.missing import drop_specks
from geoprep.imagery.pixels import (
    Pixels,
    band_names,
    check_image,
    default_bands,
    find_valid,
    grid_of,
    marks_nodata,
    read_pixels,
)
from geoprep.imagery.resample import pixel_edges, render
from geoprep.imagery.rescale import lookup_tables, percentile_limits, to_bytes
from geoprep.imagery.wide import find_usable, held_dtype, is_held_wide

__all__ = [
    "Pixels",
    "TileCounts",
    "add_black",
    "band_names",
    "check_image",
    "count_mask",
    "count_source",
    "default_bands",
    "drop_specks",
    "find_usable",
    "find_valid",
    "grid_of",
    "held_dtype",
    "is_held_wide",
    "lookup_tables",
    "marks_nodata",
    "percentile_limits",
    "pixel_edges",
    "read_pixels",
    "render",
    "to_bytes",
]
