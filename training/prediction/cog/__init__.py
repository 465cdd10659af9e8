"""Rows of a map in, a cloud optimised GeoTIFF out."""
