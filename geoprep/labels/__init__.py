"""Labels: read vector or raster label files and convert them to label bytes on a grid."""
