"""Rasters of roads in, the pixels of their centre lines out, whatever the raster's size.

Entry points: `opening.open_raster`, `thinning.skeleton`.
"""
