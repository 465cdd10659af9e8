"""Imagery: read windows of rasters and convert them to uint8 (y, x, band).

Public API: :func:`read_pixels` finds nodata, :func:`percentile_limits` and :func:`lookup_tables`
rescale, :func:`render` averages and maps to bytes, :class:`TileCounts` counts the result.
"""
