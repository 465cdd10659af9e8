"""Satellite imagery and road labels to uint8 Zarr stores, offline and once."""

__version__ = "0.1.0"
