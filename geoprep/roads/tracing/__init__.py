"""Centre line pixels in, a road network with speeds out; networks of several rasters to one.

Entry points: `steps.trace` one raster, `vectorization.vectorize` raster files to one network,
`vectorization.vectorize_each` raster files to one network each.
"""
