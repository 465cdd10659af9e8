"""Rasters of classes: their scores against ground truth, and their areas as polygons."""
